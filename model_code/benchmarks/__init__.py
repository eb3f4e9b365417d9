"""Benchmarks behind `freshet bench`: each measures ours and a peer on the same inputs in the same run."""
