"""What the user may choose about the hierarchy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_code.settings import require


@dataclass(frozen=True)
class HierarchySettings:
    """The `hierarchy` group of `params.yaml`."""

    method: Literal["bottom_up", "top_down"] = "bottom_up"  # agglomerative (HCE, Algorithm 1), or recursive splits
    branching: int | None = None  # mean number of children per node; None: smallest power of two that gives 2 levels
    initialisation: Literal["plus_plus", "points", "assignment"] = "plus_plus"  # k-means++, any passages, the paper's
    max_iterations: int = 100  # of k-means, per level; it ends earlier when no assignment changes
    tolerance: float = 0.0  # ends k-means when the objective grows by less than this share; 0 = never
    compare_up_to: int = 1_000_000  # passages up to which the report compares the tree with flat k-means
    device: str = "auto"  # "auto" (a GPU if there is one), "cpu" or "cuda"

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.branching is None or self.branching >= 2, f"branching is {self.branching}, but must be at least 2")
        require(self.max_iterations >= 1, f"max_iterations is {self.max_iterations}, but must be at least 1")
        require(self.compare_up_to >= 0, f"compare_up_to is {self.compare_up_to}, but must be at least 0 (never)")
        require(0 <= self.tolerance < 1, f"tolerance is {self.tolerance}, but must be in [0, 1)")
