"""Encoding, clustering and training on several processes or machines with the library Ray."""
