"""Other search engines on the same documents, vectors and queries."""
