"""`freshet bench faults`: check a live collection and a retrain after `kill -9`."""
