"""Hard negatives by BM25, over the very texts that the encoder sees."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from model_code.index.bm25 import Bm25
from model_code.training.negatives.ranked import Candidates, RankedNegatives, best_unknown


class Bm25Negatives(RankedNegatives):
    """A query is ranked when its pair is first drawn for, so that a short run on large data ranks what it uses only.

    Passages that share no term with the query are no candidates.
    """

    def candidates(self, pair: int) -> Candidates:
        """See `RankedNegatives.candidates`."""
        if pair not in self._ranked:
            self._ranked[pair] = self._rank(pair)
        return self._ranked[pair]

    def _rank(self, pair: int) -> Candidates:
        pairs, passages, settings = self.data.pairs, self.data.passages, self.settings
        scores = self._index.scores(pairs.queries[pair])
        found = np.flatnonzero(scores > 0)
        known = np.concatenate([passages.of(document) for document in sorted(pairs.relevant[pair])])
        rows = found[best_unknown(scores[found], found, known, settings.negatives_skip, settings.negatives_depth)]
        return Candidates(rows, scores[rows], float(scores[pairs.passages[pair]]))

    @cached_property
    def _index(self) -> Bm25:
        texts = self.data.passages.texts
        return Bm25(texts, [str(document) for document in self.data.passages.documents.tolist()])

    @cached_property
    def _ranked(self) -> dict[int, Candidates]:
        return {}
