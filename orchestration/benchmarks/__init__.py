"""Benchmarks of what lies above the science: how changes survive crashes."""
