"""Backup, restore, export and repair."""
