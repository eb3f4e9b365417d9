"""Contracts of the corpus tables (pandera): types, closed vocabularies, uniqueness, and references between tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from model_code.contracts.frames import fail, validate
from model_code.corpus.tables import COLUMNS, NULLABLE, OPTIONAL

if TYPE_CHECKING:
    import pandera.pandas as pa

VOCABULARY = {
    ("documents", "part"): ("initial", "new", "tuning"),
    ("queries", "split"): ("train", "dev", "test", "later"),
    ("queries", "assigned_split"): ("train", "dev", "test"),
    ("qrels", "split"): ("train", "dev", "test", "later"),
    ("pseudo_queries", "split"): ("train", "dev", "test"),
    ("quarantine", "table"): ("documents", "queries", "qrels"),
}
FILLED = {("queries", "text"), ("pseudo_queries", "text"), ("pseudo_queries", "kind"), ("quarantine", "reason")}
LISTS = {("queries", "answers")}  # as JSON
KEYS = {
    "documents": ["document_id"],
    "passages": ["document_id", "ordinal"],
    "queries": ["query_id"],
    "qrels": ["query_id", "document_id"],
    "pseudo_queries": ["query_id"],
}
REFERENCES = (  # every value of (table, column) is a value of (table, column)
    ("passages", "document_id", "documents", "document_id"),
    ("qrels", "document_id", "documents", "document_id"),
    ("qrels", "query_id", "queries", "query_id"),
    ("pseudo_queries", "document_id", "documents", "document_id"),
)


def schema(table: str) -> pa.DataFrameSchema:
    """The pandera schema of a table: exactly its columns, of their types, with the values that they may take."""
    import pandera.pandas as pa

    columns = {}
    for name, kind in COLUMNS[table].items():
        nullable, required = (table, name) in NULLABLE, (table, name) not in OPTIONAL
        columns[name] = pa.Column(kind, _checks(table, name), nullable=nullable, required=required)
    return pa.DataFrameSchema(columns, strict=True, unique=KEYS.get(table), name=table)


def check_tables(tables: Mapping[str, pd.DataFrame]) -> None:
    """Check each table against its schema and against the other given tables it refers to.

    Raises `FreshetError` that names the table, the broken rule and the first offending rows.
    """
    for name, table in tables.items():
        validate(schema(name), table)
    for name, column, other, key in REFERENCES:
        if name in tables and other in tables:
            lost = tables[name][~tables[name][column].isin(tables[other][key])]
            if len(lost):
                fail(name, f"{column} must be a {key} of {other}", lost[column])
    if {"documents", "passages"} <= tables.keys():
        _check_parts(tables["documents"], tables["passages"])
    if {"queries", "qrels"} <= tables.keys():
        _check_splits(tables["queries"], tables["qrels"])


def _checks(table: str, column: str) -> list[Any]:
    import pandera.pandas as pa

    checks = []
    if (table, column) in VOCABULARY:
        checks.append(pa.Check.isin(VOCABULARY[table, column]))
    if column.endswith("_id") or (table, column) in FILLED:
        checks.append(pa.Check.str_length(min_value=1))
    if (table, column) in LISTS:
        checks.append(pa.Check(_is_list_of_texts, element_wise=True, error="list of texts"))
    if column in ("relevance", "ordinal"):
        checks.append(pa.Check.ge(1 if column == "relevance" else 0))
    return checks


def _is_list_of_texts(value: str) -> bool:
    """Whether the value is JSON of a list of texts: at least one, none of them empty."""
    try:
        texts = json.loads(value)
    except ValueError:
        return False
    return isinstance(texts, list) and len(texts) > 0 and all(isinstance(text, str) and text for text in texts)


def _check_parts(documents: pd.DataFrame, passages: pd.DataFrame) -> None:
    """Every initial document, and no other one, has passages."""
    initial = documents["part"] == "initial"
    covered = documents["document_id"].isin(passages["document_id"])
    if (initial != covered).any():
        rows = documents[initial != covered]["document_id"]
        fail("passages", "exactly the initial documents must have passages", rows)


def _check_splits(queries: pd.DataFrame, qrels: pd.DataFrame) -> None:
    split = qrels["query_id"].map(queries.set_index("query_id")["split"])
    if (split != qrels["split"]).any():
        fail("qrels", "split must be its query's split", qrels[split != qrels["split"]]["query_id"])
