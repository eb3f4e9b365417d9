"""Encoders: loading, encoding texts to unit vectors, saving in the sentence-transformers layout."""
