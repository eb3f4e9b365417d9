"""Encoding, clustering and training on several processes or machines with Ray."""
