"""Settings of the hierarchy, and how many nodes it then has: without torch, which checking a tree does not need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_code.settings import require


@dataclass(frozen=True)
class HierarchySettings:
    """The `hierarchy` group of `params.yaml`."""

    method: Literal["bottom_up", "top_down"] = "bottom_up"  # agglomerative (HCE, Algorithm 1), or recursive splits
    branching: int | None = None  # mean number of children per node; None: smallest power of two that gives 2 levels
    max_iterations: int = 100  # of k-means, per level; it ends earlier when no assignment changes
    compare_up_to: int = 1_000_000  # passages up to which the report compares the tree with flat k-means
    device: str = "auto"  # "auto" (a GPU if there is one), "cpu" or "cuda"

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.branching is None or self.branching >= 2, f"branching is {self.branching}, but must be at least 2")
        require(self.max_iterations >= 1, f"max_iterations is {self.max_iterations}, but must be at least 1")
        require(self.compare_up_to >= 0, f"compare_up_to is {self.compare_up_to}, but must be at least 0 (never)")


def default_branching(passages: int) -> int:
    """The smallest power of two b with b^3 >= N, which gives two levels of clusters (HCE, section 5.1).

    >>> [default_branching(n) for n in (1, 64, 65, 2_648, 1_000_000)]
    [2, 4, 8, 16, 128]
    """
    branching = 2
    while branching**3 < passages:
        branching *= 2
    return branching


def level_sizes(passages: int, branching: int) -> list[int]:
    """Numbers of nodes at levels 1 to depth: each ceil(1/b) of the one below (HCE, Algorithm 1); at least one level.

    >>> level_sizes(109_739, 8), level_sizes(3, 8)
    ([4, 27, 215, 1715, 13718], [1])
    """
    sizes = [-(-passages // branching)]
    while sizes[0] > 1:
        sizes.insert(0, -(-sizes[0] // branching))
    return sizes[1:] or [1]
