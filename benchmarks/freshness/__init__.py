"""`freshet bench freshness`: arrival to searchable through the service, and readers under writes."""
