"""Pseudo-queries: queries made from the documents themselves, to train with."""
