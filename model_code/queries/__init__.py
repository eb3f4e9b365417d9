"""Pseudo-queries: queries made from the documents themselves, to train with and, without qrels, to evaluate with."""
