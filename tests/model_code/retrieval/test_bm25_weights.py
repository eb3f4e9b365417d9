"""Tests of the cache of term weights."""

from __future__ import annotations

import numpy as np

from model_code.retrieval.bm25_weights import TermWeights, WeightCache


def test_cache_forgets_the_weights_not_used_for_longest() -> None:
    weights = TermWeights(np.arange(2, dtype=np.int32), np.ones(2))
    cache = WeightCache(max_bytes=2 * weights.size)
    cache.put("a", weights)
    cache.put("b", weights)
    cache.get("a")

    cache.put("c", weights)

    assert [term for term in "abc" if cache.get(term) is not None] == ["a", "c"]


def test_weights_larger_than_the_cache_are_not_kept() -> None:
    weights = TermWeights(None, np.ones(8))
    cache = WeightCache(max_bytes=weights.size - 1)

    cache.put("common", weights)

    assert cache.get("common") is None
