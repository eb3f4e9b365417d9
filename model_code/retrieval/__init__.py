"""What retrievers have in common, BM25, dense vectors, fusions, and their indexes."""
