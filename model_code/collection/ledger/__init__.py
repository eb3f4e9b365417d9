"""The append-only log of changes, feedback and tasks."""
