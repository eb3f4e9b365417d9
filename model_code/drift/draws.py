"""Batches of reference documents: what a measure would be if arriving documents were like those of the reference.

A null value compares a drawn batch with the rest of the reference, as the real value compares the real batch with the
reference. Batches are drawn without replacement, so no document is compared with itself and none is in a batch twice,
which a classifier or a kernel would take for closeness.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from model_code.errors import FreshetError

SMALLEST_SHARE = 3  # a batch is at most this part of the reference: the rest must stand for the reference


def draw_batches(
    documents: int, size: int, draws: int, seed: int, batches: Literal["random", "in_order"] = "random"
) -> np.ndarray:
    """Which of the reference's documents are in each batch: (B, documents) bool, `size` true per row.

    "random" draws B = `draws` subsets; "in_order" runs of consecutive documents, each start at most once, so B is less
    where the reference has fewer. The same numbers give the same batches. FreshetError if the reference is too small.
    """
    if not 0 < size * SMALLEST_SHARE <= documents:
        raise FreshetError(
            f"a reference of {documents} cannot lend batches of {size}: it must be {SMALLEST_SHARE} times as many; "
            "lower drift.largest_batch or raise drift.reference_documents"
        )
    chance = np.random.default_rng([seed, documents, size])
    members = np.zeros((draws, documents), bool)
    if batches == "random":
        for row in members:
            row[chance.choice(documents, size, replace=False)] = True
        return members
    starts = chance.permutation(documents - size + 1)[:draws]
    for row, start in zip(members, starts, strict=False):
        row[start : start + size] = True
    return members[: len(starts)]


def most_measured(documents: int, largest: int) -> int:
    """The most documents of a batch that can be compared with a reference of `documents`."""
    return min(largest, documents // SMALLEST_SHARE)


def canonical(vectors: np.ndarray) -> np.ndarray:
    """The rows (n,) of `vectors` (n, H) in an order that does not depend on the order they come in."""
    return np.lexsort(np.ascontiguousarray(vectors.T[:8]))


def some(vectors: np.ndarray, size: int, seed: int) -> np.ndarray:
    """At most `size` rows of `vectors` (n, H), the same whatever the order of the rows."""
    ordered = vectors[canonical(vectors)]
    if len(ordered) <= size:
        return ordered
    return ordered[np.sort(np.random.default_rng([seed, len(vectors), size]).choice(len(vectors), size, replace=False))]
