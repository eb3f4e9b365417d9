"""The measures themselves, each a short function of `Gains`. All agree with trec_eval (Buckley & Voorhees).

Throughout, r_i is the relevance of the document at rank i, R the number of relevant documents (relevance >= 1).
"""

from __future__ import annotations

import numpy as np

from model_code.evaluation.gains import Gains


def ndcg(gains: Gains, cutoff: int) -> np.ndarray:
    """Normalised discounted cumulative gain: sum_{i<=k} r_i / log2(i + 1), over that of the ideal ranking, (Q,).

    Linear gain as trec_eval's `ndcg_cut` (Järvelin & Kekäläinen 2002), not 2^r - 1.
    """
    return _ratio(_discounted(gains.top(cutoff)), _discounted(gains.ideal[:, :cutoff]))


def recall(gains: Gains, cutoff: int) -> np.ndarray:
    """Share of the R relevant documents that stand in the first k ranks, (Q,)."""
    return _ratio((gains.top(cutoff) > 0).sum(axis=1), gains.relevant)


def hit(gains: Gains, cutoff: int) -> np.ndarray:
    """1 if any of the first k documents is relevant, else 0, (Q,): trec_eval's `success`."""
    return (gains.top(cutoff) > 0).any(axis=1).astype(float)


def reciprocal_rank(gains: Gains, cutoff: int) -> np.ndarray:
    """1 / rank of the first relevant document, 0 if it stands below rank k, (Q,); its mean is MRR@k."""
    found = gains.top(cutoff) > 0
    return (found / _ranks(found)).max(axis=1, initial=0.0)


def average_precision(gains: Gains, cutoff: int | None = None) -> np.ndarray:
    """Precision at each relevant document's rank, summed over the whole run and divided by R, (Q,); its mean is MAP."""
    found = gains.top(cutoff) > 0
    precision = found.cumsum(axis=1) / _ranks(found)
    return _ratio((precision * found).sum(axis=1), gains.relevant)


def _ranks(table: np.ndarray) -> np.ndarray:
    return np.arange(1, table.shape[1] + 1)


def _discounted(relevance: np.ndarray) -> np.ndarray:
    return (relevance / np.log2(_ranks(relevance) + 1)).sum(axis=1)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)
