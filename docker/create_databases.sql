-- MLflow and Dagster both have a table alembic_version, so each has a database.
CREATE DATABASE mlflow;
CREATE DATABASE dagster;
