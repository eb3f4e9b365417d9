"""The token index: which passages contain which tokens, without counts or positions.

The paper SVDR calls it a binary token index. Only a tokenizer is needed to build it, and no
encoder. A search adds up the weights of the query's tokens that a passage contains.
"""
