"""Settings of the hierarchy, and the numbers of nodes that follow from them.

This module does not import torch, because the check of a hierarchy uses it and needs no torch.
"""

from __future__ import annotations

from model_code.settings import Field, Settings, constant_field


class HierarchySettings(Settings):
    """How the passages are clustered into a tree: the group `hierarchy` of `params.yaml`."""

    branching: int | None = Field(
        None,
        ge=2,
        description="Mean number of children per node. null: the smallest power of two that "
        "gives two levels.",
    )
    max_iterations: int = Field(
        100,
        ge=1,
        description="Maximum number of k-means iterations per level. Clustering stops earlier if "
        "no passage changes its node.",
    )
    device: str = constant_field("auto", description="auto (a GPU if there is one), cpu or cuda")


def default_branching(passages: int) -> int:
    """Return the default number of children per node: the smallest power of two b with b^3 >= N.

    N is the number of passages. The tree then has two levels of clusters, as in HCE's unsupervised
    experiments (section 5.1).

    >>> [default_branching(passages) for passages in (1, 64, 65, 2_648, 1_000_000)]
    [2, 4, 8, 16, 128]
    """
    branching = 2
    while branching**3 < passages:
        branching *= 2
    return branching


def level_sizes(passages: int, branching: int) -> list[int]:
    """Return the numbers of nodes at levels 1 to depth (HCE, Algorithm 1).

    Each level has 1/b of the nodes of the level below, rounded up, where b is `branching`. The root
    is not listed. There is at least one level.

    >>> level_sizes(109_739, 8)
    [4, 27, 215, 1715, 13718]
    >>> level_sizes(3, 8)
    [1]
    """
    sizes = [_divide_rounding_up(passages, branching)]
    while sizes[0] > 1:
        sizes.insert(0, _divide_rounding_up(sizes[0], branching))
    without_root = sizes[1:]
    return without_root or [1]


def _divide_rounding_up(count: int, divisor: int) -> int:
    return -(-count // divisor)
