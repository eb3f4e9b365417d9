"""What the hierarchy loss reads of a tree: the nodes above each pair's passage, and those above other answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model_code.hierarchy.tree import Hierarchy


class Ancestors:
    """The nodes at levels 1 to M above the passages of a hierarchy.

    paths: (N, M) int64, of every passage. nodes: how many each level has.
    """

    def __init__(self, hierarchy: Hierarchy, levels: int | None) -> None:
        """levels: M; None: all."""
        self.paths = hierarchy.paths()[:, :levels].astype(np.int64)
        self.nodes = [len(parents) for parents in hierarchy.parents[:levels]]

    def of(self, passages: np.ndarray) -> Tensor:
        """The nodes above passages (B,): (B, M) int64."""
        return torch.from_numpy(self.paths[passages])

    def excluded(self, known: Sequence[np.ndarray]) -> list[Tensor | None]:
        """The nodes above any passage that answers a query: per level (B, K_t) bool, or None if no query has several.

        known: the passages that answer each of B queries. The pair's own node stays the positive all the same.
        """
        rows = np.repeat(np.arange(len(known)), [len(own) for own in known])
        masks: list[Tensor | None] = [None] * len(self.nodes)
        if len(rows) == len(known):
            return masks
        above = self.paths[np.concatenate(known)]
        for level, nodes in enumerate(self.nodes):
            mask = np.zeros((len(known), nodes), dtype=bool)
            mask[rows, above[:, level]] = True
            masks[level] = torch.from_numpy(mask)
        return masks
