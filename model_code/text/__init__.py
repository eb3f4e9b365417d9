"""Documents, and their words, terms, passages and snippets."""
