"""A judged collection as IncDSI's protocol reads it: documents that are there at first, to tune on,
and to be added.

By date: documents up to a day are old, a tenth of the later ones, by the hash of their id, is for
tuning, and the rest is added. By share: 90 % are old, 9 % are added and 1 % is for tuning, by the
hash of their id, as published.
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

TUNING_PART = 10  # by date, one in so many new documents is for tuning
OLD, TUNING, NEW = "old", "tuning", "new"
NEW_SHARE, TUNING_SHARE = 0.09, 0.01  # by share
Asked = Mapping[str, Sequence[int]]  # the rows of a document's queries


@dataclass(frozen=True, eq=False)
class Pages:
    """Documents, old ones first, the part of each, their queries, and by split which of these ask
    for which.
    """

    ids: list[str]
    texts: list[str]
    parts: list[str]
    queries: list[str]
    asked: Mapping[str, Asked]
    written: Sequence[str] = ()  # queries made of the texts, whose rows follow those of `queries`

    @classmethod
    def read(
        cls,
        folder: Path,
        new_from: str | None = None,
        qrels: str = "qrels",
        documents: int | None = None,
    ) -> Pages:
        """Read a BEIR folder, split by the date `new_from`, or without one by share.

        documents: read only as many, and the rest of the last one's title: documents of a title
        come whole. Raises SettingsError unless there is a document in every part.
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
        """How many documents are there at first: the rows below."""
        return self.parts.count(OLD)

    def rows(self, part: str) -> list[int]:
        """The rows of the documents of `part`."""
        return [row for row, own in enumerate(self.parts) if own == part]

    def of(self, ids: Sequence[str], *splits: str) -> tuple[np.ndarray, list[str]]:
        """Rows (m) of the queries of `ids` in `splits`, and the document of each (m)."""
        found = [
            (row, one)
            for split in splits
            for one in ids
            for row in self.asked.get(split, {}).get(one, ())
        ]
        return np.array([row for row, _ in found], np.int64), [one for _, one in found]

    def with_written(self, spans: int = 4) -> Pages:
        """The same documents, whose train queries are parts of their texts: what is known where
        nobody has asked.
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
    """The documents of the first titles, in the order of their hashes, that have `count` between
    them; None: all.
    """
    titles: list[str] = [one["title"] for one in documents]
    order = sorted(set(titles), key=lambda title: position(title, 0, "titles"))
    ends = np.cumsum([titles.count(title) for title in order])
    kept = set(order if count is None else order[: int(np.searchsorted(ends, count)) + 1])
    return [one for one in documents if one["title"] in kept]


def _judged(source: Source, ids: set[str]) -> tuple[list[str], dict[str, dict[str, list[int]]]]:
    """The queries that are judged for one of `ids`, and by split and document the numbers of its
    queries.
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
