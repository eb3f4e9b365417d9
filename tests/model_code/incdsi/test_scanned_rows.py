"""Tests of rows that grow, of their scores and of sets of rows.

The rows equal a list after any changes. The errors of float32 scores and of coarse scores stay
within their bounds, whatever happened to the rows.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from model_code.incdsi import scanned_rows
from model_code.incdsi.scanned_rows import (
    MAX_COPY_ERROR,
    GrowingRows,
    Int8Rows,
    ScannedRows,
    difference,
    float32_error,
    rounded_row_dots,
    row_dots,
    sorted_union,
    top_positions,
)
from model_code.incdsi.state import IncDsiState
from tests.model_code.incdsi.small import make_collection


def delete_from_list(rows: list[list[float]], deleted: list[int]) -> list[list[float]]:
    """Fill the holes of deleted rows with the last rows, as `GrowingRows` does."""
    count = len(rows) - len(deleted)
    last_rows = []
    for position in range(count, len(rows)):
        if position not in deleted:
            last_rows.append(rows[position])

    remaining = rows[:count]
    for position in deleted:
        if position < count:
            remaining[position] = last_rows.pop(0)
    return remaining


@pytest.mark.parametrize("chunk", [3, 8192])
def test_rounded_products_equal_row_dots(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanned_rows, "CHUNK_ROWS", chunk)
    random = np.random.default_rng(0)
    rows = random.normal(size=(50, 384))
    vectors = random.normal(size=(20, 384))
    # The products with the first vector lie next to the middle of two float32 numbers. So the last
    # bits decide how they are rounded.
    vectors[0, -1] = 1
    rows[:, -1] = 0
    dots = row_dots(rows, vectors[0])
    floats = dots.astype(np.float32)
    above = np.nextafter(floats, np.float32(np.inf))
    rows[:, -1] = (floats.astype(np.float64) + above) / 2 - dots

    products = rounded_row_dots(rows, vectors)

    for vector, row in zip(vectors, products, strict=True):
        assert row.tolist() == row_dots(rows, vector).astype(np.float32).tolist()


def test_few_products_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 64))
    vectors = random.normal(size=(100, 64))
    counts: list[int] = []

    def count(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        counts.append(len(left))
        return row_dots(left, right)

    monkeypatch.setattr(scanned_rows, "row_dots", count)
    rounded_row_dots(rows, vectors)

    # `row_norms` computes 500 products.
    assert sum(counts) < 500 + 40_000 // 100


def test_rows_equal_a_list_after_random_changes() -> None:
    random = np.random.default_rng(0)
    start = np.arange(6.0).reshape(3, 2)
    rows = GrowingRows(start)
    expected = start.tolist()

    for step in range(300):
        new_rows = random.normal(size=(int(random.integers(1, 4)), 2))
        if step % 2:
            rows.append(new_rows)
            expected = expected + new_rows.tolist()
        else:
            deleted = np.unique(random.integers(0, len(expected), 2))
            rows.delete(deleted)
            expected = delete_from_list(expected, deleted.tolist())
        assert rows.view.tolist() == expected


def test_truncated_rows_keep_the_first() -> None:
    rows = GrowingRows(np.arange(6.0).reshape(3, 2))
    rows.append(np.ones((2, 2)))

    rows.truncate(2)

    assert rows.view.tolist() == [[0, 1], [2, 3]]
    assert len(rows) == 2


def test_copied_rows_are_independent() -> None:
    source = np.zeros((2, 2))
    rows = GrowingRows(source)
    copy = deepcopy(rows)

    rows.append(np.ones((1, 2)))
    rows.delete(np.array([0]))

    assert source.sum() == 0
    assert copy.view.sum() == 0


def test_largest_follows_every_change() -> None:
    random = np.random.default_rng(1)
    rows = GrowingRows(random.random(5))

    for step in range(200):
        kind = step % 4
        if kind < 2:
            rows.append(random.random(3))
        elif kind == 2:
            rows.delete(np.array([int(rows.view.argmax())]))
        else:
            rows.truncate(int(random.integers(1, len(rows) + 1)))
        # Several changes may lie between two reads.
        if step % 3:
            assert rows.largest() == rows.view.max()


def test_no_rows_have_a_largest_of_zero() -> None:
    rows = GrowingRows(np.ones(5))

    rows.truncate(0)

    assert rows.largest() == 0


def require_bounded_errors(rows: ScannedRows, vectors: np.ndarray) -> None:
    """Check each score of `scan` against float64, and its error against the stated uncertainty."""
    exact_rows = rows.view.astype(np.float64)
    lengths = np.linalg.norm(exact_rows, axis=1)
    for vector, scan in zip(vectors, rows.scan(vectors), strict=True):
        exact_scores = (exact_rows * vector).sum(axis=1)
        errors = np.abs(scan.scores - exact_scores)
        assert (errors <= scan.uncertainty * lengths).all()


@pytest.mark.parametrize("width", [1, 7, 384])
def test_scores_stay_within_derived_bound(width: int) -> None:
    random = np.random.default_rng(width)
    directions = random.normal(size=(400, width))
    lengths = 10.0 ** random.uniform(-3, 3, (400, 1))
    rows = (directions * lengths).astype(np.float32)
    # Sums that do not cancel have the largest rounding errors.
    rows[::3] = np.abs(rows[::3])

    scanned = ScannedRows(rows)

    require_bounded_errors(scanned, random.normal(size=(1, width)))
    require_bounded_errors(scanned, np.abs(random.normal(size=(9, width))))


@pytest.mark.parametrize("width", [1, 7, 384])
def test_float32_error_grows_with_the_width(width: int) -> None:
    assert float32_error(width) == pytest.approx((width + 2) * 2**-24, rel=0.02)


@pytest.mark.parametrize("count", [1, 16, 200, 5000])
@pytest.mark.parametrize("rows", [5000, 70, 0])
def test_highest_scores_are_found_by_their_blocks(count: int, rows: int) -> None:
    scores = np.random.default_rng(count).normal(size=5000).astype(np.float32)[:rows]

    positions = top_positions(scores, count)

    expected = np.argsort(-scores)[:count]
    assert sorted(positions.tolist()) == sorted(expected.tolist())


@pytest.mark.parametrize("sizes", [(0, 0), (0, 4), (4, 0), (7, 3), (3, 30), (50, 50)])
@pytest.mark.parametrize("seed", range(5))
def test_sets_of_rows_equal_those_of_numpy(sizes: tuple[int, int], seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(60, sizes[0], replace=False))
    others = np.sort(random.choice(60, sizes[1], replace=False))

    remaining = difference(rows, others)
    union = sorted_union(remaining, random.permutation(others))

    assert remaining.tolist() == np.setdiff1d(rows, others).tolist()
    assert union.tolist() == np.union1d(rows, others).tolist()


@pytest.fixture
def _copy_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the coarse copy of the rows before the third scan."""
    monkeypatch.setattr(scanned_rows, "MIN_COPIED_NUMBERS", 1)
    monkeypatch.setattr(scanned_rows, "SCANS_BEFORE_COPY", 2)


@pytest.mark.usefixtures("_copy_early")
@pytest.mark.parametrize("width", [3, 16, 100, 384])
def test_scores_stay_within_the_bound_after_every_change(width: int) -> None:
    random = np.random.default_rng(width)
    first_rows = random.normal(size=(50, width)).astype(np.float32)
    first_rows[3] = 0
    first_rows[4] *= 1e-20
    rows = ScannedRows(first_rows)

    for step in range(40):
        kind = step % 3
        if kind == 0:
            rows.append(random.normal(size=(7, width)).astype(np.float32))
        elif kind == 1:
            rows.delete(np.unique(random.integers(len(rows), size=3)))
        else:
            rows.truncate(len(rows) - 2)
        vectors = random.normal(size=(int(random.integers(1, 7)), width))
        require_bounded_errors(rows, vectors)
    require_bounded_errors(rows, np.zeros((1, width)))


@pytest.mark.usefixtures("_copy_early")
def test_third_scan_reads_the_coarse_copy() -> None:
    rows = ScannedRows(np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32))
    vector = np.ones((1, 32))

    rows.scan(vector)
    exact_uncertainty = rows.scan(vector)[0].uncertainty
    coarse_uncertainty = rows.scan(vector)[0].uncertainty

    assert coarse_uncertainty > 100 * exact_uncertainty
    assert len(rows._copy) == 40


@pytest.mark.usefixtures("_copy_early")
def test_coarse_copy_ends_before_a_deleted_row() -> None:
    rows = ScannedRows(np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32))
    for _ in range(3):
        rows.scan(np.ones((1, 32)))

    rows.delete(np.array([10]))

    assert len(rows._copy) == 10


@pytest.fixture
def row_with_spike() -> np.ndarray:
    """One row whose largest number leaves int8 no precision for the others."""
    row = np.full((1, 384), 0.1, np.float32)
    row[0, 0] = 40.0
    return row


def test_row_with_a_spike_is_unsuitable_for_int8(row_with_spike: np.ndarray) -> None:
    copy = Int8Rows(384)

    copy.extend(row_with_spike)

    assert copy.worst > MAX_COPY_ERROR


@pytest.mark.usefixtures("_copy_early")
def test_rows_unsuitable_for_int8_stay_float32(row_with_spike: np.ndarray) -> None:
    rows = ScannedRows(row_with_spike)

    uncertainties = {rows.scan(np.ones((1, 384)))[0].uncertainty for _ in range(5)}

    assert len(uncertainties) == 1


def test_worst_error_is_that_of_the_rows() -> None:
    rows = np.random.default_rng(1).normal(size=(200, 64)).astype(np.float32)
    copy = Int8Rows(64)

    copy.extend(rows)

    codes = copy._codes.view[:, :64]
    copied = codes * copy._scales.view[:, None].astype(np.float64)
    errors = np.linalg.norm(rows - copied, axis=1) / np.linalg.norm(rows, axis=1)
    assert copy.worst == pytest.approx(errors.max())
    assert 0.001 < copy.worst < 0.02


def test_row_statistics_do_not_depend_on_chunk_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, _ = make_collection(60, 0, width=33)

    monkeypatch.setattr(scanned_rows, "CHUNK_ROWS", 7)
    in_small_chunks = IncDsiState(state.vectors.view, state.queries.view, state.ids)

    np.testing.assert_array_equal(in_small_chunks.own_scores.view, state.own_scores.view)


def test_score_of_one_row_equals_that_of_many() -> None:
    state, _ = make_collection(60, 0, width=33)

    score = scanned_rows.row_dots(state.queries.view[31:32], state.vectors.view[31])

    np.testing.assert_array_equal(score, state.own_scores.view[31:32])
