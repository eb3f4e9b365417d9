"""Guards the passes over the collection: their error bounds hold in float32 and bfloat16, their mirrors follow changes,
and vectors do not depend on the precision."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.encoding import hardware
from model_code.errors import SettingsError
from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.growing import GrowingRows
from model_code.incdsi.passes import bfloat16_error, float32_error
from model_code.incdsi.rivals import highest
from model_code.incdsi.scan_choice import scan
from model_code.incdsi.scans import DeviceScan, HostScan
from model_code.incdsi.settings import IncDsiSettings
from tests.model_code.incdsi.small import make


def scans(rows: GrowingRows) -> dict[str, HostScan | DeviceScan]:
    return {
        "host": HostScan(rows),
        "float32": DeviceScan(rows, "cpu", "float32"),
        "bfloat16": DeviceScan(rows, "cpu", "bfloat16"),
    }


@pytest.mark.parametrize("kind", ["host", "float32", "bfloat16"])
@pytest.mark.parametrize("width", [1, 7, 384])
def test_scores_stay_within_the_bound(kind: str, width: int) -> None:
    random = np.random.default_rng(width)
    rows = (random.normal(size=(400, width)) * 10.0 ** random.uniform(-3, 3, (400, 1))).astype(np.float32)
    rows[::3] = np.abs(rows[::3])  # sums that do not cancel round worst
    for vectors in (random.normal(size=(1, width)), np.abs(random.normal(size=(9, width)))):
        for vector, found in zip(vectors, scans(GrowingRows(rows))[kind].passes(vectors), strict=True):
            true = (rows.astype(np.float64) * vector).sum(axis=1)
            allowed = found.uncertainty * np.linalg.norm(rows.astype(np.float64), axis=1)
            off = np.abs(found.scores - true)
            assert (off <= allowed).all()
            if kind == "bfloat16" and width > 1:
                assert off.max() > 0.01 * allowed.max()  # the bound is not empty: such errors do occur


def test_the_bounds_are_those_of_the_derivation() -> None:
    assert float32_error(384) == pytest.approx(386 * 2**-24, rel=0.02)
    assert 2**-6.42 < bfloat16_error(384) < 2**-6.40


def test_every_mirror_follows_every_change() -> None:
    rows = GrowingRows(np.eye(4, dtype=np.float32))
    ask, both = np.arange(1.0, 5.0)[None], [DeviceScan(rows, "cpu", "float32") for _ in range(2)]

    def scores() -> list[list[float]]:
        return [one.passes(ask)[0].scores.tolist() for one in both]

    assert scores() == [[1, 2, 3, 4]] * 2
    rows.append(np.ones((30, 4), np.float32))
    rows.replace(1, np.zeros(4, np.float32))
    assert scores() == [[1, 0, 3, 4] + [10] * 30] * 2
    rows.delete(np.array([0, 5]))
    assert scores() == [[0, 3, 4] + [10] * 29] * 2
    rows.truncate(2)
    assert scores() == [[0, 3]] * 2


def test_vectors_do_not_depend_on_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: True)
    state, documents = make(300, 8, width=16)
    found = [
        IncDsiAdder(state.copy(), IncDsiSettings(precision=precision)).add_batch(documents)
        for precision in ("float32", "bfloat16")
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)


@pytest.mark.parametrize("count", [1, 16, 200, 5000])
def test_the_highest_scores_are_found_by_their_blocks(count: int) -> None:
    scores = np.random.default_rng(count).normal(size=5000).astype(np.float32)
    for held in (scores, scores[:70], scores[:0]):
        assert sorted(highest(held, count).tolist()) == sorted(np.argsort(-held)[:count].tolist())


def test_emulated_bfloat16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_bfloat16", lambda device: False)
    with pytest.raises(SettingsError, match="would be slower: choose float32"):
        scan(GrowingRows(np.eye(2)), "cpu", "bfloat16")


def test_a_gpus_bfloat16_has_no_proven_bound() -> None:
    with pytest.raises(SettingsError, match="on a CPU only"):
        DeviceScan(GrowingRows(np.eye(2)), "cuda", "bfloat16")
