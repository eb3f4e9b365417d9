"""Atomic document ids (DSI): a query encoder and one learned vector per document."""
