"""Where encoding, clustering and training run: in this process, or on Ray. Beyond rounding, results are the same."""
