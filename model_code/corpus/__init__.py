"""Turn a source of documents into the tables of a corpus.

The steps are: read, clean, merge duplicates, split, cut into passages, and check the contract.
"""
