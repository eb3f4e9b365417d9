"""Which document each row of vectors belongs to. This map is the only owner of that knowledge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from functools import cached_property
from itertools import chain

import numpy as np

from model_code.errors import FreshetError


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
    def places(self) -> dict[str, list[int]]:
        """The rows of each document, ascending."""
        rows: dict[str, list[int]] = {}
        for row, document in enumerate(self.document_ids):
            rows.setdefault(document, []).append(row)
        return rows

    @property
    def documents(self) -> int:
        """Number of different documents."""
        return len(self.places)

    def __contains__(self, document_id: object) -> bool:
        """Whether any row belongs to the document."""
        return document_id in self.places

    def rows_of(self, document_ids: Iterable[str]) -> np.ndarray:
        """The rows of these documents, ascending; FreshetError if one is unknown."""
        wanted = set(document_ids)
        if not wanted <= self.places.keys():
            self.require_known(wanted)
        return np.array(sorted(row for document in wanted for row in self.places[document]), dtype=np.int64)

    def grouped(self, document_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The rows of these different documents, one document after the other, and where in them each begins (n,).

        FreshetError if one is unknown.

        >>> IdMap(["a", "b", "a"]).grouped(["b", "a"])
        (array([1, 0, 2]), array([0, 1]))
        """
        self.require_known(document_ids)
        own = [self.places[document] for document in document_ids]
        rows = np.fromiter(chain.from_iterable(own), np.int64)
        return rows, np.cumsum([0, *map(len, own)])[:-1]

    def among(self, document_ids: Set[str]) -> set[str]:
        """Those of the documents that have a row."""
        return self.places.keys() & document_ids

    def require_known(self, document_ids: Iterable[str]) -> None:
        """FreshetError if one of the documents has no row."""
        if unknown := set(document_ids).difference(self.places):
            raise FreshetError(f"the index holds no document {min(unknown)!r} ({len(unknown)} unknown in all)")


def numbering() -> defaultdict[str, int]:
    """Numbers words in the order of their first look-up."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    return numbers
