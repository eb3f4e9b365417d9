"""The tables of a corpus as every later stage reads them, and the judged queries that an evaluation is made on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

TABLES = ("documents", "passages", "queries", "qrels")
COLUMNS: dict[str, dict[str, type]] = {
    "documents": dict.fromkeys(("document_id", "title", "text", "fields", "date", "content_hash"), str),
    "passages": {"document_id": str, "ordinal": int, "title": str, "text": str},
    "queries": dict.fromkeys(("query_id", "text", "split"), str),
    "qrels": {"query_id": str, "document_id": str, "relevance": int, "split": str},
    "quarantine": dict.fromkeys(("location", "record_id", "table", "reason", "detail", "excerpt"), str),
    "pseudo_queries": dict.fromkeys(("query_id", "document_id", "text", "kind"), str),
}
NULLABLE = {("documents", "date"), ("queries", "split"), ("quarantine", "record_id")}


@dataclass(frozen=True)
class Corpus:
    """The corpus stage's tables, with the columns that `contracts.py` states.

    The row number of `passages` is the passage number; `queries` and `qrels` carry the split, one of `SPLITS`, which
    a query that nobody judged lacks.
    """

    documents: pd.DataFrame
    passages: pd.DataFrame
    queries: pd.DataFrame
    qrels: pd.DataFrame


@dataclass(frozen=True)
class Judgements:
    """Queries and the documents known to answer them.

    `queries` maps a query id to its text, in ascending order of ids; `qrels` maps a query id to {document id:
    relevance >= 1}; `source` says whose judgements they are, "qrels" for those of the corpus.
    """

    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    source: str


def frame(table: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows as a data frame with the table's columns, in their order and of their types, also when there is no row.

    >>> frame("qrels", []).dtypes.astype(str).to_dict()
    {'query_id': 'object', 'document_id': 'object', 'relevance': 'int64', 'split': 'object'}
    """
    types = {name: "int64" if kind is int else "object" for name, kind in COLUMNS[table].items()}
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def write_table(folder: Path, table: str, rows: pd.DataFrame) -> None:
    """Write a table as Parquet with its declared types, so that an empty column has the same type as a full one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {str: pa.string(), int: pa.int64()}
    schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS[table].items()])
    pq.write_table(pa.Table.from_pandas(rows, schema, preserve_index=False), folder / f"{table}.parquet")


def load_corpus(folder: Path) -> Corpus:
    """Read the tables that the corpus stage wrote to `folder`."""
    return Corpus(**{name: pd.read_parquet(folder / f"{name}.parquet") for name in TABLES})


def passage_texts(passages: pd.DataFrame, include_title: bool) -> list[str]:
    """What an encoder sees of each passage: its text, with its document's title before it if `include_title`.

    >>> frame = pd.DataFrame({"title": ["numpy.sort", ""], "text": ["Return a copy.", "No title."]})
    >>> passage_texts(frame, include_title=True)
    ['numpy.sort Return a copy.', 'No title.']
    """
    if not include_title:
        return passages["text"].tolist()
    return [f"{title} {text}".strip() for title, text in zip(passages["title"], passages["text"], strict=True)]


_FIRST = re.compile(r"(.+?)\n[^\S\n]*\n\s*", re.DOTALL)  # paragraph, with what parts it from the second


def own_queries(corpus: Corpus) -> dict[str, str]:
    """Document id -> its first paragraph, with the blank lines behind, where that is a query which asks for it.

    Such a corpus judges itself: docstrings by their summary lines, reports by their headlines.
    """
    firsts = {
        document: found
        for document, text in zip(corpus.documents["document_id"], corpus.documents["text"], strict=True)
        if (found := _FIRST.match(text))
    }
    texts = dict(zip(corpus.queries["query_id"], corpus.queries["text"], strict=True))
    return {
        document: firsts[document][0]
        for query, document in zip(corpus.qrels["query_id"], corpus.qrels["document_id"], strict=True)
        if document in firsts and firsts[document][1].split() == texts[query].split()
    }


def judged_corpus(corpus: Corpus) -> Corpus:
    """The corpus as it is judged and trained on: documents without the lines of `own_queries`; rows stay as they are.

    What is built and goes live is whole.
    """
    lines = own_queries(corpus)

    def without(table: pd.DataFrame) -> pd.DataFrame:
        pairs = zip(table["document_id"], table["text"], strict=True)
        return table.assign(text=[text.removeprefix(lines.get(document, "")) for document, text in pairs])

    return replace(corpus, documents=without(corpus.documents), passages=without(corpus.passages))


def judged(corpus: Corpus, split: str) -> Judgements:
    """The judged queries of a split, one of `SPLITS`."""
    rows = corpus.qrels[corpus.qrels["split"] == split].sort_values(["query_id", "document_id"])
    relevant: dict[str, dict[str, int]] = {}
    for query, document, relevance in zip(rows["query_id"], rows["document_id"], rows["relevance"], strict=True):
        relevant.setdefault(query, {})[document] = int(relevance)
    texts = dict(zip(corpus.queries["query_id"], corpus.queries["text"], strict=True))
    return Judgements({query: texts[query] for query in relevant}, relevant, "qrels")
