"""Guards rows that grow (equal to a list after any changes), the error bounds of float32 and of
coarse scores whatever happened to the rows, and sets of rows.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from model_code.incdsi import rows as rows_of
from model_code.incdsi.rows import (
    MAX_COPY_ERROR,
    GrowingRows,
    Int8Rows,
    ScannedRows,
    difference,
    float32_error,
    sorted_union,
    top_positions,
)
from model_code.incdsi.state import IncDsiState
from tests.model_code.incdsi.small import make


def test_equal_to_a_list_after_random_changes() -> None:
    random = np.random.default_rng(0)
    rows, expected = (
        GrowingRows(np.arange(6.0).reshape(3, 2)),
        np.arange(6.0).reshape(3, 2).tolist(),
    )
    for step in range(300):
        fresh = random.normal(size=(int(random.integers(1, 4)), 2))
        if step % 2:
            rows.append(fresh)
            expected += fresh.tolist()
        else:
            gone = np.unique(random.integers(0, len(expected), 2))
            rows.delete(gone)
            last = [
                value
                for row, value in enumerate(expected)
                if row >= len(expected) - len(gone) and row not in gone
            ]
            for row in gone[gone < len(expected) - len(gone)].tolist():
                expected[row] = last.pop(0)
            expected = expected[: len(rows)]
        assert rows.view.tolist() == expected
    rows.truncate(2)
    assert rows.view.tolist() == expected[:2]
    assert len(rows) == 2


def test_copied_rows_are_independent() -> None:
    source = np.zeros((2, 2))
    rows = GrowingRows(source)
    copy = deepcopy(rows)
    rows.append(np.ones((1, 2)))
    rows.delete(np.array([0]))
    assert source.sum() == copy.view.sum() == 0


def test_the_largest_follows_every_change() -> None:
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
        if step % 3:  # several changes may lie between two looks
            assert rows.largest() == rows.view.max()
    rows.truncate(0)
    assert rows.largest() == 0


def require_bounded(rows: ScannedRows, vectors: np.ndarray) -> None:
    exact = rows.view.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1)
    for vector, seen in zip(vectors, rows.scan(vectors), strict=True):
        assert (
            np.abs(seen.scores - (exact * vector).sum(axis=1)) <= seen.uncertainty * lengths
        ).all()


@pytest.mark.parametrize("width", [1, 7, 384])
def test_scores_stay_within_derived_bound(width: int) -> None:
    random = np.random.default_rng(width)
    rows = (random.normal(size=(400, width)) * 10.0 ** random.uniform(-3, 3, (400, 1))).astype(
        np.float32
    )
    rows[::3] = np.abs(rows[::3])  # sums that do not cancel round worst
    for vectors in (random.normal(size=(1, width)), np.abs(random.normal(size=(9, width)))):
        require_bounded(ScannedRows(rows), vectors)
    assert float32_error(width) == pytest.approx((width + 2) * 2**-24, rel=0.02)


@pytest.mark.parametrize("count", [1, 16, 200, 5000])
def test_the_highest_scores_are_found_by_their_blocks(count: int) -> None:
    scores = np.random.default_rng(count).normal(size=5000).astype(np.float32)
    for held in (scores, scores[:70], scores[:0]):
        assert sorted(top_positions(held, count).tolist()) == sorted(
            np.argsort(-held)[:count].tolist()
        )


@pytest.mark.parametrize("sizes", [(0, 0), (0, 4), (4, 0), (7, 3), (3, 30), (50, 50)])
@pytest.mark.parametrize("seed", range(5))
def test_sets_of_rows_are_equal_to_numpys(sizes: tuple[int, int], seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, others = (np.sort(random.choice(60, size, replace=False)) for size in sizes)
    rest = difference(rows, others)
    assert rest.tolist() == np.setdiff1d(rows, others).tolist()
    assert (
        sorted_union(rest, random.permutation(others)).tolist() == np.union1d(rows, others).tolist()
    )


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of, "MIN_COPIED_NUMBERS", 1)
    monkeypatch.setattr(rows_of, "SCANS_BEFORE_COPY", 2)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("width", [3, 16, 100, 384])
def test_scores_lie_within_the_bound_after_every_change(width: int) -> None:
    random = np.random.default_rng(width)
    first = random.normal(size=(50, width)).astype(np.float32)
    first[3], first[4] = 0, first[4] * 1e-20
    rows = ScannedRows(first)
    changes = [
        lambda: rows.append(random.normal(size=(7, width)).astype(np.float32)),
        lambda: rows.delete(np.unique(random.integers(len(rows), size=3))),
        lambda: rows.truncate(len(rows) - 2),
    ]
    for step in range(40):
        changes[step % 3]()
        require_bounded(rows, random.normal(size=(int(random.integers(1, 7)), width)))
    require_bounded(rows, np.zeros((1, width)))


@pytest.mark.usefixtures("_impatient")
def test_rows_are_copied_once_it_pays() -> None:
    rows = ScannedRows(np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32))
    vector = np.ones((1, 32))
    fine = [rows.scan(vector)[0].uncertainty for _ in range(2)][-1]
    assert rows.scan(vector)[0].uncertainty > 100 * fine, "the third one reads the copy"
    assert len(rows._copy) == 40
    rows.delete(np.array([10]))
    assert len(rows._copy) == 10


@pytest.mark.usefixtures("_impatient")
def test_rows_unsuitable_for_int8_stay_float32() -> None:
    kept, spike = Int8Rows(384), np.full((1, 384), 0.1, np.float32)
    spike[0, 0] = 40.0
    kept.extend(spike)
    assert kept.worst > MAX_COPY_ERROR
    rows = ScannedRows(spike)
    bounds = {rows.scan(np.ones((1, 384)))[0].uncertainty for _ in range(5)}
    assert len(bounds) == 1


def test_the_worst_loss_is_that_of_the_rows() -> None:
    rows = np.random.default_rng(1).normal(size=(200, 64)).astype(np.float32)
    kept = Int8Rows(64)
    kept.extend(rows)
    told = kept._codes.view[:, :64] * kept._scales.view[:, None].astype(np.float64)
    lost = np.linalg.norm(rows - told, axis=1) / np.linalg.norm(rows, axis=1)
    assert kept.worst == pytest.approx(lost.max())
    assert 0.001 < kept.worst < 0.02


def test_row_statistics_do_not_depend_on_chunk_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, _ = make(60, 0, width=33)
    monkeypatch.setattr(rows_of, "CHUNK_ROWS", 7)
    again = IncDsiState(state.vectors.view, state.queries.view, state.ids)
    np.testing.assert_array_equal(again.own_scores.view, state.own_scores.view)
    one = rows_of.row_dots(state.queries.view[31:32], state.vectors.view[31])
    np.testing.assert_array_equal(one, state.own_scores.view[31:32])
