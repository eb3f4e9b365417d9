"""Drift, watched: what was added since the last look, beside what the live retriever was trained on."""
