"""Test calibration: the batches and samples from which null values are drawn, and their cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from model_code.drift.calibration import Calibration, draw_batches, max_batch_size, sample_rows
from model_code.drift.measures import MEASURES, OldScores, canonical
from tests.model_code.drift.unit_vectors import SETTINGS, reference


def test_drawn_batches_have_the_requested_size() -> None:
    members = draw_batches(60, 20, 50, seed=0)

    assert members.shape == (50, 60)
    assert (members.sum(axis=1) == 20).all()


def test_drawn_batches_reach_every_document() -> None:
    members = draw_batches(60, 20, 50, seed=0)

    assert members.any(axis=0).all()


def test_drawn_batches_depend_on_the_seed_alone() -> None:
    members = draw_batches(60, 20, 50, seed=0)

    assert (draw_batches(60, 20, 50, seed=0) == members).all()
    assert (draw_batches(60, 20, 50, seed=1) != members).any()


def test_largest_batch_is_a_third_of_the_reference() -> None:
    assert max_batch_size(59, 500) == 19


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((30, 4))


@pytest.fixture
def shuffled_rows(rows: np.ndarray) -> np.ndarray:
    order = np.random.default_rng(1).permutation(30)
    return rows[order]


def test_sample_does_not_depend_on_order(rows: np.ndarray, shuffled_rows: np.ndarray) -> None:
    sample = sample_rows(rows, 10, seed=0)

    assert (sample == sample_rows(shuffled_rows, 10, seed=0)).all()


def test_sample_repeats_no_row(rows: np.ndarray) -> None:
    sample = sample_rows(rows, 10, seed=0)

    assert len(np.unique(sample, axis=0)) == 10


def test_canonical_order_does_not_depend_on_order(
    rows: np.ndarray, shuffled_rows: np.ndarray
) -> None:
    canonical_rows = rows[canonical(rows)]
    canonical_shuffled_rows = shuffled_rows[canonical(shuffled_rows)]

    assert (canonical_rows == canonical_shuffled_rows).all()


@pytest.fixture(scope="module")
def null_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that stores null values of `reference(0)`."""
    return tmp_path_factory.mktemp("nulls")


@pytest.fixture(scope="module")
def null(null_folder: Path) -> np.ndarray:
    return Calibration(reference(0), SETTINGS, null_folder).null("domain_auc", 25)


@pytest.mark.usefixtures("null")
def test_null_is_stored_by_measure_and_size(null_folder: Path) -> None:
    assert [path.name for path in null_folder.iterdir()] == ["domain_auc-25.json"]


def test_stored_null_is_read_and_not_drawn(null: np.ndarray, null_folder: Path) -> None:
    reopened = Calibration(reference(0), SETTINGS, null_folder)
    # Any attempt to draw fails.
    reopened._draw = None

    assert (reopened.null("domain_auc", 25) == null).all()


def test_stored_null_of_another_reference_is_not_read(
    null: np.ndarray, null_folder: Path, tmp_path: Path
) -> None:
    # The stored null is replaced, so the folder is copied.
    shutil.copytree(null_folder, tmp_path, dirs_exist_ok=True)
    other_reference = Calibration(reference(1), SETTINGS, tmp_path)

    assert (other_reference.null("domain_auc", 25) != null).any()


def test_null_depends_on_the_seed(null: np.ndarray) -> None:
    other_seed = Calibration(reference(0), SETTINGS.replace(seed=1))

    assert (other_seed.null("domain_auc", 25) != null).any()


def test_nulls_of_scores_are_not_stored(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first_scores = OldScores(rng.random(200), rng.random(90))
    second_scores = OldScores(rng.random(200), rng.random(90))
    first = Calibration(reference(), SETTINGS, tmp_path, first_scores)
    second = Calibration(reference(), SETTINGS, tmp_path, second_scores)

    for measure in ("domain_auc", "new_quality", "asked_quality"):
        first.null(measure, 25)

    assert [path.name for path in tmp_path.iterdir()] == ["domain_auc-25.json"]
    assert (first.null("domain_auc", 25) == second.null("domain_auc", 25)).all()
    assert (first.null("new_quality", 25) != second.null("new_quality", 25)).any()
    assert (first.null("asked_quality", 25) != second.null("asked_quality", 25)).any()
    assert [path.name for path in tmp_path.iterdir()] == ["domain_auc-25.json"]


@pytest.mark.parametrize("name", ["new_quality", "asked_quality"])
def test_null_holds_one_value_per_drawn_batch(name: str) -> None:
    made, asked = np.random.default_rng(0).random((2, 90))
    calibration = Calibration(reference(), SETTINGS, scores=OldScores(made, asked))
    measure = MEASURES[name]

    null = calibration.null(name, 25)

    scores = calibration.old(measure)
    expected = []
    for members in draw_batches(len(scores), 25, SETTINGS.draws, SETTINGS.seed):
        expected.append(measure.statistic(scores[~members], scores[members], 0))
    np.testing.assert_allclose(null, expected)
