"""Drift: how far arriving documents lie from those that a retriever was trained on, and what to do
about it.
"""
