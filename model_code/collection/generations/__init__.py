"""Immutable snapshots of the index, how they are built, and how they are searched."""
