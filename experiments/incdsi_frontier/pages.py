"""Read a judged collection for IncDSI's protocol: old documents, tuning documents, and new ones.

By date: documents up to a day are old. The hash of the id selects a tenth of the later ones for
tuning, and the rest is added. By share: the hash of the id selects 90 % as old, 9 % to add and 1 %
for tuning, as published.
"""

from __future__ import annotations

import zlib
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

# By date, one in so many new documents is for tuning.
TUNING_PART = 10
OLD, TUNING, NEW = "old", "tuning", "new"
# Parts in a split by share.
NEW_SHARE, TUNING_SHARE = 0.09, 0.01
# Rows of each document's queries.
Asked = Mapping[str, Sequence[int]]


@dataclass(frozen=True, eq=False)
class Pages:
    """Documents, old ones first, with their parts and queries.

    asked: Rows of the queries of each document, by split.
    """

    ids: list[str]
    texts: list[str]
    parts: list[str]
    queries: list[str]
    asked: Mapping[str, Asked]
    # Queries made from the texts. Their rows follow the rows of `queries`.
    written: Sequence[str] = ()

    @classmethod
    def read(
        cls,
        folder: Path,
        new_from: str | None = None,
        qrels: str = "qrels",
        documents: int | None = None,
    ) -> Pages:
        """Read a BEIR folder, split by the date `new_from`, or by share without a date.

        documents: Number of documents to read; None reads all. Documents of one title are kept
        together, so the last title may add more.

        Raises SettingsError unless every part has a document.
        """
        source = open_source(
            CorpusSettings(source="beir", path=folder.name, qrels=qrels), folder.parent
        )
        rows = _whole_titles([line.values for line in source.rows("documents")], documents)
        parts = {one["id"]: _part(one, new_from) for one in rows}
        for part in (OLD, TUNING, NEW):
            where = (
                f"a date on that side of {new_from}"
                if new_from
                else f"its share of {len(rows)} documents"
            )
            require(part in parts.values(), f"{folder}: no document is {part}: none has {where}")
        rows.sort(key=lambda one: (parts[one["id"]] != OLD, str(one.get("date", ""))))
        ids = [one["id"] for one in rows]
        texts = [f"{one['title']} {one['text']}".strip() for one in rows]
        return cls(ids, texts, [parts[one] for one in ids], *_judged(source, set(ids)))

    @property
    def old(self) -> int:
        """Number of old documents; their rows are the first ones."""
        return self.parts.count(OLD)

    def rows(self, part: str) -> list[int]:
        """Return the rows of the documents of `part`."""
        return [row for row, own in enumerate(self.parts) if own == part]

    def of(self, ids: Sequence[str], *splits: str) -> tuple[np.ndarray, list[str]]:
        """Return the rows (m) of the queries of `ids` in `splits`, and each one's document (m)."""
        found = [
            (row, one)
            for split in splits
            for one in ids
            for row in self.asked.get(split, {}).get(one, ())
        ]
        return np.array([row for row, _ in found], np.int64), [one for _, one in found]

    def with_written(self, spans: int = 4) -> Pages:
        """Return the same documents with parts of their texts as train queries.

        This is the information about a document without queries.
        """
        parts = [constraint_texts("", text, spans) for text in self.texts]
        ends = np.cumsum([len(own) for own in parts]) + len(self.queries)
        train = {
            key: range(end - len(own), end)
            for key, own, end in zip(self.ids, parts, ends.tolist(), strict=True)
        }
        return replace(
            self,
            asked={**self.asked, "train": train},
            written=[one for own in parts for one in own],
        )


def _part(document: Mapping[str, Any], new_from: str | None) -> str:
    if new_from is None:
        place = position(document["id"], 0, "parts")
        return NEW if place < NEW_SHARE else TUNING if place < NEW_SHARE + TUNING_SHARE else OLD
    if str(document.get("date", "")) < new_from:
        return OLD
    return TUNING if zlib.crc32(document["id"].encode()) % TUNING_PART == 0 else NEW


def _whole_titles(documents: list[dict[str, Any]], count: int | None) -> list[dict[str, Any]]:
    """Return the documents of the first titles that together have `count` documents.

    Titles are in the order of their hashes. None returns all documents.
    """
    titles: list[str] = [one["title"] for one in documents]
    order = sorted(set(titles), key=lambda title: position(title, 0, "titles"))
    ends = np.cumsum([titles.count(title) for title in order])
    kept = set(order if count is None else order[: int(np.searchsorted(ends, count)) + 1])
    return [one for one in documents if one["title"] in kept]


def _judged(source: Source, ids: set[str]) -> tuple[list[str], dict[str, dict[str, list[int]]]]:
    """Return the queries that are judged for one of `ids`.

    Also return their numbers by split and document.
    """
    texts = {line.values["id"]: line.values["text"] for line in source.rows("queries")}
    judged = [line.values for line in source.rows("qrels")]
    kept = {one["query_id"] for one in judged if one["document_id"] in ids}
    number = {name: row for row, name in enumerate(name for name in texts if name in kept)}
    asked: dict[str, dict[str, list[int]]] = {}
    for one in judged:
        if one["document_id"] in ids:
            asked.setdefault(one["split"], {}).setdefault(one["document_id"], []).append(
                number[one["query_id"]]
            )
    return [texts[name] for name in number], asked
