"""`freshet bench faults`: what is left of a live collection, and of a retrain, after `kill -9`."""
