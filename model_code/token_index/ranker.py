"""The rules of `model_code/index/top_k.py` for scores that are never negative, in a few vector operations per query.

Token scores tie by the hundred, where a selection by score alone is slow. So each passage gets one whole number: its
score's bits, which order as the score does, above the place of its document's id. Of these the k largest are taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_code.retriever import Ranking
from model_code.settings import require

LOW = np.uint64(2**32 - 1)
SHIFT = np.uint64(32)


class Ranker:
    """Ranks the documents of n passages, `document_ids` (n), by their best passage, ties by ascending id.

    >>> Ranker(["b", "c", "a", "c"]).best(np.array([0.5, 0.9, 0.5, 0.0]), k=2)
    [('c', 0.8999999761581421), ('a', 0.5)]
    """

    def __init__(self, document_ids: Sequence[str]) -> None:
        self.names = sorted(set(document_ids), reverse=True)  # the larger the place, the better
        places = {name: place for place, name in enumerate(self.names)}
        self.places = np.fromiter((places[name] for name in document_ids), np.uint64, len(document_ids))
        self.passages_per_document = len(document_ids) / max(1, len(self.names))

    def best(self, scores: np.ndarray, k: int, rows: np.ndarray | None = None, zeros: bool = False) -> Ranking:
        """The k best documents by `scores` (n,), rounded to float32; those with score 0 only if `zeros`.

        rows: rank these passages (r,) alone, and `scores` (r,) are theirs.
        """
        require(k >= 1, f"k is {k}, but a ranking holds at least 1 document")
        keys = scores.astype(np.float32).view(np.uint32).astype(np.uint64)
        keys <<= SHIFT
        keys |= self.places if rows is None else self.places[rows]
        count = k
        while True:
            found = _descending(keys, count)
            if self.passages_per_document > 1:
                found = found[np.sort(np.unique(found & LOW, return_index=True)[1])]  # each document's best
            if len(found) >= k or count >= len(keys):
                return self._named(found[:k], zeros)
            count *= 2  # several passages of one document: more of them hold k documents

    def _named(self, keys: np.ndarray, zeros: bool) -> Ranking:
        if not zeros and len(keys) and keys[-1] <= LOW:
            keys = keys[keys > LOW]
        scores = (keys >> SHIFT).astype(np.uint32).view(np.float32).tolist()
        return list(zip(map(self.names.__getitem__, (keys & LOW).tolist()), scores, strict=True))


def _descending(keys: np.ndarray, count: int) -> np.ndarray:
    """The `count` largest, the largest first. Reorders `keys`."""
    rest = max(0, len(keys) - count)
    if rest:
        keys.partition(rest)
    keys[rest:].sort()
    return keys[rest:][::-1]
