"""Contracts of the corpus tables (pandera), of the queries that are made from them, and of the
verdict over both.

Tables have their types, closed vocabularies, unique keys, and references to each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pandas as pd
import pandera.pandas as pa

from model_code.context import StageContext
from model_code.contracts.rules import (
    passage_documents,
    require,
    require_files,
    require_none,
    validate,
)
from model_code.corpus.settings import SPLITS
from model_code.corpus.tables import COLUMNS, NULLABLE, OPTIONAL, TABLES
from model_code.files import read_json

KEYS = {
    "documents": ["document_id"],
    "passages": ["document_id", "ordinal"],
    "queries": ["query_id"],
    "qrels": ["query_id", "document_id"],
    "pseudo_queries": ["query_id"],
}
REFERENCES = (  # every value of the first table's column is one of the other table's
    ("passages", "document_id", "documents"),
    ("documents", "document_id", "passages"),
    ("qrels", "document_id", "documents"),
    ("qrels", "query_id", "queries"),
)


def _is_list_of_texts(value: str) -> bool:
    """Whether the value is JSON of a list of texts: at least one, none of them empty."""
    try:
        texts = json.loads(value)
    except ValueError:
        return False
    return (
        isinstance(texts, list)
        and len(texts) > 0
        and all(isinstance(text, str) and text for text in texts)
    )


NAMED, FILLED = pa.Check.str_length(min_value=1), pa.Check.str_contains(r"\S")
CHECKS = {  # of what a table's column holds, beside the ids, which all are NAMED
    ("passages", "ordinal"): pa.Check.ge(0),
    ("queries", "text"): FILLED,
    ("queries", "split"): pa.Check.isin(SPLITS),
    ("queries", "answers"): pa.Check(_is_list_of_texts, element_wise=True, error="list of texts"),
    ("qrels", "relevance"): pa.Check.ge(1),
    ("qrels", "split"): pa.Check.isin(SPLITS),
    ("quarantine", "table"): pa.Check.isin(("documents", "queries", "qrels")),
    ("quarantine", "reason"): FILLED,
    ("pseudo_queries", "text"): FILLED,
    ("pseudo_queries", "kind"): FILLED,
}


def schema(table: str) -> pa.DataFrameSchema:
    """The pandera schema of a table: exactly its columns, of their types, with the values that they
    may take.
    """
    columns = {}
    for name, kind in COLUMNS[table].items():
        nullable, required = (table, name) in NULLABLE, (table, name) not in OPTIONAL
        check = NAMED if name.endswith("_id") else CHECKS.get((table, name))
        columns[name] = pa.Column(kind, check, nullable=nullable, required=required)
    return pa.DataFrameSchema(columns, strict=True, unique=KEYS.get(table), name=table)


def check_tables(tables: Mapping[str, pd.DataFrame]) -> None:
    """Check each table against its schema and against the other given tables it refers to.

    Raises `FreshetError` that names the table, the broken rule and the first offending rows.
    """
    for name, table in tables.items():
        validate(schema(name), table)
    for name, column, target in REFERENCES:
        if name in tables and target in tables:
            values = tables[name][column]
            require_none(
                name,
                f"{column} must be a {column} of {target}",
                values[~values.isin(tables[target][column])],
            )
    if {"queries", "qrels"} <= tables.keys():
        qrels, splits = tables["qrels"], tables["queries"].set_index("query_id")["split"]
        wrong = qrels["query_id"].map(splits) != qrels["split"]
        require_none("qrels", "split must be its query's split", qrels.loc[wrong, "query_id"])


def check_corpus(context: StageContext) -> None:
    """All five tables, quarantine included, against their schemas and each other, as they were
    written.
    """
    names = (*TABLES, "quarantine")
    require_files(context.output, [f"{name}.parquet" for name in names])
    check_tables({name: pd.read_parquet(context.output / f"{name}.parquet") for name in names})


def check_pseudo_queries(context: StageContext) -> None:
    """The table's schema; queries of the corpus's documents, that are more than white space."""
    require_files(context.output, ["pseudo_queries.parquet"])
    table = pd.read_parquet(context.output / "pseudo_queries.parquet")
    check_tables({"pseudo_queries": table})
    lost = table.loc[
        ~table["document_id"].isin(passage_documents(context.inputs["corpus"])), "document_id"
    ]
    require_none("pseudo_queries", "document_id must be of a document of the corpus", lost)


def check_acceptance(context: StageContext) -> None:
    """A verdict on something that says of each expectation that it passed; no other is ever
    published.
    """
    require_files(context.output, ["verdict.json"])
    verdict = read_json(context.output / "verdict.json")
    passed = [row["passed"] for row in verdict["expectations"]]
    require(
        passed != [] and all([verdict["passed"], *passed]),
        "verdict.json must have passed, and what it expected",
    )
