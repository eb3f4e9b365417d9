"""The live index: add, update, delete, revert."""
