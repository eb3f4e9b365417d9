"""Where encoding, clustering and training run: in this process, or on Ray. It changes no result, so no stage's key."""
