"""Work that is too large for one process: encoding, clustering and training, on Ray (`scale`)."""
