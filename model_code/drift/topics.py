"""Topic drift: how differently old and new documents are spread over the nodes of the hierarchy.

Fixed thresholds (.1 and .2 are customary for PSI) false-alarm with many nodes and few documents: both divergences are
above 0 for two samples of one distribution. The threshold is a quantile of what batches of the reference give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

SMOOTHING = 0.5  # documents added to each node: the PSI of an empty node would be infinite (Jeffreys' prior)


def jensen_shannon(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence of counts (..., K) and (..., K) in bits, 0 to 1: (...,) (Lin 1991, eq. 4.1).

    JS = sum_t p_t / 2 log2(p_t / m_t) + q_t / 2 log2(q_t / m_t), m = (p + q) / 2, and 0 log 0 = 0.
    """
    p, q = _shares(old), _shares(new)
    middle = (p + q) / 2
    return (_bits(p, middle) + _bits(q, middle)) / 2


def population_stability(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Population stability index of counts (..., K) and (..., K), at least 0: (...,); SMOOTHING is added to each count.

    PSI = sum_t (q_t - p_t) ln(q_t / p_t): the two Kullback-Leibler divergences together, in nats.
    """
    p, q = _shares(old + SMOOTHING), _shares(new + SMOOTHING)
    return ((q - p) * np.log(q / p)).sum(axis=-1)


DIVERGENCES: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "jensen_shannon": jensen_shannon,
    "population_stability": population_stability,
}


def counts_of(topics: np.ndarray, nodes: int) -> np.ndarray:
    """How many documents each of `nodes` nodes has: (nodes,)."""
    return np.bincount(topics, minlength=nodes)


def null_divergence(topics: np.ndarray, nodes: int, members: np.ndarray, divergence: str) -> np.ndarray:
    """Divergence of each drawn batch from the rest: (B,). topics: (n,) of the reference. members: (B, n)."""
    one_hot = np.eye(nodes)[topics]  # (n, K)
    batches = members @ one_hot
    return DIVERGENCES[divergence](one_hot.sum(axis=0) - batches, batches)


def most_moved(old: np.ndarray, new: np.ndarray, count: int = 3) -> list[dict[str, float]]:
    """The nodes whose share changed most, with the share of old and of new documents."""
    p, q = _shares(old), _shares(new)
    order = np.argsort(-np.abs(q - p), kind="stable")[:count]
    return [{"node": int(i), "old": float(p[i]), "new": float(q[i])} for i in order]


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / counts.sum(axis=-1, keepdims=True)


def _bits(p: np.ndarray, middle: np.ndarray) -> np.ndarray:
    ratio = np.divide(p, middle, out=np.ones_like(middle), where=p > 0)
    return (p * np.log2(ratio)).sum(axis=-1)
