"""Guards the int8 copy of rows: its products stay within the proven bound on hostile rows, which is not an empty one,
and rows that int8 keeps badly are named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from model_code.incdsi import int8_rows
from model_code.incdsi.int8_rows import COARSEST, Int8Rows, product_error


def hostile(width: int) -> np.ndarray:
    """Rows of lengths 1e-20 to 1e20, without cancellation, equal, zero, on the grid of int8, with one long axis."""
    random = np.random.default_rng(width)
    rows = random.normal(size=(600, width)) * 10.0 ** random.uniform(-20, 20, (600, 1))
    rows[:100] = np.abs(rows[:100])
    rows[100:110] = rows[110]
    rows[111] = 0
    rows[120:140] = random.integers(-127, 128, (20, width))
    rows[140:160] = np.sign(rows[140:160])
    rows[160:180, 0] *= 10
    return rows.astype(np.float32)


def kept(rows: np.ndarray) -> Int8Rows:
    copy = Int8Rows(rows.shape[1])
    copy.extend(rows)
    return copy


def true(row: np.ndarray, vector: np.ndarray) -> float:
    return math.fsum(a * b for a, b in zip(row.tolist(), vector.tolist(), strict=True))


@pytest.mark.parametrize("width", [1, 7, 16, 50, 384])
def test_products_stay_within_the_bound(width: int) -> None:
    rows, random = hostile(width), np.random.default_rng(1)
    copy, used = kept(rows), []
    well = np.setdiff1d(np.arange(len(rows)), copy.coarse)
    for vector in (random.normal(size=width), np.abs(random.normal(size=width)), 1e-9 * np.ones(width)):
        found, error = copy.products(vector)
        for row in well[:: 1 if width < 50 else 5]:
            allowed = error * math.hypot(*rows[row].tolist()) * math.hypot(*vector.tolist())
            off = abs(float(found[row]) - true(rows[row], vector))
            assert off <= allowed
            used.append(off / allowed if allowed else 0.0)
    assert max(used) > 0.02  # the bound is not empty: such errors do occur
    assert error < 0.08


def test_a_gaussian_row_loses_about_a_hundredth() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 384)).astype(np.float32)
    assert 0.006 < kept(rows).worst < 0.015
    assert kept(rows).products(rows[0].astype(np.float64))[1] < 0.025


def test_the_bound_is_that_of_the_derivation() -> None:
    assert product_error(0.0, 0.0, 16) == pytest.approx(2**-8, rel=0.02)
    assert product_error(0.01, 0.002, 384) == pytest.approx(0.01 + 1.01 * (0.002 + 2**-8), rel=0.02)


def test_rows_with_one_long_axis_are_named_coarse() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 384)).astype(np.float32)
    rows[[3, 17], 5] = 1e4
    rows[3, 6:] *= 40
    copy = kept(rows)
    assert copy.coarse.tolist() == [3]  # of row 17 the long axis is nearly all there is
    assert copy.worst <= COARSEST
    copy.truncate(3)
    assert not len(copy.coarse)


def test_long_copies_are_read_in_parts_and_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(100, 20)).astype(np.float32)
    vector = rows[0].astype(np.float64)
    whole, _ = kept(rows).products(vector)
    monkeypatch.setattr(int8_rows, "MOST", 7 * 32)
    monkeypatch.setattr(int8_rows, "BLOCK", 9)
    copy = Int8Rows(20)
    for count in (1, 30, 31, 100):
        copy.extend(rows[:count])
        assert len(copy) == count
    np.testing.assert_array_equal(copy.products(vector)[0], whole)


def test_the_vector_zero_scores_zero() -> None:
    found, error = kept(np.ones((3, 4), np.float32)).products(np.zeros(4))
    assert found.tolist() == [0.0] * 3
    assert error == 0.0
