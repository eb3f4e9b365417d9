"""Benches that are run again, by `freshet bench` from a clone: each meets a peer or a goal in the
same run.
"""
