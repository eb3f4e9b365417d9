"""Measure drift: how far new documents lie from old ones, and whether it harms search."""
