"""The stage table, running its stages through DVC, the runs that MLflow keeps of them, and what
came of them.
"""
