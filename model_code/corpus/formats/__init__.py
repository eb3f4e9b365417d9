"""Readers of the formats of files that hold one document each."""
