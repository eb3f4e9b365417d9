"""Drift: how far new documents lie from those that a retriever was trained on, and whether it harms."""
