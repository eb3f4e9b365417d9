"""Guards arrays that grow: equal to a list after any changes, and every watcher is told the first row that changed."""

from __future__ import annotations

import numpy as np

from model_code.incdsi.growing import GrowingRows, Largest


def test_equal_to_a_list_after_random_changes() -> None:
    random = np.random.default_rng(0)
    rows, expected = GrowingRows(np.arange(6.0).reshape(3, 2)), np.arange(6.0).reshape(3, 2).tolist()
    for step in range(300):
        fresh = random.normal(size=(int(random.integers(1, 4)), 2))
        kind = step % 4
        if kind < 2:
            rows.append(fresh)
            expected += fresh.tolist()
        elif kind == 2:
            row = int(random.integers(len(expected)))
            rows.replace(row, fresh[0])
            expected[row] = fresh[0].tolist()
        else:
            gone = np.unique(random.integers(0, len(expected), 2))
            rows.delete(gone)
            expected = [value for row, value in enumerate(expected) if row not in gone]
        assert rows.view.tolist() == expected
    rows.truncate(2)
    assert rows.view.tolist() == expected[:2]
    assert len(rows) == 2


def test_a_copy_is_independent_and_the_source_is_not_written_to() -> None:
    source = np.zeros((2, 2))
    rows = GrowingRows(source)
    copy = rows.copy()
    rows.replace(0, np.ones(2))
    assert source.sum() == copy.view.sum() == 0


def test_each_watcher_sees_the_first_change_since_it_looked() -> None:
    rows = GrowingRows(np.zeros((5, 1)))
    early, late = rows.watch(), rows.watch()
    early.first = late.first = 5
    rows.append(np.zeros((1, 1)))
    assert (early.first, late.first) == (5, 5)
    rows.replace(3, np.ones(1))
    early.first = len(rows)
    rows.delete(np.array([4]))
    assert (early.first, late.first) == (4, 3)
    rows.truncate(1)
    assert (early.first, late.first) == (1, 1)


def test_the_largest_follows_every_change() -> None:
    random = np.random.default_rng(1)
    rows = GrowingRows(random.random(5))
    largest = Largest(rows)
    for step in range(200):
        kind = step % 5
        if kind < 2:
            rows.append(random.random(3))
        elif kind == 2:
            rows.replace(int(rows.view.argmax()), random.random())
        elif kind == 3:
            rows.delete(np.array([int(rows.view.argmax())]))
        else:
            rows.truncate(int(random.integers(1, len(rows) + 1)))
        if step % 3:  # several changes may lie between two looks
            assert largest.value() == rows.view.max()
    rows.truncate(0)
    assert largest.value() == 0
