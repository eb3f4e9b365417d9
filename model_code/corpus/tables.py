"""The tables of a corpus as every later stage reads them, and the judged queries that an evaluation
is made on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

TABLES = ("documents", "passages", "queries", "qrels")
COLUMNS: dict[str, dict[str, type]] = {
    "documents": dict.fromkeys(
        ("document_id", "title", "text", "fields", "date", "content_hash"), str
    ),
    "passages": {"document_id": str, "ordinal": int, "title": str, "text": str},
    "queries": dict.fromkeys(("query_id", "text", "split", "answers"), str),
    "qrels": {"query_id": str, "document_id": str, "relevance": int, "split": str},
    "quarantine": dict.fromkeys(
        ("location", "record_id", "table", "reason", "detail", "excerpt"), str
    ),
    "pseudo_queries": dict.fromkeys(("query_id", "document_id", "text", "kind"), str),
}
OPTIONAL = {("queries", "answers")}  # columns that a table has only if one of its rows has a value
NULLABLE = {("documents", "date"), ("queries", "split"), ("quarantine", "record_id")} | OPTIONAL


@dataclass(frozen=True)
class Corpus:
    """The corpus stage's tables, with the columns that `COLUMNS` states.

    The row number of `passages` is the passage number; `queries` and `qrels` carry the split, one
    of `SPLITS`, which a query that nobody judged lacks. `answers` is JSON of the strings that
    answer a query, or None; a corpus without any lacks the column.
    """

    documents: pd.DataFrame
    passages: pd.DataFrame
    queries: pd.DataFrame
    qrels: pd.DataFrame

    def judgements(self, split: str) -> Judgements:
        """The judged queries of a split, one of `SPLITS`."""
        rows = self.qrels[self.qrels["split"] == split].sort_values(["query_id", "document_id"])
        relevant: dict[str, dict[str, int]] = {}
        for query, document, relevance in zip(
            rows["query_id"], rows["document_id"], rows["relevance"], strict=True
        ):
            relevant.setdefault(query, {})[document] = int(relevance)
        texts = dict(zip(self.queries["query_id"], self.queries["text"], strict=True))
        answers = _answers(self.queries, relevant)
        queries = {query: texts[query] for query in relevant}
        trained = set(self.qrels.loc[self.qrels["split"] == "train", "document_id"])
        asked = frozenset(query for query, grades in relevant.items() if grades.keys() & trained)
        return Judgements(queries, relevant, "qrels", answers, asked)


@dataclass(frozen=True)
class Judgements:
    """Queries and the documents known to answer them.

    `queries` maps a query id to its text, in ascending order of ids; `qrels` maps a query id to
    {document id: relevance >= 1}; `source` says whose judgements they are, "qrels" for those of the
    corpus; `answers` maps the ids of queries that have any to the strings that answer them.
    """

    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    source: str
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Ids of queries with a relevant document that a judged training query asks for, too.
    asked_in_training: frozenset[str] = frozenset()


def make_table(table: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows as a data frame with the table's columns, in their order and of their types, also
    when there is no row.

    An optional column that no row has a value for is left out.

    >>> make_table("qrels", []).dtypes.astype(str).to_dict()
    {'query_id': 'object', 'document_id': 'object', 'relevance': 'int64', 'split': 'object'}
    """
    optional = [
        name
        for of, name in OPTIONAL
        if of == table and any(row.get(name) is not None for row in rows)
    ]
    types = {
        name: "int64" if kind is int else "object"
        for name, kind in _columns(table, optional).items()
    }
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def write_table(folder: Path, table: str, rows: pd.DataFrame) -> None:
    """Write a table as Parquet with its declared types, so that an empty column has the same type
    as a full one.
    """
    types = {str: pa.string(), int: pa.int64()}
    schema = pa.schema(
        [(name, types[kind]) for name, kind in _columns(table, rows.columns).items()]
    )
    pq.write_table(
        pa.Table.from_pandas(rows, schema, preserve_index=False), folder / f"{table}.parquet"
    )


def _columns(table: str, optional: Collection[str]) -> dict[str, type]:
    """The table's columns, of optional ones those in `optional`."""
    return {
        name: kind
        for name, kind in COLUMNS[table].items()
        if (table, name) not in OPTIONAL or name in optional
    }


def load_corpus(folder: Path) -> Corpus:
    """Read the tables that the corpus stage wrote to `folder`."""
    return Corpus(**{name: pd.read_parquet(folder / f"{name}.parquet") for name in TABLES})


def passage_texts(passages: pd.DataFrame, include_title: bool) -> list[str]:
    """What an encoder sees of each passage: its text, with its document's title before it if
    `include_title`.

    >>> frame = pd.DataFrame({"title": ["numpy.sort", ""], "text": ["Return a copy.", "No title."]})
    >>> passage_texts(frame, include_title=True)
    ['numpy.sort Return a copy.', 'No title.']
    """
    if not include_title:
        return passages["text"].tolist()
    return [
        f"{title} {text}".strip()
        for title, text in zip(passages["title"], passages["text"], strict=True)
    ]


# paragraph, with what parts it from the second
_FIRST = re.compile(r"(.+?)\n[^\S\n]*\n\s*", re.DOTALL)


def find_query_lines(corpus: Corpus) -> dict[str, str]:
    """Document id -> its first paragraph, with the blank lines behind, where that is a query which
    asks for it.

    Such a corpus judges itself: docstrings by their summary lines, reports by their headlines.
    """
    firsts = {
        document: paragraph
        for document, text in zip(
            corpus.documents["document_id"], corpus.documents["text"], strict=True
        )
        if (paragraph := _FIRST.match(text))
    }
    texts = dict(zip(corpus.queries["query_id"], corpus.queries["text"], strict=True))
    return {
        document: firsts[document][0]
        for query, document in zip(
            corpus.qrels["query_id"], corpus.qrels["document_id"], strict=True
        )
        if document in firsts and firsts[document][1].split() == texts[query].split()
    }


def strip_query_lines(corpus: Corpus) -> Corpus:
    """The corpus as it is judged and trained on: documents without the lines of `find_query_lines`; rows
    stay as they are.

    What is built and goes live is whole.
    """
    lines = find_query_lines(corpus)

    def without(table: pd.DataFrame) -> pd.DataFrame:
        pairs = zip(table["document_id"], table["text"], strict=True)
        return table.assign(
            text=[text.removeprefix(lines.get(document, "")) for document, text in pairs]
        )

    return replace(corpus, documents=without(corpus.documents), passages=without(corpus.passages))


def _answers(queries: pd.DataFrame, query_ids: Collection[str]) -> dict[str, list[str]]:
    if "answers" not in queries:
        return {}
    rows = queries[queries["query_id"].isin(list(query_ids))].dropna(subset="answers")
    return {
        query: json.loads(answers)
        for query, answers in zip(rows["query_id"], rows["answers"], strict=True)
    }
