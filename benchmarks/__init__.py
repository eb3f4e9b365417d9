"""Benchmarks that `freshet bench` runs from a clone.

Each one compares Freshet with a peer or a goal in the same run.
"""
