"""Negatives that no ranking chooses: from anywhere in the corpus, or siblings in the hierarchy (HCE, equation 6)."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from model_code.errors import FreshetError
from model_code.training.negatives.base import Drawing, sample


class RandomNegatives(Drawing):
    """Any passages of the corpus, each as likely as another."""

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        banned = banned.union(self._leaf(pair).tolist())
        return sample(self._everything, self.settings.negatives_per_query, banned, rng, self._holds(pair))

    @cached_property
    def _everything(self) -> np.ndarray:
        return np.arange(len(self.data.passages.texts))


class SiblingNegatives(Drawing):
    """Passages from below the ancestors of the query's own passage.

    HCE's equation 6 has, for each tree level t from M + 1 to the documents' own, one sample of the documents that share
    the positive's ancestor at level t - 1. Here the extra documents are dealt over those ancestors, the deepest first,
    and all stand in one contrastive loss. A small cluster gives what it has.
    """

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        if self.hierarchy is None:
            raise FreshetError("siblings are drawn from a hierarchy, and there is none; set negatives to another kind")
        tree, drawn = self.hierarchy, []
        levels = range(tree.depth, min(self.settings.hierarchy_levels or tree.depth, tree.depth) - 1, -1)
        path, holds = tree.path(int(self.data.pairs.passages[pair])), self._holds(pair)
        for turn in range(self.settings.negatives_per_query):
            level = levels[turn % len(levels)]
            drawn += sample(tree.documents_under(level, path[level - 1]), 1, banned.union(drawn), rng, holds)
        return drawn
