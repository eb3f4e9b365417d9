"""How and when: stage table, stage runner, Dagster definitions, tracking, registry and command line."""
