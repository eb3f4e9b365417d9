"""Guards the int8 shortcut: the vectors, statuses and proofs are those of float32 through additions, updates and
deletions, it follows every change, and it is not used where it does not pay."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.incdsi import compressed
from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.compressed import CompressedScan
from model_code.incdsi.documents import Added, NewDocument
from model_code.incdsi.growing import GrowingRows
from model_code.incdsi.settings import IncDsiSettings
from tests.model_code.incdsi.small import make
from tests.model_code.incdsi.test_adder import WAYS, assert_equal_states, assert_same


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "LARGE", 0)
    monkeypatch.setattr(compressed, "PATIENCE", 3)


def life(adder: IncDsiAdder, documents: list[NewDocument]) -> list[Added]:
    """Additions, updates and a deletion, so that the copies grow, shrink and fall behind."""
    found = [adder.add(document) for document in documents[:8]]
    found.append(adder.update(NewDocument("old 3", documents[9].queries, documents[9].encoding)))
    adder.delete(["old 7", "new 2"])
    found += adder.add_batch(documents[8:12])
    return found + [adder.add(document) for document in documents[12:]]


@pytest.mark.parametrize(("seed", "settings"), enumerate(WAYS))
def test_vectors_and_proofs_are_those_of_float32(seed: int, settings: IncDsiSettings) -> None:
    state, documents = make(200, 16, width=24, seed=seed)
    coarse = IncDsiAdder(state.copy(), settings)
    plain = IncDsiAdder(state.copy(), IncDsiSettings(**{**vars(settings), "precision": "float32"}))
    ours, theirs = life(coarse, documents), life(plain, documents)
    assert isinstance(coarse.refiner.queries, CompressedScan)
    assert len(coarse.refiner.queries._copy) > 100
    assert_same(ours, theirs)
    assert_equal_states(coarse.state, plain.state)
    for one, other in zip(ours, theirs, strict=True):
        assert one.solution.certificate.proven == other.solution.certificate.proven
        np.testing.assert_array_equal(one.solution.active, other.solution.active)


def test_the_copy_follows_every_change() -> None:
    random = np.random.default_rng(0)
    rows = GrowingRows(random.normal(size=(50, 8)).astype(np.float32))
    scan = CompressedScan(rows)
    steps = [
        lambda: None,
        lambda: rows.append(random.normal(size=(30, 8)).astype(np.float32)),
        lambda: rows.replace(4, np.full(8, 9.0, np.float32)),
        lambda: rows.delete(np.array([0, 20])),
        lambda: rows.truncate(10),
    ]
    for change in steps:
        change()
        for _ in range(6):
            vector = random.normal(size=8)
            found = scan.passes(vector[None])[0]
            true = rows.view.astype(np.float64) @ vector
            allowed = found.uncertainty * np.linalg.norm(rows.view.astype(np.float64), axis=1)
            assert (np.abs(found.scores - true) <= allowed).all()
        assert len(scan._copy) == len(rows)
        assert found.error > 0.003


def test_it_waits_until_the_copy_pays() -> None:
    scan = CompressedScan(GrowingRows(np.eye(8, dtype=np.float32)))
    errors = [scan.passes(np.ones((1, 8)))[0].error for _ in range(5)]
    assert max(errors[:3]) < 1e-6 < 1e-3 < min(errors[3:])
    assert all(seen.error < 1e-6 for seen in scan.passes(np.ones((compressed.FEW + 1, 8))))


def test_small_collections_and_coarse_rows_stay_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    spiky = np.random.default_rng(0).normal(size=(64, 384)).astype(np.float32)
    spiky[:, 0] = 60
    scan = CompressedScan(GrowingRows(spiky))
    assert all(scan.passes(spiky[:1].astype(float))[0].error < 1e-3 for _ in range(8))
    assert len(scan._copy.coarse) > 1
    monkeypatch.setattr(compressed, "LARGE", 10**6)
    scan = CompressedScan(GrowingRows(np.eye(8, dtype=np.float32)))
    assert all(scan.passes(np.ones((1, 8)))[0].error < 1e-6 for _ in range(8))
    assert not len(scan._copy)
