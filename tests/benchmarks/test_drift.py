"""Guards the bench `drift`: rows that follow from their numbers, its intervals, and that it tells
harm from no harm.

pytest tests/benchmarks/test_drift.py
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import drift, drift_batches
from benchmarks.drift import simulate, wilson
from benchmarks.drift_batches import (
    CellCounts,
    StudyPlan,
    Vectors,
    mixed,
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


def made_up_docstrings(packages: tuple[str, ...]) -> list[tuple[str, str]]:
    """Texts of some of the words, and their first words as the queries."""
    chance = np.random.default_rng(len(packages))
    words = WORDS[:16] if len(packages) > 1 else WORDS[8:]
    texts = [list(chance.choice(words, 8)) for _ in range(170 if len(packages) > 1 else 25)]
    return [(" ".join(text), " ".join(text[:4])) for text in texts]


@pytest.mark.full
def test_rows_and_curve_on_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_batches, "_docstrings", made_up_docstrings)
    monkeypatch.setattr(drift_batches, "NEIGHBOURS", ("scipy",))
    monkeypatch.delenv("FRESHET_DATA", raising=False)
    base = make_tiny_encoder(tmp_path / "encoder", WORDS)
    found = drift.rows(base=base, plan=TINY, output=tmp_path / "out")
    assert len(found) == 1 + 2 * 4
    for line in found:
        assert list(line) == COLUMNS
        assert line["met"] is (None if line["goal"] == "-" else line["ours"] >= line["goal"])
        assert line["ratio"] == (line["ours"] / line["peer"] if line["peer"] else None)
    assert json.dumps(found)
    with (tmp_path / "out" / "drift_curve.csv").open() as stream:
        curve = list(csv.DictReader(stream))
    assert [line["share"] for line in curve[1:5]] == ["0.1", "0.25", "0.5", "1.0"]
    assert (tmp_path / "out" / "drift_curve.png").read_bytes().startswith(b"\x89PNG")
    assert all(
        float(line["alarm_low"]) <= float(line["alarm"]) <= float(line["alarm_high"])
        for line in curve
    )


def test_data_sets_have_sources_and_dated_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "NEIGHBOURS", "JARGON"):
        monkeypatch.setattr(drift_batches, name, ("argparse",))
    for name in drift_batches.SETS:
        texts, questions = ([f"{kind} {i}" for i in range(30)] for kind in ("text", "query"))
        write_beir(tmp_path / name, "test", texts, questions, title=name)
    first, second = studies(tmp_path, StudyPlan(reference=10, per_source=5))
    assert set(first[2]) == {"argparse", "jargon", "tldr", "scifact"}
    assert [text for text, _ in second[1]] == [f"tldr text {i}" for i in range(20)]
    assert [text for text, _ in second[2]["latest tldr"]] == [
        f"tldr text {i}" for i in range(25, 30)
    ]


@pytest.mark.full
def test_only_harmed_documents_are_due() -> None:
    def vectors(count: int, seed: int, noise: float, shift: float) -> Vectors:
        chance = np.random.default_rng(seed)
        documents = chance.standard_normal((count, 16)) + shift
        made = documents + chance.standard_normal((count, 16))
        asked = documents + noise * chance.standard_normal((count, 16))
        return Vectors(
            *(
                each / np.linalg.norm(each, axis=1, keepdims=True)
                for each in (documents, made, asked)
            )
        )

    plan = StudyPlan(reference=240, batch=40, splits=1, more_splits=1, repeats=6)
    elsewhere = {"harmless": vectors(80, 1, 1.0, 1.0), "harmful": vectors(80, 2, 6.0, 1.0)}
    cells = simulate(vectors(400, 0, 1.5, 0.0), elsewhere, plan)
    assert len(cells["none", 0.0].alarm) == 2 * 4
    assert not any(cells["harmless", 1.0].retrain)
    assert all(cells["harmful", 1.0].retrain)
    assert all(cells["harmless", 1.0].alarm)
    assert all(cells["harmful", 1.0].by_asked)
    assert not any(cells["harmful", 1.0].by_made), "made queries alone do not tell"
    due = drift._row(("x", "harmful", 1.0), cells["harmful", 1.0])
    assert ": retrained, of 6 batches" in due["what"]
    assert (due["ours"], due["goal"], due["met"]) == (1.0, 0.95, True)
    small = drift._row(("x", "small", 0.1), CellCounts([0.05], [True], *4 * [[False]]))
    assert (small["goal"], small["met"]) == ("-", None), "what cannot fail is not met either"
    assert (
        "not retrained, of 6 batches"
        in drift._row(("x", "harmless", 1.0), cells["harmless", 1.0])["what"]
    )


def test_a_source_smaller_than_a_batch_is_refused() -> None:
    few, chance = Vectors(*3 * [np.eye(4)]), np.random.default_rng(0)
    with pytest.raises(
        FreshetError, match=r"a batch of 8 needs as many documents; a source has 4 with a query"
    ):
        mixed(few, few, 1.0, 8, chance)
    assert len(mixed(few, few, 0.5, 8, chance).documents) == 8


def test_reciprocal_ranks_are_those_of_a_sort() -> None:
    chance = np.random.default_rng(0)
    documents, queries = (chance.standard_normal((30, 4)).astype(np.float32) for _ in range(2))
    found = reciprocal_ranks(queries, documents, documents)
    for row in range(30):
        rank = 1 + np.argsort(-(documents @ queries[row])).tolist().index(row)
        assert found[row] == pytest.approx(1 / rank if rank <= 10 else 0)


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (3, 17), (50, 50)])
def test_intervals_are_scipys(successes: int, trials: int) -> None:
    from scipy.stats import binomtest

    expected = binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_population_stability_is_the_sum_written_out_and_above_its_customary_threshold_by_chance() -> (
    None
):
    old, new = np.array([50, 30, 0, 20]), np.array([5, 0, 4, 1])
    total = 0.0
    for x, y in zip(old, new, strict=True):
        p, q = (x + 0.5) / (old.sum() + 2), (y + 0.5) / (new.sum() + 2)
        total += (q - p) * np.log(q / p)
    assert population_stability(old, new) == pytest.approx(total)
    chance = np.random.default_rng(0)
    drawn = [
        np.bincount(chance.integers(40, size=count), minlength=40)
        for count in (800, 100)
        for _ in range(100)
    ]
    assert (
        np.mean(
            [
                population_stability(*pair) > 0.2
                for pair in zip(drawn[:100], drawn[100:], strict=True)
            ]
        )
        > 0.5
    )
