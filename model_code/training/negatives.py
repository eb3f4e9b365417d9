"""Extra negative documents for each query: siblings of its document in the hierarchy (HCE, equation 6), or random."""

from __future__ import annotations

import numpy as np

from model_code.hierarchy.tree import Hierarchy
from model_code.training.data import Passages
from model_code.training.settings import TrainingSettings


class NegativeSampler:
    """Draws `settings.negatives_per_query` passages per pair, without repetition, none known to answer the query.

    Siblings: HCE's equation 6 has, for each tree level t from M + 1 to the documents' own, one sample of the documents
    that share the positive's ancestor at level t - 1. Here the extra documents are dealt over those ancestors, the
    deepest first, and all stand in one contrastive loss. A small cluster gives what it has. Passages of the batch are
    left out: they are negatives already.
    """

    def __init__(self, passages: Passages, settings: TrainingSettings, hierarchy: Hierarchy | None) -> None:
        """hierarchy: needed for siblings only."""
        self.passages, self.count = passages, settings.negatives_per_query
        self.everything = np.arange(len(passages.texts))
        self.hierarchy = hierarchy if settings.draws_siblings else None
        if self.hierarchy is not None:
            deepest = self.hierarchy.depth
            self.levels = range(deepest, min(settings.hierarchy_levels or deepest, deepest) - 1, -1)

    def draw(self, batch: np.ndarray, known: list[np.ndarray], rng: np.random.Generator) -> list[list[int]]:
        """The extra passages of each pair.

        batch: (B,) the passages of the pairs; known: for each pair the passages of all documents that answer its query.
        """
        if not self.count:
            return [[] for _ in batch]
        return [
            self._draw_one(passage, {*batch.tolist(), *own.tolist()}, rng)
            for passage, own in zip(batch, known, strict=True)
        ]

    def _draw_one(self, passage: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        if self.hierarchy is None:
            return _sample(self.everything, self.count, banned, rng)
        drawn: list[int] = []
        path = self.hierarchy.path(passage)
        for turn in range(self.count):
            level = self.levels[turn % len(self.levels)]
            under = self.hierarchy.documents_under(level, path[level - 1])
            drawn += _sample(under, 1, banned | set(drawn), rng)
        return drawn


def _sample(candidates: np.ndarray, count: int, banned: set[int], rng: np.random.Generator) -> list[int]:
    """Up to `count` of the candidates, none of them banned: enough are drawn for all banned ones to be among them."""
    drawn = rng.choice(candidates, min(len(candidates), count + len(banned)), replace=False)
    return [passage for passage in drawn.tolist() if passage not in banned][:count]
