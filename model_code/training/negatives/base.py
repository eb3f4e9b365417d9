"""What a source of extra negatives is, whatever it draws from."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Protocol

import numpy as np

from model_code.hierarchy.tree import Hierarchy
from model_code.training.answers import Holds
from model_code.training.data import TrainingData
from model_code.training.dev import TextEncoder
from model_code.training.settings import TrainingSettings

SPARE = 256  # candidates that are drawn in addition where each may hold an answer, so that hardly ever too few are left


class Negatives(Protocol):
    """Draws extra passages for the pairs of a batch. What it learns while training goes on, a checkpoint keeps."""

    def draw(self, pairs: np.ndarray, known: list[np.ndarray], rng: np.random.Generator) -> list[list[int]]:
        """The extra passages of each pair: different ones, none of them in the batch or known to answer the query.

        Nor does any hold one of the strings that answer the query, where the data names such.
        pairs: (B,) numbers of training pairs; known: for each the passages of all documents that answer its query.
        Equal arguments give equal draws, until the next `refresh` or `recluster`.
        """
        ...

    @property
    def outside_leaf(self) -> bool:
        """Whether passages of a positive's leaf are no negatives of its query, as things are."""
        ...

    def needs_refresh(self, step: int) -> bool:
        """Whether `refresh` has to come before the batches of `step` (0, 1, ...) are drawn."""
        ...

    def refresh(self, encoder: TextEncoder, vectors: np.ndarray | None = None) -> None:
        """Take in what the encoder has learned; vectors: (N, H), the passages as it encodes them, if at hand."""
        ...

    def recluster(self, hierarchy: Hierarchy | None) -> None:
        """Read leaves and siblings from this tree from now on."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold for `restore` to go on from; empty if there is nothing to keep."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `state` gave."""
        ...


class Drawing:
    """The parts that all kinds share: left out are the batch's own passages, those that hold an answer of the query
    and, if asked for, the positive's leaf.
    """

    def __init__(self, data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None) -> None:
        """hierarchy: needed if the settings draw siblings or avoid leaves; `recluster` may give it, too."""
        self.data, self.settings, self.hierarchy = data, settings, hierarchy

    def draw(self, pairs: np.ndarray, known: list[np.ndarray], rng: np.random.Generator) -> list[list[int]]:
        """See `Negatives.draw`."""
        if not self.settings.negatives_per_query:
            return [[] for _ in pairs]
        batch = set(self.data.pairs.passages[pairs].tolist())
        return [
            self._draw_one(int(pair), batch.union(own.tolist()), rng) for pair, own in zip(pairs, known, strict=True)
        ]

    def _draw_one(self, pair: int, banned: set[int], rng: np.random.Generator) -> list[int]:
        raise NotImplementedError

    @property
    def outside_leaf(self) -> bool:
        """As the settings say."""
        return self.settings.negatives_outside_leaf

    def needs_refresh(self, step: int) -> bool:
        """Never."""
        return False

    def refresh(self, encoder: TextEncoder, vectors: np.ndarray | None = None) -> None:
        """Nothing to do."""

    def recluster(self, hierarchy: Hierarchy | None) -> None:
        """See `Negatives.recluster`."""
        self.hierarchy = hierarchy

    def state(self) -> dict[str, np.ndarray]:
        """Nothing to keep."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Nothing to go on from."""

    def _holds(self, pair: int) -> Holds | None:
        """Whether a passage holds an answer of the pair's query; None if the data names none."""
        return self.data.answers.of(self.data.pairs.queries[pair])

    def _leaf(self, pair: int) -> np.ndarray:
        """The passages in the leaf of the pair's passage, if `negatives_outside_leaf` keeps them from being drawn."""
        if self.hierarchy is None or not self.settings.negatives_outside_leaf:
            return np.empty(0, dtype=np.int64)
        depth = self.hierarchy.depth
        node = self.hierarchy.leaves[self.data.pairs.passages[pair]]
        return self.hierarchy.documents_under(depth, int(node))


def sample(
    candidates: np.ndarray, count: int, banned: Collection[int], rng: np.random.Generator, holds: Holds | None = None
) -> list[int]:
    """Up to `count` of the candidates, none of them banned: enough are drawn for all banned ones to be among them.

    holds: whether a candidate holds an answer, and so is no negative; asked of no more candidates than it takes.
    """
    most = count + len(banned) + (0 if holds is None else SPARE)
    drawn = rng.choice(candidates, min(len(candidates), most), replace=False)
    kept = (one for one in drawn.tolist() if one not in banned and (holds is None or not holds(one)))
    return list(islice(kept, count))
