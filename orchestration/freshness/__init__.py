"""Keep a retriever fresh: request due work, check for drift, run pilots and retrains.

Drift is a change of the documents or queries. A pilot is a short training on a sample.
"""
