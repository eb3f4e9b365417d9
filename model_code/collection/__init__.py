"""The live collection: everything that keeps documents searchable while they change."""
