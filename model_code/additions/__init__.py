"""IncDSI for a live collection: which vectors its added documents get, and what of that is remembered."""
