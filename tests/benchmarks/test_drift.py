"""Tests of the benchmark `drift`.

Its rows follow from their numbers, its intervals are those of scipy, and it tells harm from no harm.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks import drift, drift_batches
from benchmarks.drift import simulate, wilson
from benchmarks.drift_batches import (
    CellCounts,
    StudyPlan,
    Vectors,
    mix_batch,
    population_stability,
    reciprocal_ranks,
    studies,
)
from model_code.errors import FreshetError
from tests.benchmarks.rows import COLUMNS, WORDS, write_beir
from tests.tiny_encoder import make_tiny_encoder

TINY = StudyPlan(
    reference=120, batch=20, per_source=20, splits=1, more_splits=0, repeats=2, max_tokens=16
)


def make_docstrings(packages: tuple[str, ...]) -> list[tuple[str, str]]:
    """Make texts of random words, whose queries are their first words.

    Several packages have other words and more texts than a single one.
    """
    chance = np.random.default_rng(len(packages))
    words = WORDS[8:]
    count = 25
    if len(packages) > 1:
        words = WORDS[:16]
        count = 170
    docstrings = []
    for _ in range(count):
        text = list(chance.choice(words, 8))
        docstrings.append((" ".join(text), " ".join(text[:4])))
    return docstrings


class StudyOutput(NamedTuple):
    """The rows of a study of docstrings, and the folder of its curve."""

    rows: list[dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def docstring_study(tmp_path_factory: pytest.TempPathFactory) -> StudyOutput:
    """A small study of docstrings."""
    root = tmp_path_factory.mktemp("study")
    base = make_tiny_encoder(root / "encoder", WORDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift_batches, "_docstrings", make_docstrings)
        patch.setattr(drift_batches, "NEIGHBOURS", ("scipy",))
        patch.delenv("FRESHET_DATA", raising=False)
        rows = drift.rows(base=base, plan=TINY, output=root / "out")
    return StudyOutput(rows, root / "out")


@pytest.mark.full
def test_rows_follow_from_their_numbers(docstring_study: StudyOutput) -> None:
    assert len(docstring_study.rows) == 1 + 2 * 4

    for row in docstring_study.rows:
        met = None
        if row["goal"] != "-":
            met = row["ours"] >= row["goal"]
        ratio = None
        if row["peer"]:
            ratio = row["ours"] / row["peer"]
        assert list(row) == COLUMNS
        assert row["met"] is met
        assert row["ratio"] == ratio


@pytest.mark.full
def test_rows_can_be_written_as_json(docstring_study: StudyOutput) -> None:
    assert json.dumps(docstring_study.rows)


@pytest.mark.full
def test_curve_has_alarms_within_their_intervals(docstring_study: StudyOutput) -> None:
    with (docstring_study.folder / "drift_curve.csv").open() as stream:
        curve = list(csv.DictReader(stream))

    assert [point["share"] for point in curve[1:5]] == ["0.1", "0.25", "0.5", "1.0"]
    for point in curve:
        assert float(point["alarm_low"]) <= float(point["alarm"])
        assert float(point["alarm"]) <= float(point["alarm_high"])


@pytest.mark.full
def test_curve_is_drawn(docstring_study: StudyOutput) -> None:
    picture = (docstring_study.folder / "drift_curve.png").read_bytes()

    assert picture.startswith(b"\x89PNG")


def texts_named(name: str, numbers: range) -> list[str]:
    """Return the texts of the documents with these numbers in a data set."""
    return [f"{name} text {number}" for number in numbers]


def test_data_sets_have_sources_and_dated_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "NEIGHBOURS", "JARGON"):
        monkeypatch.setattr(drift_batches, name, ("argparse",))
    for name in drift_batches.SETS:
        texts = [f"text {number}" for number in range(30)]
        queries = [f"query {number}" for number in range(30)]
        write_beir(tmp_path / name, "test", texts, queries, title=name)

    first, second = studies(tmp_path, StudyPlan(reference=10, per_source=5))

    reference = [text for text, _ in second[1]]
    latest = [text for text, _ in second[2]["latest tldr"]]
    assert set(first[2]) == {"argparse", "jargon", "tldr", "scifact"}
    assert reference == texts_named("tldr", range(20))
    assert latest == texts_named("tldr", range(25, 30))


def make_vectors(count: int, seed: int, noise: float, shift: float) -> Vectors:
    """Make unit vectors of documents, written queries and real queries.

    Args:
        count: Number of documents.
        seed: Seed of the vectors.
        noise: Distance of the real queries from their documents.
        shift: Distance of the documents from the origin.
    """
    chance = np.random.default_rng(seed)
    documents = chance.standard_normal((count, 16)) + shift
    written = documents + chance.standard_normal((count, 16))
    asked = documents + noise * chance.standard_normal((count, 16))
    units = []
    for rows in (documents, written, asked):
        units.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return Vectors(*units)


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, float], CellCounts]:
    """The counts of a study of documents whose queries become harder or not."""
    plan = StudyPlan(reference=240, batch=40, splits=1, more_splits=1, repeats=6)
    elsewhere = {
        "harmless": make_vectors(80, 1, noise=1.0, shift=1.0),
        "harmful": make_vectors(80, 2, noise=6.0, shift=1.0),
    }
    return simulate(make_vectors(400, 0, noise=1.5, shift=0.0), elsewhere, plan)


@pytest.mark.full
def test_study_has_batches_without_drift(cells) -> None:
    assert len(cells["none", 0.0].alarm) == 2 * 4


@pytest.mark.full
def test_only_harmed_documents_are_due(cells) -> None:
    assert not any(cells["harmless", 1.0].retrain)
    assert all(cells["harmful", 1.0].retrain)


@pytest.mark.full
def test_moved_documents_raise_an_alarm(cells) -> None:
    assert all(cells["harmless", 1.0].alarm)


@pytest.mark.full
def test_harm_is_found_by_real_queries_only(cells) -> None:
    assert all(cells["harmful", 1.0].by_asked)
    assert not any(cells["harmful", 1.0].by_made)


@pytest.mark.full
def test_row_of_harmed_documents_meets_its_goal(cells) -> None:
    row = drift._row(("x", "harmful", 1.0), cells["harmful", 1.0])

    assert ": retrained, of 6 batches" in row["what"]
    assert row["ours"] == 1.0
    assert row["goal"] == 0.95
    assert row["met"] is True


@pytest.mark.full
def test_row_of_unharmed_documents_counts_no_retrains(cells) -> None:
    row = drift._row(("x", "harmless", 1.0), cells["harmless", 1.0])

    assert "not retrained, of 6 batches" in row["what"]


def test_row_that_cannot_fail_has_no_goal() -> None:
    counts = CellCounts([0.05], [True], [False], [False], [False], [False])

    row = drift._row(("x", "small", 0.1), counts)

    assert row["goal"] == "-"
    assert row["met"] is None


FOUR_DOCUMENTS = Vectors(np.eye(4), np.eye(4), np.eye(4))


def test_source_smaller_than_a_batch_is_refused() -> None:
    chance = np.random.default_rng(0)

    with pytest.raises(
        FreshetError, match=r"a batch of 8 needs as many documents; a source has 4 with a query"
    ):
        mix_batch(FOUR_DOCUMENTS, FOUR_DOCUMENTS, 1.0, 8, chance)


def test_batch_can_mix_two_small_sources() -> None:
    chance = np.random.default_rng(0)

    batch = mix_batch(FOUR_DOCUMENTS, FOUR_DOCUMENTS, 0.5, 8, chance)

    assert len(batch.documents) == 8


def test_reciprocal_ranks_are_those_of_a_sort() -> None:
    chance = np.random.default_rng(0)
    documents = chance.standard_normal((30, 4)).astype(np.float32)
    queries = chance.standard_normal((30, 4)).astype(np.float32)

    ranks = reciprocal_ranks(queries, documents, documents)

    for row in range(30):
        order = np.argsort(-(documents @ queries[row])).tolist()
        rank = 1 + order.index(row)
        expected = 1 / rank if rank <= 10 else 0
        assert ranks[row] == pytest.approx(expected)


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (3, 17), (50, 50)])
def test_intervals_are_scipys(successes: int, trials: int) -> None:
    from scipy.stats import binomtest

    expected = binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_population_stability_follows_its_formula() -> None:
    old = np.array([50, 30, 0, 20])
    new = np.array([5, 0, 4, 1])

    index = population_stability(old, new)

    expected = 0.0
    for old_count, new_count in zip(old, new, strict=True):
        p = (old_count + 0.5) / (old.sum() + 2)
        q = (new_count + 0.5) / (new.sum() + 2)
        expected += (q - p) * np.log(q / p)
    assert index == pytest.approx(expected)


def test_population_stability_often_exceeds_its_threshold_by_chance() -> None:
    chance = np.random.default_rng(0)

    is_alarm = []
    for _ in range(100):
        old = np.bincount(chance.integers(40, size=800), minlength=40)
        new = np.bincount(chance.integers(40, size=100), minlength=40)
        is_alarm.append(population_stability(old, new) > 0.2)

    assert np.mean(is_alarm) > 0.5
