"""Retrieval quality: of the new documents beside the old, and of protected queries before and after additions.

The first is the measure of harm. Adding only harms where new documents are found worse than a retrained retriever would
find them; without retraining, what it does for documents that it was trained for tells: the same score of old documents
whose queries it has not seen, beside the same rivals: both are searched among all that is live now.

The second is what additions take from old documents. Any addition takes some: on docstrings 25 % more of the same kind
cost .029 MRR@10, which no retrain brings back. So as much as documents like the old ones would take is no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from model_code.drift.fit import mean_difference
from model_code.drift.measured import Observation, Scope
from model_code.errors import FreshetError
from model_code.evaluation.significance import paired_randomisation_test

RANKS = 10  # a rank beyond counts as not found


@dataclass(frozen=True, eq=False)
class OldScores:
    """How well old documents are found among all that is live when a report is made, one mean score per document."""

    made: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))  # (p,) over its pseudo-queries
    asked: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))  # (a,) over its judged queries


class Paired(NamedTuple):
    """Scores of the same queries before and after additions, and the loss to growth that is no harm: (q,) each."""

    before: np.ndarray
    after: np.ndarray
    crowding: np.ndarray | float = 0.0


def new_quality(
    old: np.ndarray,
    new: np.ndarray,
    null: np.ndarray,
    margin: float,
    scope: Scope = "batch",
    name: str = "new_quality",
) -> Observation:
    """Mean score of the new documents minus that of old ones, beside what batches of old documents give.

    old: (n,), new: (m,), one score (hit or reciprocal rank) per document, the mean over its held-out queries. name: of
    the measure; "asked_quality" if they are not pseudo-queries but judged ones.
    null: (B,) by `null_mean_difference`, of batches of m old documents: documents are resampled, not queries, as the
    queries of one document share its fate. It is moved by `margin`, a loss that is no harm, however sure it is.
    """
    detail = {"old": float(old.mean()), "new": float(new.mean()), "documents": len(new), "margin": margin}
    return Observation(name, mean_difference(old, new), null - margin, "low", scope, detail)


def reciprocal_ranks(ranks: np.ndarray) -> np.ndarray:
    """1 / rank, 0 beyond RANKS and for rank 0, which stands for not found: (q,).

    >>> reciprocal_ranks(np.array([1, 4, 11, 0])).tolist()
    [1.0, 0.25, 0.0, 0.0]
    """
    return np.where((ranks > 0) & (ranks <= RANKS), 1 / np.maximum(ranks, 1), 0.0)


def crowding(ranks: np.ndarray, kept: float) -> np.ndarray:
    """What each reciprocal rank lost on average while the collection grew to its size from the share `kept` of it, by
    documents like its own: (q,), at least 0. Growing again by as much costs about the same.

    ranks: (q,), see `reciprocal_ranks`. Each of the r - 1 documents above an answer was there before with chance
    `kept`, S of them, so the mean of 1 / (1 + S) where S < RANKS is P(1 <= T <= RANKS) / (r kept) with
    T ~ Binomial(r, kept).
    """
    from scipy.stats import binom

    counted = np.maximum(ranks, 1)
    before = (binom.cdf(RANKS, counted, kept) - binom.pmf(0, counted, kept)) / (counted * kept)
    return np.where(ranks > 0, before - reciprocal_ranks(ranks), 0.0)


def observe_protected(group: str, scores: Paired, margin: float, draws: int, seed: int) -> Observation:
    """Mean change of the scores of protected queries, beside changes of random sign around a loss that is no harm.

    That loss is `margin` and each query's crowding. The null is that of the paired randomisation test (Smucker, Allan
    & Carterette 2007) of the differences plus that loss. `detail` has the two-sided p of the test for any change.
    """
    before, after = scores.before, scores.after
    if before.shape != after.shape or before.ndim != 1 or not len(before):
        raise FreshetError(
            f"protected queries ({group}) have scores of shapes {before.shape} and {after.shape}; "
            "score the same queries, at least one, before and after"
        )
    change = after.astype(np.float64) - before.astype(np.float64)
    signs = 1.0 - 2.0 * np.random.default_rng([seed, len(change)]).integers(2, size=(draws, len(change)), dtype=np.int8)
    allowed = margin + np.broadcast_to(scores.crowding, change.shape)
    null = signs @ (change + allowed) / len(change) - allowed.mean()
    p = paired_randomisation_test(change[:, None], draws, seed)[0]
    detail: dict[str, float] = {
        "before": float(before.mean()),
        "after": float(after.mean()),
        "margin": margin,
        "crowding": float(allowed.mean() - margin),
        "p_any_change": float(p),
    }
    detail["queries"] = len(change)
    return Observation(f"protected_{group}", float(change.mean()), null, "low", detail=detail)
