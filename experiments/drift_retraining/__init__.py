"""Whether a retrain was due, told by retraining."""
