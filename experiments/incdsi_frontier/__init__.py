"""Compare IncDSI with other ways to add documents, on a judged collection.

IncDSI solves the vector of a new document so that its queries find it. The comparison shows how
much better new documents are found, and how much worse old ones.
"""
