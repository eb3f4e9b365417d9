"""Schemas of the corpus tables and of the pseudo-queries (pandera), and references between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pandera.pandas as pa
from pandera.errors import SchemaError, SchemaErrors

from model_code.checks.rules import require
from model_code.corpus.corpus_queries import JUDGING_SPLITS, CorpusQueries, query_hash
from model_code.corpus.rows import FROM_FEEDBACK
from model_code.corpus.settings import SPLITS
from model_code.corpus.tables import COLUMNS, NULLABLE, OPTIONAL
from model_code.errors import FreshetError

# Number of faulty rows that a message shows.
SHOWN_ROWS = 3

# Largest value of a share or metric. It is above 1 because rounding may make an nDCG of 1 slightly
# larger.
MAX_SHARE = 1 + 1e-9

# The key of each table: no two rows have equal values in all of these columns.
KEYS = {
    "documents": ["document_id"],
    "passages": ["document_id", "ordinal"],
    "queries": ["query_id"],
    "qrels": ["query_id", "document_id"],
    "pseudo_queries": ["query_id"],
}
# Every value of the first table's column must occur in the same column of the other table.
REFERENCES = (
    ("passages", "document_id", "documents"),
    ("documents", "document_id", "passages"),
    ("qrels", "document_id", "documents"),
    ("qrels", "query_id", "queries"),
)


def _is_list_of_texts(value: str) -> bool:
    """Return whether a value is a JSON list of at least one text, without empty texts."""
    try:
        texts = json.loads(value)
    except ValueError:
        return False
    if not isinstance(texts, list) or not texts:
        return False
    return all(isinstance(text, str) and text for text in texts)


HAS_CHARACTERS = pa.Check.str_length(min_value=1)
HAS_TEXT = pa.Check.str_contains(r"\S")
# The check of each column, by table and column. Columns of ids are checked by `HAS_CHARACTERS`.
COLUMN_CHECKS = {
    ("passages", "ordinal"): pa.Check.ge(0),
    ("queries", "text"): HAS_TEXT,
    ("queries", "split"): pa.Check.isin(SPLITS),
    ("documents", "queries"): pa.Check(_is_list_of_texts, element_wise=True, error="list of texts"),
    ("queries", "answers"): pa.Check(_is_list_of_texts, element_wise=True, error="list of texts"),
    ("queries", "not_relevant"): pa.Check(
        _is_list_of_texts, element_wise=True, error="list of texts"
    ),
    ("qrels", "relevance"): pa.Check.ge(1),
    ("qrels", "split"): pa.Check.isin(SPLITS),
    ("qrels", "origin"): pa.Check.isin((FROM_FEEDBACK,)),
    ("quarantine", "table"): pa.Check.isin(("documents", "queries", "qrels")),
    ("quarantine", "reason"): HAS_TEXT,
    ("pseudo_queries", "text"): HAS_TEXT,
    ("pseudo_queries", "kind"): HAS_TEXT,
}


def table_schema(table: str) -> pa.DataFrameSchema:
    """Return the schema of a table: its columns, with their types and allowed values."""
    columns = {}
    for name, dtype in COLUMNS[table].items():
        check = COLUMN_CHECKS.get((table, name))
        if name.endswith("_id"):
            check = HAS_CHARACTERS
        columns[name] = pa.Column(
            dtype,
            check,
            nullable=(table, name) in NULLABLE,
            required=(table, name) not in OPTIONAL,
        )
    return pa.DataFrameSchema(columns, strict=True, unique=KEYS.get(table), name=table)


def check_tables(tables: Mapping[str, pd.DataFrame]) -> None:
    """Check each table against its schema, and its references to the other given tables.

    Raises:
        FreshetError: If a rule is broken. The message names the table, the rule and the first rows.
    """
    for name, table in tables.items():
        validate(table_schema(name), table)

    for name, column, target in REFERENCES:
        if name not in tables or target not in tables:
            continue
        values = tables[name][column]
        is_unknown = ~values.isin(tables[target][column])
        require_no_rows(name, f"{column} must be a {column} of {target}", values[is_unknown])

    if "queries" in tables and "qrels" in tables:
        _check_splits(tables["queries"], tables["qrels"])


def check_known_queries(known: CorpusQueries, tables: Mapping[str, pd.DataFrame]) -> None:
    """Require that known queries belong to documents and are not queries of dev, gate or test.

    A known query is indexed with its document. If an evaluated query were known, it would find the
    document by an exact copy of itself.

    Args:
        known: The known queries of the corpus.
        tables: The tables `documents` and `queries`.
    """
    documents = set(tables["documents"]["document_id"])
    queries = tables["queries"]
    judging = queries[queries["split"].isin(JUDGING_SPLITS)]
    held_out = {query_hash(text) for text in judging["text"]}
    require(known.held_out == held_out, "known queries must name the queries of dev, gate and test")
    for query in known.queries:
        require(
            query.document_id in documents,
            f"known queries must belong to documents; there is no {query.document_id!r}",
        )
        require(
            query_hash(query.text) not in held_out,
            f"no query of dev, gate or test may be known, as {query.text!r} is",
        )


def validate(schema: pa.DataFrameSchema, table: pd.DataFrame) -> None:
    """Check a table against a schema.

    Raises:
        FreshetError: If a rule is broken. The message names the schema, the first broken rule and
            the first rows that break it.
    """
    try:
        schema.validate(table)
    except SchemaErrors as errors:
        _raise_broken_rule(schema, table, errors.schema_errors[0])
    except SchemaError as error:
        _raise_broken_rule(schema, table, error)


def require_no_rows(table: str, rule: str, rows: pd.Series) -> None:
    """Require that no row of a table breaks a rule.

    Args:
        table: Name of the table, for the message.
        rule: The rule, for the message.
        rows: The values that break the rule, indexed by row number.
    """
    shown = [f"row {index}: {value!r}" for index, value in rows.head(SHOWN_ROWS).items()]
    require(
        rows.empty,
        f"the table {table} breaks its contract in {len(rows):,} rows: {rule}. First: "
        f"{'; '.join(shown)}",
    )


def passage_documents(corpus: Path) -> list[str]:
    """Return the document of each passage, in the order of the passages table."""
    passages = pd.read_parquet(corpus / "passages.parquet", columns=["document_id"])
    documents: list[str] = passages["document_id"].tolist()
    return documents


def _check_splits(queries: pd.DataFrame, qrels: pd.DataFrame) -> None:
    """Require each judgement to be in the same split (train, dev, ...) as its query."""
    split_by_query = queries.set_index("query_id")["split"]
    is_wrong = qrels["query_id"].map(split_by_query) != qrels["split"]
    require_no_rows("qrels", "split must be its query's split", qrels.loc[is_wrong, "query_id"])


def _raise_broken_rule(schema: pa.DataFrameSchema, table: pd.DataFrame, error: SchemaError) -> None:
    """Raise `FreshetError` for the rule that pandera found broken.

    Args:
        schema: Schema of the table.
        table: The table.
        error: Error of pandera. Its `failure_cases` is a table of the values that break the rule,
            or a text.
    """
    rule = str(getattr(error.check, "error", error.check))
    cases = error.failure_cases

    is_about_columns = not isinstance(cases, pd.DataFrame) or cases["index"].isna().all()
    if is_about_columns:
        # The rule is about the table's columns, such as a missing one, so there are no rows to
        # show.
        case = cases if isinstance(cases, str) else cases["failure_case"].iloc[0]
        raise FreshetError(
            f"the table {schema.name} breaks its contract: {rule}, {case!r}; "
            f"its columns are {', '.join(schema.columns)}"
        )

    if error.schema is not schema:
        # The rule is about one column, so its values are shown.
        rule = f"{error.schema.name} breaks {rule}"
        rows = cases.set_index("index")["failure_case"]
    else:
        # The rule is about several columns, so the whole rows are shown.
        if rule == "multiple_fields_uniqueness":
            rule = f"{' and '.join(schema.unique)} must be unique"
        broken_rows = table.loc[sorted(set(cases["index"]))]
        rows = broken_rows.astype(str).agg(" ".join, axis=1)
    require_no_rows(str(schema.name), rule, rows)
