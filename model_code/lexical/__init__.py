"""The lexical retriever (SVDR): texts as weights over the vocabulary, searched with and without
embeddings.
"""
