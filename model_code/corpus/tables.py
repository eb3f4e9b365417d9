"""The tables of a corpus as every later stage reads them, and its judged queries."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from model_code.corpus.corpus_queries import collect_known_queries
from model_code.corpus.rows import FROM_FEEDBACK
from model_code.text.documents import Document
from model_code.text.headlines import make_headline
from model_code.text.known_queries import resolve_queries

TABLES = ("documents", "passages", "queries", "qrels")

# The columns of each table, in their order, with their types.
COLUMNS: dict[str, dict[str, type]] = {
    "documents": dict.fromkeys(
        ("document_id", "title", "text", "fields", "date", "content_hash", "queries"), str
    ),
    "passages": {"document_id": str, "ordinal": int, "title": str, "text": str},
    "queries": dict.fromkeys(("query_id", "text", "split", "answers", "not_relevant"), str),
    "qrels": {
        "query_id": str,
        "document_id": str,
        "relevance": int,
        "split": str,
        "origin": str,
    },
    "quarantine": dict.fromkeys(
        ("location", "record_id", "table", "reason", "detail", "excerpt"), str
    ),
    "pseudo_queries": dict.fromkeys(("query_id", "document_id", "text", "kind"), str),
}

# Columns that a table has only if one of its rows has a value.
OPTIONAL = {
    ("documents", "queries"),
    ("queries", "answers"),
    ("queries", "not_relevant"),
    ("qrels", "origin"),
}

# Columns that may hold null.
NULLABLE = {("documents", "date"), ("queries", "split"), ("quarantine", "record_id")} | OPTIONAL

# The first paragraph of a text (group 1), and the blank lines after it.
_FIRST_PARAGRAPH = re.compile(r"(.+?)\n[^\S\n]*\n\s*", re.DOTALL)


@dataclass(frozen=True)
class Corpus:
    """The tables of the corpus stage, with the columns of `COLUMNS`.

    The row number of `passages` is the passage number. The column `split` of `queries` and `qrels`
    is one of `SPLITS`; it is None for a query without judgements. The columns `queries` of
    `documents`, and `answers` and `not_relevant` of `queries`, are JSON lists of texts, or None.
    The column `origin` of `qrels` is `FROM_FEEDBACK` for a pair that comes from feedback alone, and
    None for others. A table lacks such a column if it would hold only None.
    """

    documents: pd.DataFrame
    passages: pd.DataFrame
    queries: pd.DataFrame
    qrels: pd.DataFrame

    def judgements(self, split: str) -> Judgements:
        """Return the judged queries of a split, one of `SPLITS`."""
        in_split = self.qrels["split"] == split
        rows = self.qrels[in_split].sort_values(["query_id", "document_id"])
        qrels: dict[str, dict[str, int]] = {}
        for query_id, document_id, relevance in zip(
            rows["query_id"], rows["document_id"], rows["relevance"], strict=True
        ):
            qrels.setdefault(query_id, {})[document_id] = int(relevance)

        texts = _query_texts(self)
        queries = {query_id: texts[query_id] for query_id in qrels}

        return Judgements(
            queries,
            qrels,
            source="qrels",
            answers=_read_lists(self.queries, "answers", qrels),
            with_known=find_queries_with_known(qrels, self.documents_with_known_queries),
            not_relevant=_read_lists(self.queries, "not_relevant", qrels),
        )

    @cached_property
    def documents_with_known_queries(self) -> frozenset[str]:
        """Ids of the documents with known queries: queries that they are known to answer.

        Known queries come from judgements for training and from rows. A query that was judged not
        relevant for its document is not known, and a query of dev, gate or test never is. Thumbs
        up in the qrels make no query known, because the build does not index their queries.
        """
        documents: list[Document] = []
        if "queries" in self.documents:
            rows = self.documents[self.documents["queries"].notna()]
            for document_id, text in zip(rows["document_id"], rows["queries"], strict=True):
                row_queries = tuple(json.loads(text))
                documents.append(Document(document_id, document_id, "", queries=row_queries))

        grades: dict[tuple[str, str], int] = {}
        splits: dict[str, str] = {}
        columns = ("query_id", "document_id", "relevance", "split")
        for query_id, document_id, relevance, split in zip(
            *(self.qrels[column] for column in columns), strict=True
        ):
            grades[query_id, document_id] = relevance
            splits[query_id] = split
        not_relevant = _read_lists(self.queries, "not_relevant", set(self.queries["query_id"]))
        for query_id, document_ids in not_relevant.items():
            for document_id in document_ids:
                grades[query_id, document_id] = 0

        from_feedback = find_pairs_from_feedback(self.qrels)
        known = collect_known_queries(documents, _query_texts(self), splits, grades, from_feedback)
        return frozenset(query.document_id for query in resolve_queries(known.queries))

    @cached_property
    def typed_queries(self) -> frozenset[str]:
        """Ids of the queries that are judged by feedback alone; see `find_typed_queries`."""
        return find_typed_queries(self.qrels)


@dataclass(frozen=True)
class Judgements:
    """Queries and the documents that are known to answer them.

    Attributes:
        queries: Text by query id, in ascending order of ids.
        qrels: {document id: relevance of at least 1} by query id.
        source: Origin of the judgements; "qrels" for the judgements of the corpus.
        answers: The strings that answer a query, by the ids of the queries that have any.
        with_known: Ids of the queries that have a relevant document with a known query, which is
            a query that the document is known to answer.
        not_relevant: Ids of the documents that were judged not relevant, by the ids of the queries
            that have any.
    """

    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    source: str
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    with_known: frozenset[str] = frozenset()
    not_relevant: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def graded(self) -> dict[str, dict[str, int]]:
        """Return the qrels, and relevance 0 for documents that were judged not relevant.

        Only the metrics judged@k and bpref need the entries with relevance 0.

        Returns:
            {document id: relevance} by query id.
        """
        graded: dict[str, dict[str, int]] = {}
        for query_id, relevant in self.qrels.items():
            grades = dict.fromkeys(self.not_relevant.get(query_id, ()), 0)
            grades.update(relevant)
            graded[query_id] = grades
        return graded


def find_pairs_from_feedback(qrels: pd.DataFrame) -> frozenset[tuple[str, str]]:
    """Return the pairs of query id and document id that come from feedback alone."""
    if "origin" not in qrels:
        return frozenset()
    rows = qrels[qrels["origin"] == FROM_FEEDBACK]
    return frozenset(zip(rows["query_id"], rows["document_id"], strict=True))


def find_typed_queries(qrels: pd.DataFrame) -> frozenset[str]:
    """Return the ids of the queries that are judged by feedback alone.

    Users of the search typed their texts, which can be personal data. So the texts are trained on
    and evaluated, and shown nowhere.
    """
    if "origin" not in qrels:
        return frozenset()
    is_from_feedback = qrels["origin"] == FROM_FEEDBACK
    judged_by_others = set(qrels["query_id"][~is_from_feedback])
    return frozenset(qrels["query_id"][is_from_feedback]) - judged_by_others


def read_public_queries(folder: Path) -> pd.DataFrame:
    """Return the table `queries` of a corpus without the texts that users of the search typed."""
    queries = pd.read_parquet(folder / "queries.parquet")
    qrels = pd.read_parquet(folder / "qrels.parquet")
    return queries[~queries["query_id"].isin(find_typed_queries(qrels))]


def find_queries_with_known(
    qrels: Mapping[str, Mapping[str, int]], documents: Collection[str]
) -> frozenset[str]:
    """Return the ids of the queries with a relevant document that has known queries.

    Args:
        qrels: {document id: relevance} by query id.
        documents: Ids of the documents with known queries.
    """
    ids = frozenset(documents)
    found: set[str] = set()
    for query_id, grades in qrels.items():
        relevant = {document_id for document_id, grade in grades.items() if grade > 0}
        if not ids.isdisjoint(relevant):
            found.add(query_id)
    return frozenset(found)


def make_table(table: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a data frame with the declared columns of a table, in order and by type.

    A table without rows has the same columns. An optional column without values is left out.

    Args:
        table: A key of `COLUMNS`.
        rows: Rows by column name. Other keys are ignored.

    >>> make_table("qrels", []).dtypes.astype(str).to_dict()
    {'query_id': 'object', 'document_id': 'object', 'relevance': 'int64', 'split': 'object'}
    """
    # The optional columns that have a value in at least one row.
    filled: list[str] = []
    for optional_table, name in OPTIONAL:
        if optional_table == table and any(row.get(name) is not None for row in rows):
            filled.append(name)

    types: dict[str, str] = {}
    for name, kind in _columns_of(table, filled).items():
        types[name] = "int64" if kind is int else "object"
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def write_table(folder: Path, table: str, rows: pd.DataFrame) -> None:
    """Write a table as Parquet with its declared types.

    The declared types also apply to a column without values, whose type pyarrow could not infer.

    Args:
        folder: Folder to write to.
        table: A key of `COLUMNS`, which is the name of the file.
        rows: The table.
    """
    arrow_types = {str: pa.string(), int: pa.int64()}
    columns = _columns_of(table, rows.columns)
    schema = pa.schema([(name, arrow_types[kind]) for name, kind in columns.items()])
    arrow_table = pa.Table.from_pandas(rows, schema, preserve_index=False)
    pq.write_table(arrow_table, folder / f"{table}.parquet")


def _columns_of(table: str, optional: Collection[str]) -> dict[str, type]:
    """Return the type of each column of a table, with the optional columns in `optional`."""
    columns: dict[str, type] = {}
    for name, kind in COLUMNS[table].items():
        if (table, name) not in OPTIONAL or name in optional:
            columns[name] = kind
    return columns


def load_corpus(folder: Path) -> Corpus:
    """Read the tables that the corpus stage wrote to a folder."""
    tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in TABLES}
    return Corpus(**tables)


def passage_texts(passages: pd.DataFrame, include_title: bool) -> list[str]:
    """Return the text of each passage in the form that an encoder reads.

    Args:
        passages: The table of passages.
        include_title: Put the title of the document before the text.

    >>> frame = pd.DataFrame({"title": ["numpy.sort", ""], "text": ["Return a copy.", "No title."]})
    >>> passage_texts(frame, include_title=True)
    ['numpy.sort Return a copy.', 'No title.']
    """
    if not include_title:
        return passages["text"].tolist()
    pairs = zip(passages["title"], passages["text"], strict=True)
    return [f"{title} {text}".strip() for title, text in pairs]


def headlines_of(documents: pd.DataFrame) -> dict[str, str]:
    """Return the headline of each document of the table, by document id.

    A headline is the title in plain words, with the first sentence.
    """
    rows = zip(documents["document_id"], documents["title"], documents["text"], strict=True)
    return {document_id: make_headline(title, text) for document_id, title, text in rows}


def find_query_lines(corpus: Corpus) -> dict[str, str]:
    """Find the documents whose first paragraph is a query that is judged for them.

    Some corpora take their queries from their own documents. Examples are summary lines of
    docstrings, and headlines of reports. Such a query would find its document trivially.

    Returns:
        The first paragraph and the blank lines after it, by document id.
    """
    # The first paragraph of each document that has more than one.
    paragraphs: dict[str, re.Match[str]] = {}
    documents = corpus.documents
    for document_id, text in zip(documents["document_id"], documents["text"], strict=True):
        match = _FIRST_PARAGRAPH.match(text)
        if match:
            paragraphs[document_id] = match

    query_texts = _query_texts(corpus)
    query_lines: dict[str, str] = {}
    qrels = corpus.qrels
    for query_id, document_id in zip(qrels["query_id"], qrels["document_id"], strict=True):
        paragraph = paragraphs.get(document_id)
        if paragraph is not None and paragraph[1].split() == query_texts[query_id].split():
            query_lines[document_id] = paragraph[0]
    return query_lines


def strip_query_lines(corpus: Corpus) -> Corpus:
    """Return the corpus without the query lines that `find_query_lines` finds.

    Training and evaluation use this corpus. The live collection searches the whole texts. The order
    of the rows does not change.
    """
    query_lines = find_query_lines(corpus)

    def strip(table: pd.DataFrame) -> pd.DataFrame:
        """Return a table of documents or passages without the query line of each document."""
        texts: list[str] = []
        for document_id, text in zip(table["document_id"], table["text"], strict=True):
            texts.append(text.removeprefix(query_lines.get(document_id, "")))
        return table.assign(text=texts)

    return replace(corpus, documents=strip(corpus.documents), passages=strip(corpus.passages))


def _query_texts(corpus: Corpus) -> dict[str, str]:
    """Return the text of each query by its id."""
    return dict(zip(corpus.queries["query_id"], corpus.queries["text"], strict=True))


def _read_lists(
    queries: pd.DataFrame, column: str, query_ids: Collection[str]
) -> dict[str, list[str]]:
    """Return the texts in an optional column, by the id of each given query that has any."""
    if column not in queries:
        return {}
    rows = queries[queries["query_id"].isin(list(query_ids))].dropna(subset=column)
    lists: dict[str, list[str]] = {}
    for query_id, text in zip(rows["query_id"], rows[column], strict=True):
        lists[query_id] = json.loads(text)
    return lists
