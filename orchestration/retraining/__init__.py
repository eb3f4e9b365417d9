"""Retraining on everything that is live: snapshot, temporary workspace, the same stages, a gate, and the switch."""
