"""Read a judged collection, and divide it into old documents, tuning documents and new ones.

There are two ways to divide it. By date, documents before a day are old. Of the later documents, a
tenth is for tuning, and the others are new. By share, 90 % of the documents are old, 9 % new and
1 % for tuning, as in the paper. The hash of its id decides about each document.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import Source, open_source
from model_code.corpus.splits import position
from model_code.incdsi.store import constraint_texts
from model_code.settings import require

# In a division by date, one of this many later documents is for tuning.
LATER_PER_TUNING = 10
# Names of the parts of a collection.
OLD = "old"
TUNING = "tuning"
NEW = "new"
# Shares of the parts in a division by share. The other documents are old.
NEW_SHARE = 0.09
TUNING_SHARE = 0.01
# Rows of the queries of each document, by its id.
QueryRows = Mapping[str, Sequence[int]]


@dataclass(frozen=True, eq=False)
class Pages:
    """A collection of documents with their parts and queries. Old documents come first.

    Attributes:
        ids: Ids of the documents.
        texts: Titles and texts of the documents.
        parts: Part of each document: "old", "tuning" or "new".
        queries: Texts of the queries.
        query_rows: Rows of the queries of each document, by split.
        text_parts: Parts of texts that are used as queries. Their rows follow those of `queries`.
    """

    ids: list[str]
    texts: list[str]
    parts: list[str]
    queries: list[str]
    query_rows: Mapping[str, QueryRows]
    text_parts: Sequence[str] = ()

    @classmethod
    def read(
        cls,
        folder: Path,
        new_from: str | None = None,
        qrels: str = "qrels",
        documents: int | None = None,
    ) -> Pages:
        """Read a BEIR folder, and divide its documents by date or by share.

        Args:
            folder: Folder of the data set.
            new_from: First day whose documents are not old. None: divide by share.
            qrels: Name of the folder of judgements.
            documents: Number of documents to read; None: all. A few more are read if the last title
                belongs to several documents.

        Raises:
            SettingsError: If a part has no document.
        """
        settings = CorpusSettings(source="beir", path=folder.name, qrels=qrels)
        source = open_source(settings, folder.parent)
        rows = [line.values for line in source.rows("documents")]
        if documents is not None:
            rows = _select_titles(rows, documents)

        parts = {row["id"]: _choose_part(row, new_from) for row in rows}
        if new_from:
            condition = f"a date on that side of {new_from}"
        else:
            condition = f"its share of {len(rows)} documents"
        for part in (OLD, TUNING, NEW):
            has_part = part in parts.values()
            require(has_part, f"{folder}: no document is {part}: none has {condition}")

        def sort_key(row: Mapping[str, Any]) -> tuple[bool, str]:
            """Return a key that puts old documents first, then orders by date."""
            return parts[row["id"]] != OLD, str(row.get("date", ""))

        rows.sort(key=sort_key)
        ids = [row["id"] for row in rows]
        texts = [f"{row['title']} {row['text']}".strip() for row in rows]
        queries, asked = _read_judged_queries(source, set(ids))
        return cls(ids, texts, [parts[document_id] for document_id in ids], queries, asked)

    @property
    def old(self) -> int:
        """Number of old documents; their rows are the first ones."""
        return self.parts.count(OLD)

    def rows(self, part: str) -> list[int]:
        """Return the rows of the documents of `part`."""
        return [row for row, document_part in enumerate(self.parts) if document_part == part]

    def queries_for(self, ids: Sequence[str], *splits: str) -> tuple[np.ndarray, list[str]]:
        """Return the queries of the given documents.

        Args:
            ids: Ids of the documents.
            *splits: Splits of the queries.

        Returns:
            Rows of the queries (m), and the id of each query's document (m).
        """
        query_rows: list[int] = []
        documents: list[str] = []
        for split in splits:
            queries_of_document = self.query_rows.get(split, {})
            for document_id in ids:
                rows = queries_of_document.get(document_id, ())
                query_rows.extend(rows)
                documents.extend([document_id] * len(rows))
        return np.array(query_rows, np.int64), documents

    def with_text_parts(self, spans: int = 4) -> Pages:
        """Return the same documents, with parts of their texts in place of train queries.

        A live collection represents documents without known queries in this way.

        Args:
            spans: Largest number of parts of a text, besides its title and first sentence.
        """
        text_parts: list[str] = []
        train = {}
        for document_id, text in zip(self.ids, self.texts, strict=True):
            first_row = len(self.queries) + len(text_parts)
            text_parts.extend(constraint_texts("", text, spans))
            train[document_id] = range(first_row, len(self.queries) + len(text_parts))
        query_rows = {**self.query_rows, "train": train}
        return replace(self, query_rows=query_rows, text_parts=text_parts)


def _choose_part(document: Mapping[str, Any], new_from: str | None) -> str:
    """Return the part of the collection that a document belongs to: old, tuning or new.

    Args:
        document: Row of the document.
        new_from: First day whose documents are not old. None: divide by share.
    """
    if new_from is None:
        share = position(document["id"], 0, "parts")
        if share < NEW_SHARE:
            return NEW
        if share < NEW_SHARE + TUNING_SHARE:
            return TUNING
        return OLD

    if str(document.get("date", "")) < new_from:
        return OLD
    if zlib.crc32(document["id"].encode()) % LATER_PER_TUNING == 0:
        return TUNING
    return NEW


def _select_titles(documents: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the documents of the first titles that together have at least `count` documents.

    Titles are in the order of their hashes.
    """

    def hash_position(title: str) -> float:
        return position(title, 0, "titles")

    documents_per_title = Counter(document["title"] for document in documents)
    selected_titles = set()
    selected_documents = 0
    for title in sorted(documents_per_title, key=hash_position):
        selected_titles.add(title)
        selected_documents += documents_per_title[title]
        if selected_documents >= count:
            break
    return [document for document in documents if document["title"] in selected_titles]


def _read_judged_queries(
    source: Source, ids: set[str]
) -> tuple[list[str], dict[str, dict[str, list[int]]]]:
    """Read the queries that are judged for some documents.

    Returns:
        The texts of the queries, and their rows by split and document id.
    """
    texts = {line.values["id"]: line.values["text"] for line in source.rows("queries")}
    judgements = []
    for line in source.rows("qrels"):
        if line.values["document_id"] in ids:
            judgements.append(line.values)

    judged_queries = {judgement["query_id"] for judgement in judgements}
    query_ids = [query_id for query_id in texts if query_id in judged_queries]
    query_rows = {query_id: row for row, query_id in enumerate(query_ids)}
    asked: dict[str, dict[str, list[int]]] = {}
    for judgement in judgements:
        rows_of_document = asked.setdefault(judgement["split"], {})
        rows = rows_of_document.setdefault(judgement["document_id"], [])
        rows.append(query_rows[judgement["query_id"]])
    return [texts[query_id] for query_id in query_ids], asked
