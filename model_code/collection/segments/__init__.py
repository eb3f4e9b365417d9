"""Immutable folders of indexed documents."""
