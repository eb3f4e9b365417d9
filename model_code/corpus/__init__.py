"""From a source of documents to contracted tables: read, clean, merge duplicates, split, cut into
passages, check.
"""
