"""The stage table, its execution by DVC, and the runs that MLflow keeps."""
