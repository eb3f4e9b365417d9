"""Measure the gain of training on few judged questions, by their number."""
