"""Freshness: work that is due, measuring a batch, pilots and retrains."""
