"""The ledger: what every document that arrived became, in one database, so that each is searchable exactly once."""
