"""A trained retriever with its index, of whatever kind: one protocol, one file per kind."""
