"""Which document each row of vectors belongs to. This map is the only owner of that knowledge.

FAISS indexes number their entries by keys that come from the document's id and the passage's ordinal, so that a key
means the same passage in whatever order an index was built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence, Set
from functools import cached_property

import numpy as np

from model_code.errors import FreshetError


def stable_key(document_id: str, ordinal: int) -> int:
    """A 63-bit number for passage `ordinal` of a document.

    >>> stable_key("numpy.sort", 0) == stable_key("numpy.sort", 0) != stable_key("numpy.sort", 1)
    True
    """
    digest = hashlib.sha256(f"{ordinal} {document_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class IdMap:
    """An immutable list of document ids, one per row; rows of one document are its passages, in order.

    >>> IdMap(["a", "b", "a"]).rows_of(["a"]).tolist()
    [0, 2]
    """

    def __init__(self, document_ids: Iterable[str]) -> None:
        self.document_ids = list(document_ids)

    def __len__(self) -> int:
        """Number of rows, that is of passages."""
        return len(self.document_ids)

    @cached_property
    def _rows(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for row, document in enumerate(self.document_ids):
            rows.setdefault(document, []).append(row)
        return rows

    @property
    def documents(self) -> int:
        """Number of different documents."""
        return len(self._rows)

    def __contains__(self, document_id: object) -> bool:
        """Whether any row belongs to the document."""
        return document_id in self._rows

    def rows_of(self, document_ids: Iterable[str]) -> np.ndarray:
        """The rows of these documents, ascending; FreshetError if one is unknown."""
        wanted = set(document_ids)
        self.require_known(wanted)
        return np.array(sorted(row for document in wanted for row in self._rows[document]), dtype=np.int64)

    def require_known(self, document_ids: Set[str]) -> None:
        """FreshetError if one of the documents has no row."""
        unknown = sorted(document for document in document_ids if document not in self._rows)
        if unknown:
            raise FreshetError(f"the index holds no document {unknown[0]!r} ({len(unknown)} unknown in all)")

    def added(self, document_ids: Sequence[str]) -> IdMap:
        """This map with more rows at its end; FreshetError if one of the documents is there already."""
        known = sorted(document for document in set(document_ids) if document in self._rows)
        if known:
            raise FreshetError(f"the index already holds {known[0]!r} ({len(known)} such in all); update replaces it")
        more = IdMap(document_ids)
        grown = IdMap([*self.document_ids, *document_ids])
        grown._rows = self._rows | {name: [len(self) + row for row in rows] for name, rows in more._rows.items()}
        return grown

    def without(self, rows: np.ndarray) -> IdMap:
        """This map without `rows`; the others keep their order."""
        gone = set(rows.tolist())
        return IdMap(document for row, document in enumerate(self.document_ids) if row not in gone)

    @cached_property
    def keys(self) -> np.ndarray:
        """The stable key of each row, (n,) int64; FreshetError if two rows share one."""
        keys = np.empty(len(self), dtype=np.int64)
        for document, rows in self._rows.items():
            for ordinal, row in enumerate(rows):
                keys[row] = stable_key(document, ordinal)
        if len(np.unique(keys)) != len(keys):
            raise FreshetError("two passages have the same 63-bit key; rename one of the documents")
        return keys

    @cached_property
    def _by_key(self) -> np.ndarray:
        return np.argsort(self.keys)

    def rows_with(self, keys: np.ndarray) -> np.ndarray:
        """The row of each of `keys` (any shape), -1 where no row has it."""
        if not len(self):
            return np.full(keys.shape, -1, dtype=np.int64)
        places = np.searchsorted(self.keys, keys, sorter=self._by_key).clip(max=len(self) - 1)
        rows = self._by_key[places]
        return np.where(self.keys[rows] == keys, rows, -1)
