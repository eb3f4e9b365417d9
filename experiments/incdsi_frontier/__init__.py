"""IncDSI against its alternatives on a judged collection: what new documents gain, and what old
ones pay.
"""
