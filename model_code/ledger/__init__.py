"""The log: what every document that arrived came to, in one database, from which all retrievers are filled."""
