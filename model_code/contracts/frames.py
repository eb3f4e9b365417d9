"""Data frames against pandera schemas, the first broken rule told in one line with its first rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from model_code.errors import FreshetError

if TYPE_CHECKING:
    import pandera.pandas as pa

SHOWN_ROWS = 3


def validate(schema: pa.DataFrameSchema, table: pd.DataFrame) -> None:
    """FreshetError that names the schema, the first broken rule and the first rows that break it."""
    import pandera.errors

    try:
        schema.validate(table, lazy=True)
    except pandera.errors.SchemaErrors as error:
        _explain(schema, table, error.failure_cases)


def fail(table: str, rule: str, rows: pd.Series) -> None:
    """FreshetError: so many rows of the table break the rule; `rows` are their values under their numbers."""
    first = "; ".join(f"row {index}: {value!r}" for index, value in rows.head(SHOWN_ROWS).items())
    raise FreshetError(f"the table {table} breaks its contract in {len(rows):,} rows: {rule}. First: {first}")


def _explain(schema: pa.DataFrameSchema, table: pd.DataFrame, cases: pd.DataFrame) -> None:
    first = _most_basic(cases)
    if pd.isna(first["index"]):  # a column is missing, unknown or of another type: no row is to blame
        raise FreshetError(
            f"the table {schema.name} breaks its contract: {first['check']}, {first['failure_case']!r}; "
            f"its columns are {', '.join(schema.columns)}"
        )
    same = cases[(cases["check"] == first["check"]) & (cases["column"] == first["column"])]
    if first["check"] == "multiple_fields_uniqueness":
        rule = f"{' and '.join(schema.unique)} must be unique"
    elif first["schema_context"] == "DataFrameSchema":  # a rule over several columns: the whole rows are to blame
        fail(str(schema.name), str(first["check"]), _whole(table, sorted(set(same["index"]))))
    else:
        rule = f"{first['column']} breaks {first['check']}"
    fail(str(schema.name), rule, same.set_index("index")["failure_case"].sort_index())


def _most_basic(cases: pd.DataFrame) -> pd.Series:
    """Of all broken rules one about columns, else about values, else about whole rows; of its rows the first."""
    over_rows = (cases["schema_context"] == "DataFrameSchema") & cases["index"].notna()
    ordered = cases.assign(over_rows=over_rows).sort_values(["over_rows", "index"], na_position="first", kind="stable")
    return ordered.iloc[0]


def _whole(table: pd.DataFrame, rows: list[Any]) -> pd.Series:
    shown = table.loc[rows]
    return pd.Series([" ".join(map(str, values)) for values in shown.to_numpy()], index=shown.index, dtype=object)
