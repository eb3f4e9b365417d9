"""What the Dagster UI says about each artifact: one file per family, a few lines each."""
