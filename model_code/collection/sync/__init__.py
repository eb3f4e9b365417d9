"""Follow a source or an inbox folder."""
