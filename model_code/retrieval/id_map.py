"""Which document each row of vectors belongs to. This map is the only owner of that knowledge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple, NoReturn, Self

import numpy as np

from model_code.errors import FreshetError
from model_code.retrieval.protocol import Ranking
from model_code.retrieval.top_k import top_k, top_k_by_place


class RowGroups(NamedTuple):
    """The rows of n documents, one document after the other; where in them each one's begin,
    `starts` (n,); and at which of these `group_index` (n,) the documents are that were asked for, in
    their order.
    """

    rows: np.ndarray
    starts: np.ndarray
    group_index: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], group_index: np.ndarray) -> Self:
        """Of the rows of each document."""
        starts = np.cumsum([0, *map(len, rows)])[:-1]
        return cls(np.fromiter(chain.from_iterable(rows), np.int64), starts, group_index)

    def best(self, scores: np.ndarray) -> np.ndarray:
        """The highest of the `scores` (r,) of each document's rows (n,), in the order in which it
        was asked.

        >>> IdMap(["a", "b", "a"]).grouped(["b", "a"]).best(np.array([0.2, 0.9, 0.5])).tolist()
        [0.2, 0.9]
        """
        return (
            np.maximum.reduceat(scores, self.starts)[self.group_index]
            if len(self.starts)
            else scores[:0]
        )


class IdMap:
    """An immutable list of document ids, one per row; rows of one document are its passages, in
    order.

    >>> IdMap(["a", "b", "a"]).rows_of(["a"]).tolist()
    [0, 2]
    """

    removed_rows = np.empty(0, np.int64)  # see `IdMaps`

    def __init__(self, document_ids: Iterable[str]) -> None:
        self.document_ids = list(document_ids)

    def __len__(self) -> int:
        """Number of rows, that is of passages."""
        return len(self.document_ids)

    @cached_property
    def rows_by_document(self) -> dict[str, list[int]]:
        """The rows of each document, ascending."""
        rows: dict[str, list[int]] = {}
        for row, document in enumerate(self.document_ids):
            rows.setdefault(document, []).append(row)
        return rows

    @property
    def documents(self) -> int:
        """Number of different documents."""
        return len(self.rows_by_document)

    @cached_property
    def _descending(self) -> tuple[list[str], np.ndarray]:
        """The documents by descending id, and where among them each row's is (n,)."""
        documents = sorted(self.rows_by_document, reverse=True)
        number = {document: place for place, document in enumerate(documents)}
        return documents, np.fromiter(
            map(number.__getitem__, self.document_ids), np.uint64, len(self)
        )

    def best(self, scores: np.ndarray, k: int, rows: np.ndarray | None = None) -> Ranking:
        """The k best documents by the `scores` (n,) of all rows, or those (p,) of `rows` (p,), that
        are above 0.
        """
        documents, places = self._descending
        repeated = len(documents) < len(self)
        return top_k_by_place(
            scores, documents, k, places if rows is None else places[rows], repeated
        )

    def __contains__(self, document_id: object) -> bool:
        """Whether any row belongs to the document."""
        return document_id in self.rows_by_document

    def rows_of(self, document_ids: Iterable[str]) -> np.ndarray:
        """The rows of these documents, ascending; FreshetError if one is unknown."""
        documents = set(document_ids)
        if not documents <= self.rows_by_document.keys():
            self.require_known(documents)
        return np.array(
            sorted(row for document in documents for row in self.rows_by_document[document]),
            dtype=np.int64,
        )

    def grouped(self, document_ids: Sequence[str]) -> RowGroups:
        """The rows of different documents; FreshetError if one is unknown.

        >>> IdMap(["a", "b", "a"]).grouped(["b", "a"])
        RowGroups(rows=array([1, 0, 2]), starts=array([0, 1]), group_index=array([0, 1]))
        """
        self.require_known(document_ids)
        return RowGroups.of(
            [self.rows_by_document[document] for document in document_ids],
            np.arange(len(document_ids)),
        )

    def among(self, document_ids: Set[str]) -> set[str]:
        """Those of the documents that have a row."""
        return self.rows_by_document.keys() & document_ids

    def require_known(self, document_ids: Iterable[str]) -> None:
        """FreshetError if one of the documents has no row."""
        if unknown := set(document_ids).difference(self.rows_by_document):
            _refuse(unknown)


class IdMaps:
    """Several maps, one after the other, each without documents that are removed; no other document
    is in two of them.

    >>> maps = IdMaps([(IdMap(["a", "b", "a"]), frozenset("b")), (IdMap(["b"]), frozenset())])
    >>> maps.grouped(["b", "a"]), maps.removed_rows.tolist()
    (RowGroups(rows=array([0, 2, 3]), starts=array([0, 2]), group_index=array([1, 0])), [1])
    """

    def __init__(self, maps: Sequence[tuple[IdMap, frozenset[str]]]) -> None:
        self.maps = maps
        self.first = [0, *accumulate(len(ids) for ids, _ in maps)]

    def __len__(self) -> int:
        """Number of rows, those of removed documents among them."""
        return self.first[-1]

    @cached_property
    def documents(self) -> int:
        """Number of different documents that are left."""
        return sum(ids.documents - len(removed) for ids, removed in self.maps)

    @cached_property
    def document_ids(self) -> list[str]:
        """The document of each row."""
        return list(chain.from_iterable(ids.document_ids for ids, _ in self.maps))

    @cached_property
    def removed_rows(self) -> np.ndarray:
        """The rows of removed documents, ascending."""
        maps = zip(self.maps, self.first, strict=False)
        return np.concatenate([ids.rows_of(removed) + first for (ids, removed), first in maps])

    def rows_of(self, document_ids: Iterable[str]) -> np.ndarray:
        """As of one map."""
        return np.sort(self.grouped(list(set(document_ids))).rows)

    def grouped(self, document_ids: Sequence[str]) -> RowGroups:
        """As of one map; the rows of a map follow each other."""
        missing, rows, number = list(document_ids), list[list[int]](), dict[str, int]()
        for (ids, removed), first in zip(self.maps, self.first, strict=False):
            candidates, missing = missing, []
            for document in candidates:
                if (local := ids.rows_by_document.get(document)) is None or document in removed:
                    missing.append(document)
                else:
                    number[document] = len(rows)
                    rows.append([first + row for row in local] if first else local)
        if missing:
            _refuse(set(missing))
        return RowGroups.of(rows, np.fromiter(map(number.__getitem__, document_ids), np.int64))

    def best(self, scores: np.ndarray, k: int, rows: np.ndarray | None = None) -> Ranking:
        """As of one map."""
        if len(self.maps) == 1:
            return self.maps[0][0].best(scores, k, rows)
        hits = np.flatnonzero(scores > 0)
        return top_k(scores[hits], self.document_ids, k, hits if rows is None else rows[hits])

    def require_known(self, document_ids: Iterable[str]) -> None:
        """As of one map."""
        unknown = set(document_ids)
        for ids, removed in self.maps:
            unknown -= ids.among(unknown) - removed
        if unknown:
            _refuse(unknown)


def _refuse(unknown: Set[str]) -> NoReturn:
    raise FreshetError(
        f"the index holds no document {min(unknown)!r} ({len(unknown)} unknown in all)"
    )


def number_on_lookup() -> defaultdict[str, int]:
    """Numbers words in the order of their first look-up."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    return numbers
