"""Hard negatives by an encoder: the passages nearest to the query.

Mined once by the encoder that training starts from, or again and again by the one that is being trained (ANCE; Xiong
et al., 2021, with whole refreshes between steps rather than beside them). A refresh is a function of the weights at its
step, and checkpoints keep its result: a run that resumes draws what an uninterrupted one draws.
"""

from __future__ import annotations

import functools

import numpy as np

from model_code.encoding.encoder import encode_passages
from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.index.top_k import nearest
from model_code.training.data import TrainingData
from model_code.training.dev import TextEncoder
from model_code.training.negatives.ranked import Candidates, RankedNegatives, best_unknown
from model_code.training.settings import TrainingSettings

QUERIES = 1024  # searched at once


class NearestNegatives(RankedNegatives):
    """Keeps one table for all pairs, with one row per different query text."""

    def __init__(
        self,
        data: TrainingData,
        settings: TrainingSettings,
        hierarchy: Hierarchy | None = None,
        every: int | None = None,
    ) -> None:
        """every: steps between two refreshes; None: mine before step 0 only."""
        super().__init__(data, settings, hierarchy)
        self.every = every
        rows = {query: row for row, query in enumerate(dict.fromkeys(data.pairs.queries))}
        self.queries, self.row = list(rows), np.array([rows[query] for query in data.pairs.queries], dtype=np.int64)
        self.passages = np.empty((0, 0), dtype=np.int32)  # (queries, negatives_depth), -1 where there are fewer
        self.scores = np.empty((0, 0), dtype=np.float32)
        self.positives = np.empty(0, dtype=np.float32)  # (pairs,)

    def needs_refresh(self, step: int) -> bool:
        """Before step 0, and before every `every`-th."""
        return step == 0 or (self.every is not None and step % self.every == 0)

    def refresh(self, encoder: TextEncoder, vectors: np.ndarray | None = None) -> None:
        """Encode passages and queries, each by its own side, and rank the passages for each query."""
        if vectors is None:
            vectors = encode_passages(encoder, self.data.passages.texts)
        queries = encoder.encode(self.queries)
        parts = [self._search(queries, vectors, start) for start in range(0, len(queries), QUERIES)]
        self.passages, self.scores = (np.concatenate(part) for part in zip(*parts, strict=True))
        self.positives = np.einsum("nh,nh->n", queries[self.row], vectors[self.data.pairs.passages])

    def candidates(self, pair: int) -> Candidates:
        """See `RankedNegatives.candidates`."""
        if not len(self.positives):
            raise FreshetError(f"negatives: {self.settings.negatives} are mined by `refresh`, before the first draw")
        row = self.row[pair]
        found = self.passages[row] >= 0
        return Candidates(
            self.passages[row][found].astype(np.int64), self.scores[row][found], float(self.positives[pair])
        )

    def state(self) -> dict[str, np.ndarray]:
        """The table."""
        return {"passages": self.passages, "scores": self.scores, "positives": self.positives}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """See `Negatives.restore`."""
        self.passages, self.scores, self.positives = state["passages"], state["scores"], state["positives"]

    def _search(self, queries: np.ndarray, vectors: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
        """The table's rows of the queries from `start` on: passages and scores, (QUERIES, negatives_depth) each."""
        settings, known = self.settings, self._known[start : start + QUERIES]
        count = settings.negatives_skip + settings.negatives_depth + max(map(len, known))
        scores, found = nearest(queries[start : start + QUERIES], vectors, count)  # (QUERIES, count)
        table = np.full((len(known), settings.negatives_depth), -1, dtype=np.int32)
        values = np.zeros(table.shape, dtype=np.float32)
        for row, own in enumerate(known):
            best = best_unknown(scores[row], found[row], own, settings.negatives_skip, settings.negatives_depth)
            table[row, : len(best)], values[row, : len(best)] = found[row][best], scores[row][best]
        return table, values

    @functools.cached_property
    def _known(self) -> list[np.ndarray]:
        """For each different query the passages of the documents that answer it."""
        pairs, passages = self.data.pairs, self.data.passages
        relevant = dict(zip(pairs.queries, pairs.relevant, strict=True))
        return [np.concatenate([passages.of(i) for i in sorted(relevant[query])]) for query in self.queries]
