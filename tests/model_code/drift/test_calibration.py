"""Guards what nulls are drawn from: batches of the reference, random or in order, and samples that
have no order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model_code.drift.calibration import Calibration, draw_batches, max_batch_size, sample_rows
from model_code.drift.measures import MEASURES, OldScores, canonical
from tests.model_code.drift.unit_vectors import SETTINGS, reference


def test_drawn_batches_reach_every_document() -> None:
    members = draw_batches(60, 20, 50, seed=0)
    assert members.shape == (50, 60)
    assert (members.sum(axis=1) == 20).all()
    assert members.any(axis=0).all()
    assert (draw_batches(60, 20, 50, seed=0) == members).all()
    assert (draw_batches(60, 20, 50, seed=1) != members).any()
    assert max_batch_size(59, 500) == 19, "a third of the reference"


def test_sample_does_not_depend_on_order() -> None:
    rows = np.random.default_rng(0).standard_normal((30, 4))
    shuffled = rows[np.random.default_rng(1).permutation(30)]
    assert (sample_rows(rows, 10, seed=0) == sample_rows(shuffled, 10, seed=0)).all()
    assert len(np.unique(sample_rows(rows, 10, seed=0), axis=0)) == 10
    assert (rows[canonical(rows)] == shuffled[canonical(shuffled)]).all()


def test_nulls_are_stored_by_size_and_reference(tmp_path: Path) -> None:
    null = Calibration(reference(0), SETTINGS, tmp_path).null("domain_auc", 25)
    assert [path.name for path in tmp_path.iterdir()] == ["domain_auc-25.json"]
    again = Calibration(reference(0), SETTINGS, tmp_path)
    again._draw = None  # so that nothing can be drawn
    assert (again.null("domain_auc", 25) == null).all()
    for other in (
        Calibration(reference(1), SETTINGS, tmp_path),
        Calibration(reference(0), SETTINGS.replace(seed=1)),
    ):
        assert (other.null("domain_auc", 25) != null).any()


def test_nulls_of_scores_are_not_stored(
    tmp_path: Path,
) -> None:
    chance = np.random.default_rng(0)
    found = []
    for _ in range(2):
        calibrated = Calibration(
            reference(), SETTINGS, tmp_path, OldScores(chance.random(200), chance.random(90))
        )
        found.append(
            [
                calibrated.null(measure, 25)
                for measure in ("domain_auc", "new_quality", "asked_quality")
            ]
        )
    (kept,) = tmp_path.iterdir()
    assert kept.name == "domain_auc-25.json"
    assert [bool((first == second).all()) for first, second in zip(*found, strict=True)] == [
        True,
        False,
        False,
    ]


def test_null_values_are_those_of_each_drawn_batch() -> None:
    calibrated = Calibration(
        reference(), SETTINGS, scores=OldScores(*np.random.default_rng(0).random((2, 90)))
    )
    for name in ("new_quality", "asked_quality"):
        values = calibrated.old(MEASURES[name])
        members = draw_batches(len(values), 25, SETTINGS.draws, SETTINGS.seed)
        expected = [MEASURES[name].statistic(values[~row], values[row], 0) for row in members]
        np.testing.assert_allclose(calibrated.null(name, 25), expected)
