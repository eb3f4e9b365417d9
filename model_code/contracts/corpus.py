"""Contracts of the corpus tables (pandera), of the queries that are made from them, and of the verdict over both.

Tables have their types, closed vocabularies, unique keys, and references to each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from model_code.context import StageContext
from model_code.contracts.rules import fail, require, require_files, validate
from model_code.corpus.tables import COLUMNS, NULLABLE, OPTIONAL, TABLES, Corpus, frame, judged
from model_code.files import read_json

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


VERDICT = {"passed": bool, "source": str, "expectations": list}
EXPECTATION = ("table", "expectation", "bounds", "observed", "passed")


def check_corpus(context: StageContext) -> None:
    """All five tables, quarantine included, against their schemas and each other, as they were written."""
    names = (*TABLES, "quarantine")
    require_files(context.output, [f"{name}.parquet" for name in names])
    check_tables({name: pd.read_parquet(context.output / f"{name}.parquet") for name in names})


def check_pseudo_queries(context: StageContext) -> None:
    """The table's schema; initial documents only, each in one split, and that is train where the corpus has judges."""
    require_files(context.output, ["pseudo_queries.parquet"])
    table = pd.read_parquet(context.output / "pseudo_queries.parquet")
    if table.empty:  # a column without a value has no type of its own
        table = frame("pseudo_queries", []).reindex(columns=table.columns)
    check_tables({"pseudo_queries": table})
    folder = context.inputs["corpus"]
    documents = pd.read_parquet(folder / "documents.parquet", columns=["document_id", "part"])
    initial = documents.loc[documents["part"] == "initial", "document_id"]
    _refuse(table, ~table["document_id"].isin(initial), "document_id must be of an initial document", "document_id")
    _refuse(table, ~table["text"].str.strip().astype(bool), "text must hold more than white space", "text")
    parted = table.groupby("document_id")["split"].transform("nunique") > 1
    _refuse(table, parted, "all queries of a document must be of one split", "document_id")
    tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in ("queries", "qrels")}
    corpus = Corpus(documents=documents, passages=documents.iloc[:0], **tables)
    if judged(corpus, table.iloc[:0], "dev").source == "qrels":
        rule = "split must be train, as the corpus has judged queries of its own for dev or test"
        _refuse(table, table["split"] != "train", rule, "split")


def check_acceptance(context: StageContext) -> None:
    """A verdict that says who judged, and of each expectation what was seen; only a passed one is ever published."""
    require_files(context.output, ["verdict.json"])
    verdict = read_json(context.output / "verdict.json")
    for name, kind in VERDICT.items():
        require(isinstance(verdict.get(name), kind), f"verdict.json must have {name!r}, a {kind.__name__}")
    require(verdict["source"] in ("qrels", "pseudo-queries"), f"verdict.json: unknown source {verdict['source']!r}")
    require(len(verdict["expectations"]) > 0, "verdict.json must hold at least one expectation")
    for row in verdict["expectations"]:
        lacking = [name for name in EXPECTATION if name not in row]
        require(not lacking, f"verdict.json: the expectation {row.get('expectation')!r} lacks {', '.join(lacking)}")
    every = all(row["passed"] for row in verdict["expectations"])
    require(verdict["passed"] and every, "verdict.json must have passed, and each of its expectations with it")


def _refuse(table: pd.DataFrame, broken: pd.Series, rule: str, column: str) -> None:
    if broken.any():
        fail("pseudo_queries", rule, table.loc[broken, column])
