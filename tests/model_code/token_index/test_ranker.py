"""Guards that the fast ranking is `top_k`'s, for every k, with ties, zeros, several passages and some rows only."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.errors import SettingsError
from model_code.index.top_k import top_k
from model_code.token_index.ranker import Ranker


@pytest.mark.parametrize("passages", [1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_it_ranks_as_top_k_does(seed: int, passages: int) -> None:
    chance = np.random.default_rng(seed)
    ids = (
        [f"d{i}é" for i in chance.integers(300 // passages, size=300)] if passages > 1 else [f"{i}" for i in range(300)]
    )
    scores = np.round(np.exp(6 * chance.standard_normal(300)), 1)  # some are 0
    some = chance.permutation(300)[:77]
    ranker = Ranker(ids)
    for k in (1, 2, 50, 299, 300, 1000):
        wanted = top_k(scores.astype(np.float32), ids, k)
        assert ranker.best(scores, k, zeros=True) == wanted
        assert ranker.best(scores, k) == [item for item in wanted if item[1] > 0]
        part = top_k(scores[some].astype(np.float32), [ids[row] for row in some], k)
        assert ranker.best(scores[some], k, some, zeros=True) == part


def test_nothing_to_rank() -> None:
    assert Ranker([]).best(np.zeros(0), 3) == []
    with pytest.raises(SettingsError, match="k is 0"):
        Ranker(["a"]).best(np.ones(1), 0)
