"""Indexes over passages: the one top-k routine, dense vectors by FAISS and BM25."""
