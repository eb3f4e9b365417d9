"""The retriever interface, BM25, dense vectors and fusions, with their indexes."""
