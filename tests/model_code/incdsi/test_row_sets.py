"""Guards sets of rows against numpy's own, empty ones included."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.incdsi.row_sets import among, joined, minus


@pytest.mark.parametrize("sizes", [(0, 0), (0, 4), (4, 0), (7, 3), (3, 30), (50, 50)])
@pytest.mark.parametrize("seed", range(5))
def test_equal_to_numpys_sets(sizes: tuple[int, int], seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, others = (np.sort(random.choice(60, size, replace=False)) for size in sizes)
    assert among(rows, others).tolist() == np.isin(rows, others).tolist()
    rest = minus(rows, others)
    assert rest.tolist() == np.setdiff1d(rows, others).tolist()
    assert joined(rest, random.permutation(others)).tolist() == np.union1d(rows, others).tolist()
