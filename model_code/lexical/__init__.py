"""The lexical retriever of the paper SVDR: a text is a weight for each vocabulary entry.

It is searched by an index of these weights, or by an index of the tokens of passages.
"""
