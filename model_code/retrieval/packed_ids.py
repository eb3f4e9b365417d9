"""Document ids in compact arrays, instead of one Python object per id.

A hundred thousand ids of twelve characters take 28 MB as strings with a dictionary of their rows.
Here they take about 4 MB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from operator import lt
from typing import Any, overload

import numpy as np

# Number of ids up to which a dictionary finds them, which is faster and needs little memory.
MAX_IDS_IN_DICTIONARY = 4096

# Number of ids from which array operations find them faster than a loop.
MIN_IDS_FOR_ARRAYS = 32

NOT_FOUND = -1

# Ids may hold lone surrogates, for example from the names of files.
_ENCODING = ("utf-8", "surrogatepass")


def sort_ids(ids: Iterable[str]) -> list[str]:
    """Return the different ids, ascending. This is fast if they are given in this order.

    >>> sort_ids(["b", "a", "b"])
    ['a', 'b']
    """
    listed = list(ids)
    is_ascending = all(map(lt, listed, islice(listed, 1, None)))
    return listed if is_ascending else sorted(set(listed))


class SortedIds(Sequence[str]):
    """Different ids in ascending order, in one buffer of UTF-8 text.

    The order of UTF-8 texts is that of the ids. An id is found by its hash: the hashes are sorted,
    and the text decides among equal ones. Python hashes texts differently in each process, so a
    copy in another process computes its hashes again.

    >>> ids = SortedIds(["b", "a", "b"])
    >>> list(ids), ids.find(["b", "c"]).tolist()
    (['a', 'b'], [1, -1])
    """

    def __init__(self, ids: Iterable[str]) -> None:
        """Sort ids.

        Args:
            ids: Ids in any order. Repetitions are ignored.
        """
        sorted_ids = sort_ids(ids)
        joined = "".join(sorted_ids)
        self._text = joined.encode(*_ENCODING)
        # In ASCII, a character is a byte. Other ids are encoded one by one, to count their bytes.
        sizes: Iterable[int] = map(len, sorted_ids)
        if not joined.isascii():
            sizes = (len(document_id.encode(*_ENCODING)) for document_id in sorted_ids)
        # Arrays of the standard library are read faster than those of numpy, one item at a time.
        self._starts = array("q", accumulate(sizes, initial=0))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the ids without their hashes, which differ between processes."""
        return SortedIds, (list(self),)

    def __len__(self) -> int:
        """Number of ids."""
        return len(self._starts) - 1

    @overload
    def __getitem__(self, position: int) -> str: ...

    @overload
    def __getitem__(self, position: slice) -> list[str]: ...

    def __getitem__(self, position: int | slice) -> str | list[str]:
        """Return the id at a position, or a list of the ids in a slice."""
        if isinstance(position, slice):
            return self.at(range(*position.indices(len(self))))
        if position < 0:
            position += len(self)
        start = self._starts[position]
        return self._text[start : self._starts[position + 1]].decode(*_ENCODING)

    def at(self, positions: Iterable[int]) -> list[str]:
        """Return the ids at several positions, none of them negative.

        A search returns a hundred ids. One call for all takes less than half the time of a call per
        id.

        >>> SortedIds(["b", "c", "a"]).at([2, 0])
        ['c', 'a']
        """
        text = self._text
        starts = self._starts
        return [
            text[starts[position] : starts[position + 1]].decode(*_ENCODING)
            for position in positions
        ]

    def __iter__(self) -> Iterator[str]:
        """Yield the ids, ascending."""
        starts = self._starts
        for start, end in zip(starts, starts[1:], strict=False):
            yield self._text[start:end].decode(*_ENCODING)

    def __contains__(self, document_id: object) -> bool:
        """Whether this list contains the id."""
        return self.position(document_id) != NOT_FOUND

    def position(self, document_id: object) -> int:
        """Return the position of an id, or `NOT_FOUND`.

        A dictionary answers for few ids. Among many, the sorted hashes are searched.
        """
        if len(self) <= MAX_IDS_IN_DICTIONARY:
            return self._positions.get(document_id, NOT_FOUND)
        if not isinstance(document_id, str):
            return NOT_FOUND

        text = document_id.encode(*_ENCODING)
        wanted_hash = hash(document_id)
        hashes, positions = self._hashes
        i = bisect_left(hashes, wanted_hash)
        # Different ids may have equal hashes, so the text decides.
        while i < len(hashes) and hashes[i] == wanted_hash:
            position = positions[i]
            if self._text[self._starts[position] : self._starts[position + 1]] == text:
                return position
            i += 1
        return NOT_FOUND

    def find(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return the position of each of n ids, or `NOT_FOUND`, shape (n,), int64.

        Array operations look up many ids at once. They are only right for an id that is present
        and has a unique hash. So each result is checked, and the others are looked up one by one.
        """
        count = len(document_ids)
        if len(self) <= MAX_IDS_IN_DICTIONARY:
            positions_by_id = self._positions
            found_positions = [positions_by_id.get(name, NOT_FOUND) for name in document_ids]
            return np.array(found_positions, np.int64)
        if count < MIN_IDS_FOR_ARRAYS:
            return np.fromiter(map(self.position, document_ids), np.int64, count)

        hashes, positions = self._hashes
        wanted_hashes = np.fromiter(map(hash, document_ids), np.int64, count)
        hash_numbers = np.searchsorted(np.frombuffer(hashes, np.int64), wanted_hashes)
        # A hash above all others has the number len(self), at which there is no position.
        hash_numbers = np.minimum(hash_numbers, len(self) - 1)
        found = np.frombuffer(positions, np.int32)[hash_numbers].astype(np.int64)

        texts = [document_id.encode(*_ENCODING) for document_id in document_ids]
        for i in np.flatnonzero(~self._are_at(found, texts)).tolist():
            found[i] = self.position(document_ids[i])
        return found

    def _are_at(self, positions: np.ndarray, texts: Sequence[bytes]) -> np.ndarray:
        """Return whether the id at each of n positions has the text of the same number, (n,) bool.

        All bytes are compared at once, which takes a third of the time of a loop.
        """
        all_starts = np.frombuffer(self._starts, np.int64)
        starts = all_starts[positions]
        lengths = all_starts[positions + 1] - starts
        wanted_lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        are_equal = lengths == wanted_lengths
        # An id of another length is not compared.
        lengths = np.where(are_equal, lengths, 0)
        compared = [
            text for text, is_equal in zip(texts, are_equal.tolist(), strict=True) if is_equal
        ]

        # Copy the ids one after the other. Byte i of the copy is byte i + shifts[i] of the buffer.
        ends_in_copy = np.cumsum(lengths)
        starts_in_copy = ends_in_copy - lengths
        shifts = np.repeat(starts - starts_in_copy, lengths)
        buffer = np.frombuffer(self._text, np.uint8)
        copy = buffer[shifts + np.arange(ends_in_copy[-1])]
        is_other_byte = copy != np.frombuffer(b"".join(compared), np.uint8)
        if is_other_byte.any():
            # The number of different bytes before each byte, and before the end.
            counts = np.concatenate([[0], np.cumsum(is_other_byte)])
            are_equal &= counts[ends_in_copy] == counts[starts_in_copy]
        return are_equal

    @cached_property
    def _positions(self) -> dict[Any, int]:
        return {document_id: position for position, document_id in enumerate(self)}

    @cached_property
    def _hashes(self) -> tuple[array[int], array[int]]:
        """The hashes of all ids, ascending, and the position of each hash's id."""
        hashes = np.fromiter(map(hash, self), np.int64, len(self))
        order = np.argsort(hashes, kind="stable")
        return array("q", hashes[order].tobytes()), array("i", order.astype(np.int32).tobytes())


class RowIds(Sequence[str]):
    """The document id of each row, which equals any sequence of the same ids.

    >>> RowIds(SortedIds(["a", "b"]), np.array([1, 0, 1], np.int32)) == ["b", "a", "b"]
    True
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, ids: SortedIds, positions: np.ndarray) -> None:
        """Combine ids with rows.

        Args:
            ids: Ids of the different documents.
            positions: Position in `ids` of the document of each row, shape (n,), int32.
        """
        self._ids = ids
        self._positions = positions
        # Single items of a view are read faster than those of an array.
        self._view = memoryview(positions)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._positions)

    def __getitem__(self, row: Any) -> Any:
        """Return the document of a row, or a list of the documents of a slice of rows."""
        if isinstance(row, slice):
            return self._ids.at(self._positions[row].tolist())
        return self._ids[self._view[row]]

    def __iter__(self) -> Iterator[str]:
        """Yield the document of each row."""
        for position in self._positions.tolist():
            yield self._ids[position]

    def __eq__(self, other: object) -> bool:
        """Whether the other sequence has the same ids in the same order."""
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        if len(self) != len(other):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))
