"""Measure training, clustering and addition on a GPU, on a machine without Freshet's libraries."""
