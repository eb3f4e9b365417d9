"""The document hierarchy: clusters of clusters of passages, built from their vectors."""
