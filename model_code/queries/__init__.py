"""Pseudo-queries: queries that are generated from the documents, for training."""
