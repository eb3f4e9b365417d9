"""The live collection: immutable generations, the pointer to the current one, and the searcher that reads it."""
