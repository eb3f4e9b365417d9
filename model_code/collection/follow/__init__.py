"""Publish a live collection to a shared place, and follow it on other machines."""
