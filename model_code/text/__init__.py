"""Documents, words, passages and snippets."""
