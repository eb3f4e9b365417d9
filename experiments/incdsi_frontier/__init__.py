"""Compare IncDSI with its alternatives on a judged collection.

The comparison covers the gain of new documents and the loss of old ones.
"""
