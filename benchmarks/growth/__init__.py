"""`freshet bench growth`: how costs grow with the corpus."""
