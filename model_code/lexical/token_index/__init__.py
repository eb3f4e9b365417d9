"""SVDR's binary token index, built without an encoder."""
