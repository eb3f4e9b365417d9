"""The lexical retriever (SVDR): texts as weights over the vocabulary, with two kinds of index."""
