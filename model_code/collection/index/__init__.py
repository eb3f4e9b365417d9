"""The live index: add, update and delete documents, and revert changes."""
