"""Maps between the rows of an index and documents.

A row holds one passage, or one of a passage's vectors. Only this module knows which rows a document
has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple, NoReturn, Self
from weakref import WeakValueDictionary

import numpy as np

from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.retrieval.protocol import Ranking
from model_code.retrieval.top_k import top_k, top_k_positive


class RowGroups(NamedTuple):
    """The rows of n documents, grouped by document.

    Attributes:
        rows: Rows of the documents, one group after the other, shape (r,).
        starts: Start of each group in `rows`, shape (n,).
        group_index: Number of the group of each requested document, shape (n,). Groups may be in
            another order than the request.
    """

    rows: np.ndarray
    starts: np.ndarray
    group_index: np.ndarray

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]], group_index: np.ndarray) -> Self:
        """Build from a list of rows per group, and the group of each requested document."""
        starts = np.cumsum([0, *map(len, groups)])[:-1]
        rows = np.fromiter(chain.from_iterable(groups), np.int64)
        return cls(rows, starts, group_index)

    def max_scores(self, scores: np.ndarray) -> np.ndarray:
        """Return the highest score of each document, in the order of the request.

        Args:
            scores: Score of each of `rows`, shape (r,).

        Returns:
            Scores of shape (n,).

        >>> groups = IdMap(["a", "b", "a"]).group_rows(["b", "a"])
        >>> groups.max_scores(np.array([0.2, 0.9, 0.5])).tolist()
        [0.2, 0.9]
        """
        if not len(self.starts):
            return scores[:0]
        return np.maximum.reduceat(scores, self.starts)[self.group_index]


class AllowedDocuments(Collection[str]):
    """The documents that a filter accepts, as one mask per segment of a collection.

    A search accepts an instance in place of a set of ids, and is faster with it: it finds the rows
    without looking up any id.

    >>> ids = IdMap(["b", "a", "b", "c"])
    >>> allowed = AllowedDocuments([(ids, np.array([False, True, True]))])
    >>> sorted(allowed), ids.rows_of(allowed).tolist()
    (['b', 'c'], [0, 2, 3])

    Attributes:
        segments: For each segment its map, and a mask over its n different documents by ascending
            id, shape (n,), bool. The mask is false for removed documents.
    """

    def __init__(self, segments: Sequence[tuple[IdMap, np.ndarray]]) -> None:
        for ids, mask in segments:
            if len(mask) != ids.documents:
                raise FreshetError(
                    f"a filter of {len(mask)} documents does not fit a segment of {ids.documents}; "
                    "the segment is damaged: freshet repair"
                )
        self.segments = tuple(segments)

    def __len__(self) -> int:
        """Number of documents."""
        return sum(int(np.count_nonzero(mask)) for _, mask in self.segments)

    def __iter__(self) -> Iterator[str]:
        """Yield the ids, segment after segment."""
        for ids, mask in self.segments:
            for position in np.flatnonzero(mask[::-1]).tolist():
                yield ids.descending_ids[position]

    def __contains__(self, document_id: object) -> bool:
        """Whether the document is allowed."""
        for ids, mask in self.segments:
            rows = ids.rows_by_document.get(document_id)  # type: ignore[call-overload]
            if rows is not None and mask[::-1][ids.descending_positions[rows[0]]]:
                return True
        return False

    def in_segment(self, number: int) -> AllowedDocuments:
        """Return the documents in one segment."""
        return AllowedDocuments([self.segments[number]])

    def masks(self, count: int) -> list[np.ndarray]:
        """Return the mask of each of `count` segments.

        Raises:
            FreshetError: If the filter was made for another number of segments.
        """
        if len(self.segments) != count:
            raise FreshetError(
                f"a filter of {len(self.segments)} segments does not fit an index of {count}"
            )
        return [mask for _, mask in self.segments]


class IdMap:
    """An immutable list with the document id of each row.

    The rows of a document are its passages, in order.

    >>> IdMap(["a", "b", "a"]).rows_of(["a"]).tolist()
    [0, 2]
    """

    removed_rows = np.empty(0, np.int64)
    """Rows of removed documents: none. `IdMaps` has some."""

    def __init__(self, document_ids: Iterable[str]) -> None:
        self.document_ids = list(document_ids)

    def __len__(self) -> int:
        """Number of rows."""
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
    def descending_ids(self) -> list[str]:
        """The different ids in descending order."""
        return sorted(self.rows_by_document, reverse=True)

    @cached_property
    def descending_positions(self) -> np.ndarray:
        """For each row the position of its id among `descending_ids`, shape (n,), uint64."""
        position = {document: i for i, document in enumerate(self.descending_ids)}
        positions = map(position.__getitem__, self.document_ids)
        return np.fromiter(positions, np.uint64, len(self))

    def best_documents(self, scores: np.ndarray, k: int, rows: np.ndarray | None = None) -> Ranking:
        """Return the k best documents with a score above 0, each by its best row.

        Args:
            scores: Scores of all rows, or of `rows`; float32, none negative.
            k: Number of documents.
            rows: Rows that were scored. None: all.
        """
        documents = self.descending_ids
        positions = self.descending_positions
        has_repeated_documents = len(documents) < len(self)
        if rows is not None:
            positions = positions[rows]
        return top_k_positive(scores, documents, k, positions, has_repeated_documents)

    def __contains__(self, document_id: object) -> bool:
        """Whether any row belongs to the document."""
        return document_id in self.rows_by_document

    def rows_of(self, document_ids: Iterable[str]) -> np.ndarray:
        """Return the rows of these documents, ascending.

        Raises:
            FreshetError: If a document has no row.
        """
        if isinstance(document_ids, AllowedDocuments):
            (mask,) = document_ids.masks(1)
            return self.rows_of_mask(mask)
        documents = set(document_ids)
        if not documents <= self.rows_by_document.keys():
            self.require_known(documents)
        rows = chain.from_iterable(self.rows_by_document[document] for document in documents)
        return np.array(sorted(rows), dtype=np.int64)

    def rows_of_mask(self, mask: np.ndarray) -> np.ndarray:
        """Return the rows of the given documents, ascending.

        Args:
            mask: Which of the n different documents to select, by ascending id, shape (n,), bool.

        Raises:
            FreshetError: If the mask has another length.
        """
        if len(mask) != self.documents:
            raise FreshetError(
                f"a filter of {len(mask)} documents does not fit an index of {self.documents}"
            )
        return np.flatnonzero(mask[::-1][self.descending_positions])

    def group_rows(self, document_ids: Sequence[str]) -> RowGroups:
        """Return the rows of different documents, grouped by document.

        Raises:
            FreshetError: If a document has no row.

        >>> IdMap(["a", "b", "a"]).group_rows(["b", "a"])
        RowGroups(rows=array([1, 0, 2]), starts=array([0, 1]), group_index=array([0, 1]))
        """
        self.require_known(document_ids)
        groups = [self.rows_by_document[document] for document in document_ids]
        return RowGroups.of(groups, np.arange(len(document_ids)))

    def intersection(self, document_ids: Set[str]) -> set[str]:
        """Return the given documents that have a row."""
        return self.rows_by_document.keys() & document_ids

    def require_known(self, document_ids: Iterable[str]) -> None:
        """Raise FreshetError if one of the documents has no row."""
        unknown = set(document_ids).difference(self.rows_by_document)
        if unknown:
            _raise_unknown(unknown)


_open_maps: WeakValueDictionary[int, IdMap] = WeakValueDictionary()
"""Maps that are in use, by the hash of their ids. It lets `read_id_map` share equal maps."""


def read_id_map(path: Path) -> IdMap:
    """Read the document of each row from a JSON file.

    Files with equal ids give the same object, so that the components of a fusion share its memory.
    """
    document_ids = read_json(path)
    key = hash(tuple(document_ids))
    shared = _open_maps.get(key)
    if shared is not None and shared.document_ids == document_ids:
        return shared
    ids = IdMap(document_ids)
    _open_maps[key] = ids
    return ids


class IdMaps:
    """The maps of several segments, concatenated, each without its removed documents.

    A document that is not removed is in one of the maps only. Removed documents keep their rows, so
    that the rows of other documents do not change.

    >>> maps = IdMaps([(IdMap(["a", "b", "a"]), frozenset("b")), (IdMap(["b"]), frozenset())])
    >>> maps.group_rows(["b", "a"])
    RowGroups(rows=array([0, 2, 3]), starts=array([0, 2]), group_index=array([1, 0]))
    >>> maps.removed_rows.tolist()
    [1]
    """

    def __init__(self, maps: Sequence[tuple[IdMap, frozenset[str]]]) -> None:
        """Concatenate maps.

        Args:
            maps: Maps, each with the ids of its removed documents.
        """
        self.maps = maps
        self.first_rows = list(accumulate((len(ids) for ids, _ in maps), initial=0))
        """First row of each map, followed by the number of rows."""

    def __len__(self) -> int:
        """Number of rows, including those of removed documents."""
        return self.first_rows[-1]

    @cached_property
    def documents(self) -> int:
        """Number of different documents that are not removed."""
        return sum(ids.documents - len(removed) for ids, removed in self.maps)

    @cached_property
    def document_ids(self) -> list[str]:
        """The document of each row."""
        return list(chain.from_iterable(ids.document_ids for ids, _ in self.maps))

    @cached_property
    def removed_rows(self) -> np.ndarray:
        """The rows of removed documents, ascending."""
        rows = []
        for (ids, removed), first_row in zip(self.maps, self.first_rows, strict=False):
            rows.append(ids.rows_of(removed) + first_row)
        return np.concatenate(rows)

    def rows_of(self, document_ids: Iterable[str]) -> np.ndarray:
        """Return the rows of these documents, ascending; see `IdMap.rows_of`."""
        if isinstance(document_ids, AllowedDocuments):
            masks = document_ids.masks(len(self.maps))
            rows = []
            for (ids, _), mask, first_row in zip(self.maps, masks, self.first_rows, strict=False):
                rows.append(ids.rows_of_mask(mask) + first_row)
            return np.concatenate(rows)
        return np.sort(self.group_rows(list(set(document_ids))).rows)

    def group_rows(self, document_ids: Sequence[str]) -> RowGroups:
        """Return the rows of different documents; see `IdMap.group_rows`.

        Groups are ordered by map, so that the rows of a map are adjacent and ascend from map to
        map.
        """
        missing = list(document_ids)
        groups: list[list[int]] = []
        group_of: dict[str, int] = {}
        for (ids, removed), first_row in zip(self.maps, self.first_rows, strict=False):
            wanted = missing
            missing = []
            for document in wanted:
                local_rows = ids.rows_by_document.get(document)
                if local_rows is None or document in removed:
                    missing.append(document)
                    continue
                group_of[document] = len(groups)
                groups.append([first_row + row for row in local_rows] if first_row else local_rows)

        if missing:
            _raise_unknown(set(missing))
        group_index = np.fromiter(map(group_of.__getitem__, document_ids), np.int64)
        return RowGroups.of(groups, group_index)

    def best_documents(self, scores: np.ndarray, k: int, rows: np.ndarray | None = None) -> Ranking:
        """Return the k best documents with a score above 0; see `IdMap.best_documents`."""
        if len(self.maps) == 1:
            return self.maps[0][0].best_documents(scores, k, rows)
        hits = np.flatnonzero(scores > 0)
        hit_rows = hits if rows is None else rows[hits]
        return top_k(scores[hits], self.document_ids, k, hit_rows)

    def require_known(self, document_ids: Iterable[str]) -> None:
        """Raise FreshetError if one of the documents is in no map, or is removed."""
        unknown = set(document_ids)
        for ids, removed in self.maps:
            unknown -= ids.intersection(unknown) - removed
        if unknown:
            _raise_unknown(unknown)


def _raise_unknown(unknown: Set[str]) -> NoReturn:
    raise FreshetError(
        f"the index holds no document {min(unknown)!r} ({len(unknown)} unknown in all)"
    )


def number_on_lookup() -> defaultdict[str, int]:
    """Return a dictionary that numbers words from 0 in the order of their first look-up."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    return numbers
