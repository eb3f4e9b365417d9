"""Versions of retrievers in MLflow's registry, and the promotion of the champion."""
