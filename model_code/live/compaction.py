"""Which segments to merge so that there are never many, at little cost per document."""

from __future__ import annotations

from collections.abc import Sequence


def crowded(sizes: Sequence[int], most: int) -> int:
    """How many of the newest segments to merge, 0 where there are at most `most`; sizes: documents, oldest first.

    The newest two, and older ones as long as each is at most as large as what is merged already. So a document is
    copied only when its segment at least doubles, or when it is among the newest.

    >>> crowded([1, 1, 1], most=3), crowded([9, 1, 1, 1], most=3), crowded([3, 2, 1, 1], most=3)
    (0, 3, 4)
    """
    if len(sizes) <= most:
        return 0
    taken, total = 2, sum(sizes[-2:])
    while taken < len(sizes) and sizes[-taken - 1] <= total:
        total += sizes[-taken - 1]
        taken += 1
    return taken
