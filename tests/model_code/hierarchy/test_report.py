"""Guards the report on a hierarchy: its numbers against loops over the passages, and the picture, a readable PNG with
equal bytes for equal trees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.files import canonical_json
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.kmeans import KMeans
from model_code.hierarchy.report import compare_with_flat, draw_hierarchy, level_statistics
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import Hierarchy


@pytest.mark.parametrize("method", ["bottom_up", "top_down"])
def test_level_statistics_equal_loops(topics: np.ndarray, method: str) -> None:
    tree = build_hierarchy(topics, HierarchySettings(method=method, branching=5), seed=0)
    for row in level_statistics(tree, topics):
        level = row["level"]
        counts: dict[int, int] = {}
        cosines = []
        for passage, vector in enumerate(topics.astype(np.float64)):
            node = tree.path(passage)[level - 1]
            counts[node] = counts.get(node, 0) + 1
            cosines.append(float(vector @ tree.centroids[level - 1][node]))
        assert row["nodes"] == len(counts)
        assert (row["passages_min"], row["passages_max"]) == (min(counts.values()), max(counts.values()))
        assert row["passages_median"] == np.median(list(counts.values()))
        assert row["passages_mean"] == pytest.approx(300 / len(counts), abs=1e-5)
        assert row["cosine_mean"] == pytest.approx(np.mean(cosines), abs=2e-5)
        assert row["cosine_5th_percentile"] == pytest.approx(np.quantile(cosines, 0.05), abs=2e-5)
        children = [len(tree.children(level, node)) for node in counts] if level < tree.depth else counts.values()
        assert row["children_max"] == max(children)


def test_a_bottom_up_tree_loses_nothing_at_its_last_level(topics: np.ndarray) -> None:
    settings = HierarchySettings(branching=5)
    tree = build_hierarchy(topics, settings, seed=0)
    rows = compare_with_flat(tree, topics, KMeans(settings, seed=0))
    flat = KMeans(settings, seed=0).divide(torch.from_numpy(topics), len(tree.parents[-1]))
    assert rows[-1]["cosine_tree"] == pytest.approx(flat.objective / len(topics), abs=1e-5)
    assert (rows[-1]["cosine_flat"], rows[-1]["lost"]) == (rows[-1]["cosine_tree"], 0)
    assert "-0.0" not in canonical_json(rows)


def test_a_bad_tree_loses_much(topics: np.ndarray) -> None:
    settings = HierarchySettings(method="top_down", branching=5)
    tree = build_hierarchy(topics[np.random.default_rng(0).permutation(300)], settings, seed=0)
    assert all(row["lost"] > 0.3 for row in compare_with_flat(tree, topics, KMeans(settings, seed=0)))


def test_passages_that_cancel_out_lose_nothing() -> None:
    for count in (2, 7):
        angles = np.arange(count) * 2 * np.pi / count  # of seven, the objective is not 0, but rounding
        vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        tree = Hierarchy([vectors[:1]], [np.zeros(1, np.int32)], np.zeros(count, np.int32))
        (row,) = compare_with_flat(tree, vectors, KMeans(HierarchySettings(method="top_down"), 0))
        assert (row["cosine_flat"], row["lost"]) == (0.0, 0.0)


@pytest.mark.parametrize(("passages", "branching"), [(300, 4), (1, None)])
def test_equal_trees_give_equal_pictures(
    topics: np.ndarray, passages: int, branching: int | None, tmp_path: Path
) -> None:
    vectors = topics[:passages]
    for name in ("a.png", "b.png"):
        tree = build_hierarchy(vectors, HierarchySettings(branching=branching), seed=0)
        draw_hierarchy(tree, vectors, tmp_path / name)
    picture = (tmp_path / "a.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert picture == (tmp_path / "b.png").read_bytes()
    assert b"Software" not in picture
