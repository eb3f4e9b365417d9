"""Tests the experiment with few judged questions: what is fused, kept and written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.small_sets import run
from experiments.tables import END, START
from model_code.errors import FreshetError
from model_code.files import read_json

SETTINGS = """
sizes = [40, 150]
seeds = [0, 1, 2]
[sets]
moss = "moss"
"""


def stand_in_measure(
    data_set: object, settings: Mapping[str, Any], size: int, seed: int
) -> dict[str, Any]:
    """Return scores of two test questions without training anything."""
    scores = {system: [0.5, 0.7] for system in run.SYSTEMS}
    scores["base+known"] = [0.5, 0.8]
    return {"size": size, "seed": seed, "training_queries": size // 2, "scores": scores}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a page and settings, in which nothing is really measured."""
    (tmp_path / "README.md").write_text(f"# Title\n\n{START}\nnothing\n\n{END}")
    (tmp_path / "settings.toml").write_text(SETTINGS)
    monkeypatch.setattr(run, "read_beir", lambda folder: None)
    monkeypatch.setattr(run, "measure", stand_in_measure)
    return tmp_path


def run_in(folder: Path) -> None:
    """Run the experiment with the folder's settings and page."""
    arguments = ["--data", folder, "--settings", folder / "settings.toml", "--output", folder]
    run.main([str(argument) for argument in arguments])


def test_every_size_and_seed_is_measured(folder: Path) -> None:
    run_in(folder)

    rows = read_json(folder / "result.json")
    assert [(row["size"], row["seed"]) for row in rows] == [
        (size, seed) for size in (40, 150) for seed in (0, 1, 2)
    ]


def test_measured_rows_are_not_measured_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in(folder)
    monkeypatch.setattr(run, "measure", lambda *_: pytest.fail("measured again"))

    run_in(folder)

    assert len(read_json(folder / "result.json")) == 6


def test_page_shows_differences_with_intervals(folder: Path) -> None:
    run_in(folder)

    page = (folder / "README.md").read_text()
    # Two questions with the differences 0 and .1: t(.975, 1 degree of freedom) is 12.7.
    assert "| +0.050 [-0.585, +0.685] |" in page


def older_row(bm25: float) -> dict[str, Any]:
    """A stored row of one training and one test question, without known queries."""
    return {"set": "moss", "size": 12, "seed": 0, "scores": {"bm25": [bm25]}}


@pytest.fixture
def moss() -> run.DataSet:
    """Two documents. The word of the test question is only in a training question of its answer."""
    documents = {"d1": {"text": "oak and fern"}, "d2": {"text": "oak and moss"}}
    judged: run.Qrels = {}
    queries = {"q": "carpet"}
    for number in range(6):
        judged[f"fern{number}"] = {"d1": 1}
        judged[f"moss{number}"] = {"d2": 1}
        queries[f"fern{number}"] = "feathery fern"
        queries[f"moss{number}"] = "mossy carpet"
    return run.DataSet(documents, queries, {"train": judged, "test": {"q": {"d2": 1}}})


FEW = {
    "test_queries": 1,
    "documents": 2,
    "cloze": {"per_document": 1, "min_words": 1, "max_words": 2},
    "metric": "hit@1",
    "depth": 2,
    "rrf": 60,
}


def test_known_words_are_added_to_an_older_row(moss: run.DataSet) -> None:
    row = older_row(bm25=0.0)

    run.add_known_scores(row, moss, FEW)

    assert row["scores"] == {"bm25": [0.0], "known": [1.0]}


def test_row_with_other_bm25_scores_is_refused(moss: run.DataSet) -> None:
    with pytest.raises(FreshetError, match=r"BM25 differs by 1\.0000"):
        run.add_known_scores(older_row(bm25=1.0), moss, FEW)


def test_fusion_adds_reciprocal_ranks() -> None:
    first = run.reciprocal_ranks(np.array([0.9, 0.1, 0.5]), 60)

    np.testing.assert_allclose(first, [1 / 61, 1 / 63, 1 / 62])


def test_judged_answers_are_always_searched() -> None:
    documents = {name: {"text": name} for name in "abcdefgh"}
    data_set = run.DataSet(documents, {}, {})

    kept = run.draw_documents(data_set, [{"q": {"h": 1}}, {"r": {"g": 1}}], count=3, seed=0)

    assert len(kept) == 3
    assert {"g", "h"} < kept.keys()
