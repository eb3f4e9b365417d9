"""Extra negative documents for each training query: drawn from the hierarchy, at random, or from a ranking."""
