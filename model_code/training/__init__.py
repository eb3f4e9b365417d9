"""Training an encoder on (query, document) pairs, with or without a document hierarchy."""
