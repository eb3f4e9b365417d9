"""Compare drift checks with real retrains."""
