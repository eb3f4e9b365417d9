"""Guards rows that grow (equal to a list after any changes), the error bound of float32 scores, and sets of rows."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from model_code.incdsi import rows as rows_of
from model_code.incdsi.rows import GrowingRows, ScannedRows, float32_error, highest, joined, minus
from model_code.incdsi.state import IncDsiState
from tests.model_code.incdsi.small import make


def test_equal_to_a_list_after_random_changes() -> None:
    random = np.random.default_rng(0)
    rows, expected = GrowingRows(np.arange(6.0).reshape(3, 2)), np.arange(6.0).reshape(3, 2).tolist()
    for step in range(300):
        fresh = random.normal(size=(int(random.integers(1, 4)), 2))
        if step % 2:
            rows.append(fresh)
            expected += fresh.tolist()
        else:
            gone = np.unique(random.integers(0, len(expected), 2))
            rows.delete(gone)
            last = [value for row, value in enumerate(expected) if row >= len(expected) - len(gone) and row not in gone]
            for row in gone[gone < len(expected) - len(gone)].tolist():
                expected[row] = last.pop(0)
            expected = expected[: len(rows)]
        assert rows.view.tolist() == expected
    rows.truncate(2)
    assert rows.view.tolist() == expected[:2]
    assert len(rows) == 2


def test_a_copy_is_independent_and_the_source_is_not_written_to() -> None:
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


@pytest.mark.parametrize("width", [1, 7, 384])
def test_scores_stay_within_the_bound(width: int) -> None:
    random = np.random.default_rng(width)
    rows = (random.normal(size=(400, width)) * 10.0 ** random.uniform(-3, 3, (400, 1))).astype(np.float32)
    rows[::3] = np.abs(rows[::3])  # sums that do not cancel round worst
    for vectors in (random.normal(size=(1, width)), np.abs(random.normal(size=(9, width)))):
        for vector, seen in zip(vectors, ScannedRows(rows).scan(vectors), strict=True):
            true = (rows.astype(np.float64) * vector).sum(axis=1)
            allowed = seen.uncertainty * np.linalg.norm(rows.astype(np.float64), axis=1)
            assert (np.abs(seen.scores - true) <= allowed).all()


def test_the_bound_is_that_of_the_derivation() -> None:
    assert float32_error(384) == pytest.approx(386 * 2**-24, rel=0.02)


@pytest.mark.parametrize("count", [1, 16, 200, 5000])
def test_the_highest_scores_are_found_by_their_blocks(count: int) -> None:
    scores = np.random.default_rng(count).normal(size=5000).astype(np.float32)
    for held in (scores, scores[:70], scores[:0]):
        assert sorted(highest(held, count).tolist()) == sorted(np.argsort(-held)[:count].tolist())


@pytest.mark.parametrize("sizes", [(0, 0), (0, 4), (4, 0), (7, 3), (3, 30), (50, 50)])
@pytest.mark.parametrize("seed", range(5))
def test_sets_of_rows_are_equal_to_numpys(sizes: tuple[int, int], seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, others = (np.sort(random.choice(60, size, replace=False)) for size in sizes)
    rest = minus(rows, others)
    assert rest.tolist() == np.setdiff1d(rows, others).tolist()
    assert joined(rest, random.permutation(others)).tolist() == np.union1d(rows, others).tolist()


def test_what_follows_from_the_rows_does_not_depend_on_how_many_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = make(60, 0, width=33)
    monkeypatch.setattr(rows_of, "PART", 7)
    again = IncDsiState(state.vectors.view, state.queries.view, state.ids)
    np.testing.assert_array_equal(again.own_scores.view, state.own_scores.view)
    one = rows_of.dots(state.queries.view[31:32], state.vectors.view[31])
    np.testing.assert_array_equal(one, state.own_scores.view[31:32])
