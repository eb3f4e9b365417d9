"""The engine: corpus, encoding, training, retrieval, evaluation and the live collection.

It is plain Python on torch, transformers and FAISS, and imports no orchestrator.
"""
