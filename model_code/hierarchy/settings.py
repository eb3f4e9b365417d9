"""Settings of the hierarchy, and how many nodes it then has: without torch, which checking a tree
does not need.
"""

from __future__ import annotations

from model_code.settings import Field, Settings, constant_field


class HierarchySettings(Settings):
    """The `hierarchy` group of `params.yaml`."""

    branching: int | None = Field(
        None,
        ge=2,
        description="mean number of children; null: the smallest power of two that gives two levels",
    )
    max_iterations: int = Field(
        100, ge=1, description="of k-means, per level; it ends earlier when no assignment changes"
    )
    device: str = constant_field("auto", description="auto (a GPU if there is one), cpu or cuda")


def default_branching(passages: int) -> int:
    """The smallest power of two b with b^3 >= N, which gives two levels of clusters (HCE, section
    5.1).

    >>> [default_branching(n) for n in (1, 64, 65, 2_648, 1_000_000)]
    [2, 4, 8, 16, 128]
    """
    branching = 2
    while branching**3 < passages:
        branching *= 2
    return branching


def level_sizes(passages: int, branching: int) -> list[int]:
    """Numbers of nodes at levels 1 to depth: each ceil(1/b) of the one below (HCE, Algorithm 1); at
    least one level.

    >>> level_sizes(109_739, 8), level_sizes(3, 8)
    ([4, 27, 215, 1715, 13718], [1])
    """
    sizes = [-(-passages // branching)]
    while sizes[0] > 1:
        sizes.insert(0, -(-sizes[0] // branching))
    return sizes[1:] or [1]
