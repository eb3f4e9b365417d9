"""Maps between the rows of an index and documents.

A row holds one passage, or one of a passage's vectors. Only this module knows which rows a document
has.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from weakref import WeakValueDictionary

import numpy as np

from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.retrieval.packed_ids import NOT_FOUND, RowIds, SortedIds, sort_ids
from model_code.retrieval.protocol import Ranking
from model_code.retrieval.top_k import select_best_rows, top_k, top_k_positive


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


# Share of documents up to which their rows are marked one by one, instead of looking at each row.
MAX_SCATTERED_SHARE = 1 / 16


class AllowedRows:
    """The rows of the documents that a filter accepts.

    Attributes:
        mask: Which rows are accepted, shape (n,), bool.
        documents: Number of different documents of these rows.
        count: Number of these rows.
    """

    def __init__(self, mask: np.ndarray, documents: int) -> None:
        self.mask = mask
        self.documents = documents
        self.count = int(np.count_nonzero(mask))

    @cached_property
    def rows(self) -> np.ndarray:
        """The accepted rows, ascending."""
        return np.flatnonzero(self.mask)

    def excluded_rows(self, first: int = 0) -> np.ndarray:
        """Return the rows from `first` on that are not accepted, ascending."""
        return np.flatnonzero(~self.mask[first:]) + first


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
        self._rows: AllowedRows | None = None

    def __len__(self) -> int:
        """Number of documents."""
        return sum(int(np.count_nonzero(mask)) for _, mask in self.segments)

    def rows_in(self, maps: Sequence[IdMap]) -> AllowedRows:
        """Return the rows of the accepted documents in an index of the same segments.

        The rows in the maps of the segments themselves are computed once. The components of a
        fusion share these maps.

        Args:
            maps: Map of each segment in the index.
        """
        masks = self.masks(len(maps))
        has_same_maps = all(
            ids is segment_ids for ids, (segment_ids, _) in zip(maps, self.segments, strict=True)
        )
        if has_same_maps and self._rows is not None:
            return self._rows

        row_masks = [ids.row_mask(mask) for ids, mask in zip(maps, masks, strict=True)]
        row_mask = row_masks[0] if len(row_masks) == 1 else np.concatenate(row_masks)
        rows = AllowedRows(row_mask, len(self))
        if has_same_maps:
            self._rows = rows
        return rows

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of the accepted documents, segment after segment."""
        for ids, mask in self.segments:
            for position in np.flatnonzero(mask).tolist():
                yield ids.ids[position]

    def __contains__(self, document_id: object) -> bool:
        """Whether the filter accepts the document."""
        for ids, mask in self.segments:
            position = ids.ids.position(document_id)
            if position != NOT_FOUND and mask[position]:
                return True
        return False

    def intersection(self, other: AllowedDocuments) -> AllowedDocuments:
        """Return the documents that are in both selections of the same segments."""
        masks = other.masks(len(self.segments))
        pairs = zip(self.segments, masks, strict=True)
        return AllowedDocuments([(ids, mask & other_mask) for (ids, mask), other_mask in pairs])

    def difference(self, other: AllowedDocuments) -> AllowedDocuments:
        """Return the documents that are not in another selection of the same segments."""
        masks = other.masks(len(self.segments))
        pairs = zip(self.segments, masks, strict=True)
        return AllowedDocuments([(ids, mask & ~other_mask) for (ids, mask), other_mask in pairs])

    def in_segment(self, number: int) -> AllowedDocuments:
        """Return the accepted documents of one segment, as a filter for this segment alone."""
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


class RowsByDocument(Mapping[str, list[int]]):
    """The rows of each document, ascending. Documents are in the order of their first rows."""

    def __init__(self, ids: IdMap) -> None:
        self._map = ids

    def __len__(self) -> int:
        """Number of different documents."""
        return self._map.documents

    def __iter__(self) -> Iterator[str]:
        """Yield the different documents."""
        for position in self._map.positions_by_first_row().tolist():
            yield self._map.ids[position]

    def __contains__(self, document_id: object) -> bool:
        """Whether any row belongs to the document."""
        return document_id in self._map.ids

    def __getitem__(self, document_id: str) -> list[int]:
        """Return the rows of a document."""
        position = self._map.ids.position(document_id)
        if position == NOT_FOUND:
            raise KeyError(document_id)
        return self._map.rows_at(position).tolist()


class IdMap:
    """An immutable list with the document id of each row.

    The rows of a document are its passages, in order. All data is in arrays, so that a large map
    needs little memory.

    >>> IdMap(["a", "b", "a"]).rows_of(["a"]).tolist()
    [0, 2]

    Attributes:
        ids: Ids of the different documents, ascending.
        positions: Position in `ids` of the document of each row, shape (n,), int32.
    """

    removed_rows = np.empty(0, np.int64)
    """Rows of removed documents: none. `IdMaps` has some."""

    def __init__(self, document_ids: Iterable[str]) -> None:
        row_ids = list(document_ids)
        distinct_ids = sort_ids(row_ids)
        self.ids = SortedIds(distinct_ids)
        if distinct_ids == row_ids:
            self.positions = np.arange(len(row_ids), dtype=np.int32)
            return
        position_of = {document_id: position for position, document_id in enumerate(distinct_ids)}
        positions = map(position_of.__getitem__, row_ids)
        self.positions = np.fromiter(positions, np.int32, len(row_ids))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.positions)

    @property
    def document_ids(self) -> RowIds:
        """The document of each row."""
        return RowIds(self.ids, self.positions)

    @property
    def rows_by_document(self) -> RowsByDocument:
        """The rows of each document, ascending, by document id."""
        return RowsByDocument(self)

    @property
    def documents(self) -> int:
        """Number of different documents."""
        return len(self.ids)

    @cached_property
    def _rows(self) -> np.ndarray:
        """All rows, grouped by document in the order of `ids`, and ascending per document."""
        return np.argsort(self.positions, kind="stable").astype(np.int32)

    @cached_property
    def _starts(self) -> np.ndarray:
        """Start of each document's rows in `_rows`, then the number of rows, int32."""
        counts = np.bincount(self.positions, minlength=len(self.ids))
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    @cached_property
    def descending_positions(self) -> np.ndarray:
        """For each row, the number of its document, counted from the last id, shape (n,), uint32.

        `ids` is ascending, so the document with the largest id has the number 0. `top_k_positive`
        needs numbers in this order: of two documents with equal scores, it ranks the one with the
        larger number first, which is the one with the smaller id.
        """
        return (len(self.ids) - 1 - self.positions).astype(np.uint32)

    def positions_by_first_row(self) -> np.ndarray:
        """Return the positions in `ids` of all documents, in the order of their first rows."""
        first_rows = self._rows[self._starts[:-1]]
        return np.argsort(first_rows, kind="stable")

    def rows_at(self, position: int) -> np.ndarray:
        """Return the rows of one document, ascending, int32.

        Args:
            position: Position of the document in `ids`.
        """
        return self._rows[self._starts[position] : self._starts[position + 1]]

    def group_at(self, positions: np.ndarray) -> RowGroups:
        """Return the rows of different documents, grouped by document.

        Args:
            positions: Positions of the documents in `ids`, shape (n,).
        """
        # Where the rows of each document start in `_rows`, and how many there are.
        first = self._starts[positions].astype(np.int64)
        counts = self._starts[positions + 1] - first

        # Start of each document's group in the result, and the number of each row in its group.
        starts = np.cumsum(counts) - counts
        number_in_group = np.arange(counts.sum()) - np.repeat(starts, counts)
        rows = self._rows[np.repeat(first, counts) + number_in_group].astype(np.int64)
        return RowGroups(rows, starts, np.arange(len(positions)))

    def best_documents(self, scores: np.ndarray, k: int, rows: np.ndarray | None = None) -> Ranking:
        """Return the k best documents with a score above 0, each by its best row.

        Args:
            scores: Scores of all rows, or of `rows`; float32, none negative.
            k: Number of documents.
            rows: Rows that were scored. None: all.
        """
        positions = self.descending_positions
        has_repeated_documents = self.documents < len(self)
        if rows is not None:
            positions = positions[rows]
        return top_k_positive(scores, self.ids, k, positions, has_repeated_documents)

    def __contains__(self, document_id: object) -> bool:
        """Whether any row belongs to the document."""
        return document_id in self.ids

    def rows_of(self, document_ids: Iterable[str]) -> np.ndarray:
        """Return the rows of these documents, ascending.

        Raises:
            FreshetError: If a document has no row.
        """
        if isinstance(document_ids, AllowedDocuments):
            return document_ids.rows_in([self]).rows
        documents = list(document_ids)
        if len(documents) == 1:
            # Every hit that is shown looks up one document. This path is much faster for that than
            # the lookup of many.
            position = self.ids.position(documents[0])
            if position != NOT_FOUND:
                return self.rows_at(position).astype(np.int64)
        positions = self._find(documents)
        return np.sort(self.group_at(np.unique(positions)).rows)

    def row_mask(self, mask: np.ndarray) -> np.ndarray:
        """Return which rows belong to the given documents, shape (n,), bool.

        Args:
            mask: Mask of the selected ones of the different documents, by ascending id, bool.

        Raises:
            FreshetError: If the mask has another length.
        """
        if len(mask) != self.documents:
            raise FreshetError(
                f"a filter of {len(mask)} documents does not fit an index of {self.documents}"
            )
        if self._rows_are_documents:
            return mask
        if np.count_nonzero(mask) > MAX_SCATTERED_SHARE * len(mask):
            return mask[self.positions]
        row_mask = np.zeros(len(self), bool)
        row_mask[self.group_at(np.flatnonzero(mask)).rows] = True
        return row_mask

    @cached_property
    def _rows_are_documents(self) -> bool:
        """Whether each document has one row, in the order of the ids."""
        return np.array_equal(self.positions, np.arange(self.documents))

    def allowed_rows(self, document_ids: Collection[str]) -> AllowedRows:
        """Return the rows of the documents that a filter accepts.

        Raises:
            FreshetError: If a document has no row.
        """
        if isinstance(document_ids, AllowedDocuments):
            return document_ids.rows_in([self])
        distinct_ids = frozenset(document_ids)
        mask = np.zeros(len(self), bool)
        mask[self.rows_of(distinct_ids)] = True
        return AllowedRows(mask, len(distinct_ids))

    def mask_of(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return the mask of the given documents among the n different ones, shape (n,), bool.

        Documents without a row are ignored.
        """
        mask = np.zeros(self.documents, bool)
        positions = self.ids.find(document_ids)
        mask[positions[positions != NOT_FOUND]] = True
        return mask

    def group_rows(self, document_ids: Sequence[str]) -> RowGroups:
        """Return the rows of different documents, grouped by document.

        In the example, row 1 belongs to "b", and rows 0 and 2 belong to "a". `rows` therefore has
        two groups, which start at its positions 0 and 1. `group_index` tells that group 0 belongs
        to the first requested document, and group 1 to the second.

        Raises:
            FreshetError: If a document has no row.

        >>> IdMap(["a", "b", "a"]).group_rows(["b", "a"])
        RowGroups(rows=array([1, 0, 2]), starts=array([0, 1]), group_index=array([0, 1]))
        """
        return self.group_at(self._find(document_ids))

    def intersection(self, document_ids: Set[str]) -> set[str]:
        """Return the given documents that have a row."""
        documents = list(document_ids)
        positions = self.ids.find(documents)
        return {documents[i] for i in np.flatnonzero(positions != NOT_FOUND).tolist()}

    def require_known(self, document_ids: Iterable[str]) -> None:
        """Raise FreshetError if one of the documents has no row."""
        self._find(list(document_ids))

    def _find(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return the positions of documents in `ids`; FreshetError if one has no row."""
        positions = self.ids.find(document_ids)
        unknown = np.flatnonzero(positions == NOT_FOUND)
        if len(unknown):
            _raise_unknown({document_ids[i] for i in unknown.tolist()})
        return positions


# Maps that are in use, by the digest of their ids. It lets `read_id_map` share equal maps.
_open_maps: WeakValueDictionary[bytes, IdMap] = WeakValueDictionary()


def read_id_map(path: Path) -> IdMap:
    """Read the document of each row from a JSON file.

    Files with equal ids give the same object, so that the components of a fusion share its memory.
    """
    document_ids = read_json(path)
    digest = _digest_ids(document_ids)
    ids = _open_maps.get(digest)
    if ids is None:
        ids = IdMap(document_ids)
        _open_maps[digest] = ids
    return ids


def _digest_ids(document_ids: Sequence[str]) -> bytes:
    """Return a digest of a list of ids. Different lists have different digests."""
    text = "".join(document_ids)
    lengths = np.fromiter(map(len, document_ids), np.int64, len(document_ids))
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"))
    digest.update(lengths.tobytes())
    return digest.digest()


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

    @property
    def document_ids(self) -> Sequence[str]:
        """The document of each row."""
        if len(self.maps) == 1:
            ids, _ = self.maps[0]
            return ids.document_ids
        return _JoinedRowIds(self)

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
            return self.allowed_rows(document_ids).rows
        return np.sort(self.group_rows(list(set(document_ids))).rows)

    def allowed_rows(self, document_ids: Collection[str]) -> AllowedRows:
        """Return the rows of the documents that a filter accepts; see `IdMap.allowed_rows`."""
        if isinstance(document_ids, AllowedDocuments):
            return document_ids.rows_in([ids for ids, _ in self.maps])
        distinct_ids = frozenset(document_ids)
        mask = np.zeros(len(self), bool)
        mask[self.rows_of(distinct_ids)] = True
        return AllowedRows(mask, len(distinct_ids))

    def documents_at(self, rows: np.ndarray) -> AllowedDocuments:
        """Return the documents of some rows, without looking up any id.

        Args:
            rows: Rows of documents that are not removed, in any order, shape (r,).
        """
        segments = []
        for (ids, _), first_row in zip(self.maps, self.first_rows, strict=False):
            is_in_map = (rows >= first_row) & (rows < first_row + len(ids))
            mask = np.zeros(ids.documents, bool)
            mask[ids.positions[rows[is_in_map] - first_row]] = True
            segments.append((ids, mask))
        return AllowedDocuments(segments)

    def group_rows(self, document_ids: Sequence[str]) -> RowGroups:
        """Return the rows of different documents, grouped by document; see `IdMap.group_rows`.

        Each document is looked up in the maps, one after the other, until one has it. The result
        has the groups of the first map first, then the groups of the second map, and so on.
        """
        # The rows that each map contributes, and the starts of their groups. The empty arrays are
        # for the case that there are no documents.
        row_parts = [np.empty(0, np.int64)]
        start_parts = [np.empty(0, np.int64)]
        group_index = np.empty(len(document_ids), np.int64)
        # Numbers of groups and rows that the maps before the present one have contributed.
        group_count = 0
        row_count = 0
        # Positions in `document_ids` of the documents that no map has so far.
        missing = np.arange(len(document_ids))
        for (ids, removed), first_row in zip(self.maps, self.first_rows, strict=False):
            if not len(missing):
                break
            wanted = [document_ids[i] for i in missing.tolist()]
            positions = ids.ids.find(wanted)
            if removed:
                is_removed = np.fromiter(map(removed.__contains__, wanted), bool, len(wanted))
                positions[is_removed] = NOT_FOUND

            is_found = positions != NOT_FOUND
            # `found` counts rows, starts and groups of this map from 0. In the result, they follow
            # the rows, starts and groups of the maps before, so offsets are added.
            found = ids.group_at(positions[is_found])
            row_parts.append(found.rows + first_row)
            start_parts.append(found.starts + row_count)
            group_index[missing[is_found]] = found.group_index + group_count
            group_count += len(found.starts)
            row_count += len(found.rows)
            missing = missing[~is_found]

        if len(missing):
            _raise_unknown({document_ids[i] for i in missing.tolist()})
        return RowGroups(np.concatenate(row_parts), np.concatenate(start_parts), group_index)

    def best_documents(self, scores: np.ndarray, k: int, rows: np.ndarray | None = None) -> Ranking:
        """Return the k best documents with a score above 0; see `IdMap.best_documents`."""
        if len(self.maps) == 1:
            ids, _ = self.maps[0]
            return ids.best_documents(scores, k, rows)
        hits = np.flatnonzero(scores > 0)
        hit_rows = hits if rows is None else rows[hits]
        return top_k(scores[hits], self.document_ids, k, hit_rows)

    @cached_property
    def has_one_row_per_document(self) -> bool:
        """Whether each document has exactly one row."""
        return all(ids.documents == len(ids) for ids, _ in self.maps)

    def has_equal_rows(self, other: IdMaps) -> bool:
        """Return whether each row belongs to the same document in another list of maps."""
        if len(self.maps) != len(other.maps):
            return False
        for (ids, removed), (other_ids, other_removed) in zip(self.maps, other.maps, strict=True):
            # Equal maps that were read from files are one object, so they are rarely compared.
            if ids is not other_ids and list(ids.document_ids) != list(other_ids.document_ids):
                return False
            if removed != other_removed:
                return False
        return True

    def best_rows(self, scores: np.ndarray, k: int) -> np.ndarray:
        """Return the rows of the k best documents with a score above 0, if each has one row.

        They are the documents of `best_documents`. No id is looked up unless scores are equal, so
        it is faster.

        Args:
            scores: Score of each row, shape (n,), none negative.
            k: Number of documents.

        Returns:
            At most k rows, ascending.
        """
        rows = select_best_rows(scores, k)
        row_scores = scores[rows]
        rows = rows[row_scores > 0]
        if len(rows) <= k:
            return rows

        # More rows have the worst score than fit. The smallest ids are taken.
        row_scores = scores[rows]
        worst = row_scores.min()
        better = rows[row_scores > worst]
        document_ids = self.document_ids
        equal = sorted(rows[row_scores == worst].tolist(), key=document_ids.__getitem__)
        places_left = k - len(better)
        chosen = np.concatenate([better, equal[:places_left]])
        return np.sort(chosen.astype(np.int64))

    def require_known(self, document_ids: Iterable[str]) -> None:
        """Raise FreshetError if one of the documents is in no map, or is removed."""
        unknown = set(document_ids)
        for ids, removed in self.maps:
            unknown -= ids.intersection(unknown) - removed
        if unknown:
            _raise_unknown(unknown)


class _JoinedRowIds(Sequence[str]):
    """The document id of each row of several maps, whose rows are numbered one after the other."""

    def __init__(self, maps: IdMaps) -> None:
        self._first_rows = maps.first_rows
        self._row_ids = [ids.document_ids for ids, _ in maps.maps]

    def __len__(self) -> int:
        """Number of rows."""
        return self._first_rows[-1]

    def __getitem__(self, row: Any) -> Any:
        """Return the document of a row, or a list of the documents of a slice of rows."""
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if row < 0:
            row += len(self)
        map_number = bisect_right(self._first_rows, row) - 1
        row_in_map = row - self._first_rows[map_number]
        return self._row_ids[map_number][row_in_map]

    def __iter__(self) -> Iterator[str]:
        """Yield the document of each row."""
        return chain.from_iterable(self._row_ids)


def _raise_unknown(unknown: Set[str]) -> NoReturn:
    """Raise an error that names one of the documents that an index does not have."""
    raise FreshetError(
        f"the index holds no document {min(unknown)!r} ({len(unknown)} unknown in all)"
    )


def number_on_lookup() -> defaultdict[str, int]:
    """Return a dictionary that numbers words from 0 in the order of their first look-up."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    return numbers
