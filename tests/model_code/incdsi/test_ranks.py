"""Guards the cached ranks: equal to ranking everything anew, for all new documents and the first few of any order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from model_code.incdsi import ranks
from model_code.incdsi.ranks import CachedRanks, Quality


def reciprocal_rank(query: np.ndarray, vectors: np.ndarray, target: int) -> float:
    scores = (vectors @ query).tolist()
    rank = 1 + sum(score > scores[target] or (score == scores[target] and i < target) for i, score in enumerate(scores))
    return 1 / rank if rank <= 10 else 0.0


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_ranking_everything_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "BLOCK", 7)
    random = np.random.default_rng(seed)
    old, new = (random.integers(-2, 3, (count, 3)).astype(np.float32) for count in (5 + 20 * seed, 9))  # many ties
    old_queries, new_queries = (random.integers(-2, 3, (count, 3)).astype(np.float32) for count in (30, 25))
    old_targets, new_targets = random.integers(len(old), size=30), random.integers(9, size=25)
    cached = CachedRanks(old, old_queries, old_targets, new_queries, new_targets)
    order = random.permutation(9)
    for count in (0, 1, 4, 9):
        present = order[:count]
        found = cached.reciprocal_ranks(new[present], present)
        together = np.concatenate([old, new[present]])
        of_old = [reciprocal_rank(*pair) for pair in zip(old_queries, [together] * 30, old_targets, strict=True)]
        places = {number: len(old) + place for place, number in enumerate(present)}
        of_new = [
            reciprocal_rank(query, together, places[target])
            for query, target in zip(new_queries, new_targets, strict=True)
            if target in places
        ]
        np.testing.assert_array_equal(found[0], of_old)
        np.testing.assert_array_equal(found[1], of_new)


def test_quality_without_queries_is_no_number() -> None:
    assert math.isnan(Quality.of(np.zeros(0)).hit_at_1)
