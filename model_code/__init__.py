"""The science and the index: plain Python on torch, transformers and FAISS, with no orchestration
imports.
"""
