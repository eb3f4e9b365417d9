"""Measures of how far two rankings of the same documents agree, without judgements."""

from __future__ import annotations

from collections.abc import Sequence

# Depth to which rankings are compared by default.
DEFAULT_DEPTH = 10
# Chance that a reader who looked at a rank also looks at the next one. With 0.9, the first ten
# ranks have 86 % of the weight.
DEFAULT_PERSISTENCE = 0.9


def overlap_at(first: Sequence[str], second: Sequence[str], depth: int = DEFAULT_DEPTH) -> float:
    """Return the share of the first `depth` documents that two rankings have in common.

    If both rankings are shorter than `depth`, the length of the longer one replaces it.

    Args:
        first: Document ids, best first.
        second: Document ids, best first.
        depth: Number of documents to compare.

    Returns:
        A number from 0 to 1; 1 for two empty rankings.

    >>> overlap_at(["a", "b", "c"], ["c", "a", "d"], depth=2)
    0.5
    >>> overlap_at(["a"], ["a", "b"])
    0.5
    """
    compared = min(depth, max(len(first), len(second)))
    if compared == 0:
        return 1.0
    return len(set(first[:depth]) & set(second[:depth])) / compared


def rank_biased_overlap(
    first: Sequence[str], second: Sequence[str], persistence: float = DEFAULT_PERSISTENCE
) -> float:
    """Return the extrapolated rank-biased overlap of two rankings (Webber et al., 2010).

    The overlap at each depth is weighted by the chance that a reader looks so far. Therefore a
    difference at the top counts more than one below. The rankings are compared as far as both of
    them reach.

    Args:
        first: Document ids, best first, without repetitions.
        second: Document ids, best first, without repetitions.
        persistence: Chance p that a reader continues to the next rank, 0 < p < 1.

    Returns:
        A number from 0 to 1; 0 if only one ranking is empty, and 1 if both are.

    >>> rank_biased_overlap(["a", "b"], ["a", "b"])
    1.0
    >>> rank_biased_overlap(["a", "b"], ["c", "d"])
    0.0
    """
    depth = min(len(first), len(second))
    if depth == 0:
        both_are_empty = not first and not second
        return 1.0 if both_are_empty else 0.0

    seen_first: set[str] = set()
    seen_second: set[str] = set()
    weighted = 0.0
    agreement = 0.0
    for rank in range(1, depth + 1):
        seen_first.add(first[rank - 1])
        seen_second.add(second[rank - 1])
        agreement = len(seen_first & seen_second) / rank
        weighted += agreement * persistence**rank
    # Nothing is known below the compared ranks. The agreement at the last one is assumed there.
    extrapolated = agreement * persistence**depth
    total = extrapolated + (1 - persistence) / persistence * weighted
    # Rounding removes the last bits, so that equal rankings give exactly 1.
    return round(total, 12)
