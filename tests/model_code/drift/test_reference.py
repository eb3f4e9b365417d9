"""Guards the reference: what it keeps, the level that topics are counted at, its sealed folder, and the kept nulls.

pytest tests/model_code/drift/test_reference.py
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from model_code.drift.calibration import Calibration
from model_code.drift.quality import OldScores
from model_code.drift.questions import ProtectedQuery, Question, Questions
from model_code.drift.reference import DriftReference, topic_level
from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.hierarchy.tree import Hierarchy
from tests.model_code.drift.unit_vectors import SETTINGS, reference, topical, tree


def test_save_and_load_is_the_identity(tmp_path: Path) -> None:
    questions = Questions(
        made=(Question("a", "a piece", frozenset("a")),),
        asked=(Question("b", "what?", frozenset("cab")), Question("b", "which?", frozenset("b"))),
        protected=(ProtectedQuery("how?", ("a", "b"), 3), ProtectedQuery("why?", ("c",), 0)),
    )
    made = replace(reference(), questions=questions)
    made.save(tmp_path / "a")
    loaded = DriftReference.load(tmp_path / "a")
    for field in fields(DriftReference):
        ours, theirs = getattr(made, field.name), getattr(loaded, field.name)
        same = (
            (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist()) if hasattr(ours, "dtype") else ours == theirs
        )
        assert same, field.name
    loaded.save(tmp_path / "b")
    assert hash_path(tmp_path / "a") == hash_path(tmp_path / "b")


def test_a_changed_folder_is_refused(tmp_path: Path) -> None:
    reference().save(tmp_path)
    (tmp_path / "questions.json").write_text("{}")
    with pytest.raises(FreshetError, match=r"questions.json was changed"):
        DriftReference.load(tmp_path)


def test_random_batches_keep_a_sample_and_ordered_ones_the_last_documents() -> None:
    vectors = topical(300, 0)
    hierarchy = tree(vectors)
    ordered = DriftReference.build(vectors, hierarchy, "f", replace(SETTINGS, batches="in_order"))
    assert (ordered.vectors == vectors[-150:]).all()
    rows = np.arange(0, 300, 2)
    chosen = DriftReference.build(vectors, hierarchy, "f", SETTINGS, rows=rows)
    assert (chosen.vectors == vectors[rows]).all()
    assert chosen.trained == 300


@pytest.mark.parametrize("batches", ["random", "in_order"])
@pytest.mark.parametrize("count", [1, 2, 119])
def test_of_however_few_documents_half_are_kept(
    tmp_path: Path, count: int, batches: Literal["random", "in_order"]
) -> None:
    vectors = topical(count, 0)
    hierarchy = Hierarchy((vectors[:1],), (np.zeros(1, np.int32),), np.zeros(count, np.int32))
    DriftReference.build(vectors, hierarchy, "f", replace(SETTINGS, batches=batches)).save(tmp_path)
    loaded = DriftReference.load(tmp_path)
    assert (loaded.vectors.shape, loaded.trained) == ((count // 2, vectors.shape[1]), count)


def test_topics_are_counted_where_a_batch_fills_the_nodes() -> None:
    leaves = np.repeat(np.arange(8, dtype=np.int32), 2)
    levels = (np.zeros((2, 4), np.float32), np.zeros((8, 4), np.float32))
    parents = (np.zeros(2, np.int32), np.array([0, 0, 0, 0, 1, 1, 1, 1], np.int32))
    hierarchy = Hierarchy(levels, parents, leaves)
    assert topic_level(hierarchy, batch=16) == 2
    assert topic_level(hierarchy, batch=15) == 1
    assert topic_level(hierarchy, batch=1) == 1


def test_nulls_are_kept_by_size_and_made_anew_for_another_reference(tmp_path: Path) -> None:
    first = Calibration(reference(0), SETTINGS, tmp_path)
    nulls = {measure: first.null(measure, 25) for measure in ("domain_auc", "mmd", "topics", "fit")}
    assert {path.name for path in tmp_path.iterdir()} == {f"{measure}-25.json" for measure in nulls}
    again = Calibration(reference(0), SETTINGS, tmp_path)
    again._nulls = {}  # so that nothing can be drawn
    for measure, null in nulls.items():
        assert (again.null(measure, 25) == null).all()
    other = Calibration(reference(1), SETTINGS, tmp_path)
    assert (other.null("mmd", 25) != nulls["mmd"]).any()
    assert (Calibration(reference(0), replace(SETTINGS, seed=1)).null("mmd", 25) != nulls["mmd"]).any()


def test_nulls_of_scores_follow_the_scores_and_leave_the_kept_ones_as_they_are(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    found = []
    for _ in range(2):
        calibrated = Calibration(reference(), SETTINGS, tmp_path, OldScores(chance.random(200), chance.random(90)))
        found.append([calibrated.null(measure, 25) for measure in ("mmd", "new_quality", "asked_quality")])
    (kept,) = tmp_path.iterdir()
    assert kept.name == "mmd-25.json"
    assert [bool((one == other).all()) for one, other in zip(*found, strict=True)] == [True, False, False]


def test_nulls_of_a_corpus_in_order_are_wider_where_topics_come_in_runs() -> None:
    vectors = topical(300, 0)
    topics = vectors[:, :6].argmax(axis=1)
    in_runs = vectors[np.argsort(np.where(np.arange(300) < 150, 0, 10) + topics, kind="stable")]
    found = []
    for batches in ("random", "in_order"):
        settings = replace(SETTINGS, batches=batches)
        made = DriftReference.build(in_runs, tree(in_runs), "f", settings)
        found.append(np.median(Calibration(made, settings).null("topics", 25)))
    assert found[1] > 3 * found[0]
