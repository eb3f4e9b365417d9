"""Evaluation: metrics, significance, comparison with the baselines, reports and the gate."""
