"""Retrieval quality: of the new documents beside the old, and of protected queries before and after additions.

The first is the measure of harm. Adding only harms where new documents are found worse than a retrained retriever would
find them; without retraining, what it does for documents that it was trained for tells: the same score of old documents
whose queries it has not seen.
"""

from __future__ import annotations

import numpy as np

from model_code.drift.fit import mean_difference
from model_code.drift.measured import Observation, Scope
from model_code.errors import FreshetError
from model_code.evaluation.significance import paired_randomisation_test


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


def observe_protected(
    group: str, before: np.ndarray, after: np.ndarray, margin: float, draws: int, seed: int
) -> Observation:
    """Mean change of the scores of protected queries, beside changes of random sign around a loss of `margin`.

    before, after: (q,) of the same queries. The null is that of the paired randomisation test (Smucker, Allan &
    Carterette 2007) of the differences plus `margin`: a loss within it is no harm. `detail` has the two-sided p of
    that test for any change at all.
    """
    if before.shape != after.shape or before.ndim != 1 or not len(before):
        raise FreshetError(
            f"protected queries ({group}) have scores of shapes {before.shape} and {after.shape}; "
            "score the same queries, at least one, before and after"
        )
    change = after.astype(np.float64) - before.astype(np.float64)
    signs = 1.0 - 2.0 * np.random.default_rng([seed, len(change)]).integers(2, size=(draws, len(change)), dtype=np.int8)
    null = signs @ (change + margin) / len(change) - margin
    p = paired_randomisation_test(change[:, None], draws, seed)[0]
    detail: dict[str, float] = {
        "before": float(before.mean()),
        "after": float(after.mean()),
        "margin": margin,
        "p_any_change": float(p),
    }
    detail["queries"] = len(change)
    return Observation(f"protected_{group}", float(change.mean()), null, "low", detail=detail)
