"""Guards the reference: what it keeps, the level that topics are counted at, placing in a twin, and its sealed folder.

pytest tests/model_code/drift/test_reference.py
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from model_code.drift.reference import (
    DriftReference,
    ProtectedQuery,
    Question,
    Questions,
    place,
    topic_level,
    twin,
)
from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import Hierarchy
from tests.model_code.drift.unit_vectors import SETTINGS, reference, topical, tree, unit


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


def test_only_rows_that_may_be_kept_are() -> None:
    vectors, rows = topical(300, 0), np.arange(0, 300, 2)
    chosen = DriftReference.build(vectors, tree(vectors), "f", SETTINGS, rows=rows)
    assert (chosen.vectors == vectors[rows]).all()
    assert chosen.trained == 300


@pytest.mark.parametrize("count", [1, 2, 119])
def test_of_however_few_documents_half_are_kept(tmp_path: Path, count: int) -> None:
    vectors = topical(count, 0)
    hierarchy = Hierarchy((vectors[:1],), (np.zeros(1, np.int32),), np.zeros(count, np.int32))
    DriftReference.build(vectors, hierarchy, "f", SETTINGS).save(tmp_path)
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


def test_placing_is_the_nearest_centroid() -> None:
    vectors = topical(50, 0)
    hierarchy = tree(topical(200, 1))
    nodes, cosines = place(vectors, hierarchy.centroids[-1])
    assert nodes.tolist() == hierarchy.place(vectors)[:, -1].tolist()
    best = [max(float(c @ v) for c in hierarchy.centroids[-1]) for v in vectors]
    np.testing.assert_allclose(cosines, best, atol=1e-6)


def test_reference_documents_fit_a_twin_as_later_ones_do_and_not_the_hierarchy() -> None:
    draw = np.random.default_rng(0)
    vectors, later = unit(draw.standard_normal((600, 32))), unit(draw.standard_normal((600, 32)))
    hierarchy = build_hierarchy(vectors, HierarchySettings(max_iterations=10, branching=8, device="cpu"), seed=0)
    rows = np.arange(0, 600, 2)
    centroids, nodes = twin(vectors, hierarchy, rows, level=1, seed=0)
    assert set(nodes) <= set(range(len(hierarchy.parents[0])))
    assert len(centroids) == min(len(hierarchy.centroids[-1]), 300 // 8)
    naive, fair = (
        place(vectors[rows], each)[1].mean() - place(later, each)[1].mean()
        for each in (hierarchy.centroids[-1], centroids)
    )
    assert naive > 0.05
    assert abs(fair) < 0.015


def test_a_twin_is_the_same_for_the_same_seed() -> None:
    vectors = topical(120, 0)
    rows = np.arange(40)
    first, second = (twin(vectors, tree(vectors), rows, level=1, seed=0) for _ in range(2))
    assert all((ours == theirs).all() for ours, theirs in zip(first, second, strict=True))
