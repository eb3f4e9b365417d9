"""Guards the coarse scan: true scores lie within the bound that a pass states, whatever happened to the rows."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.incdsi import scans
from model_code.incdsi.scans import COARSEST, Int8Rows, ScannedRows


@pytest.fixture(autouse=True)
def small_and_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "LARGE", 1)
    monkeypatch.setattr(scans, "PATIENCE", 2)


def require_bounded(rows: ScannedRows, vectors: np.ndarray) -> None:
    for vector, seen in zip(vectors, rows.scan(vectors), strict=True):
        exact = rows.view.astype(np.float64)
        assert (np.abs(seen.scores - exact @ vector) <= seen.uncertainty * np.linalg.norm(exact, axis=1)).all()


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


def test_rows_are_copied_once_that_pays_and_changed_ones_again() -> None:
    rows = ScannedRows(np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32))
    vector = np.ones((1, 32))
    fine = [rows.scan(vector)[0].uncertainty for _ in range(2)][-1]
    assert rows.scan(vector)[0].uncertainty > 100 * fine, "the third one reads the copy"
    assert len(rows._copy) == 40
    rows.delete(np.array([10]))
    assert len(rows._copy) == 10
    copied = rows.copy()
    assert copied.scan(vector)[0].uncertainty == fine, "a copy of the state begins anew"


def test_rows_that_int8_keeps_badly_are_read_in_float32() -> None:
    kept, spike = Int8Rows(384), np.full((1, 384), 0.1, np.float32)
    spike[0, 0] = 40.0
    kept.extend(spike)
    assert kept.worst > COARSEST
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
