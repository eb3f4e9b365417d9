"""Pipeline stages: one module per stage, with its declaration `STAGE`, `run` and `check`."""
