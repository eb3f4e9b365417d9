"""Test the report on a hierarchy: its numbers against loops over the passages, and its plot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.stages.hierarchy_plot import draw_hierarchy, level_statistics


def test_level_statistics_equal_loops(topics: np.ndarray) -> None:
    tree = build_hierarchy(topics, HierarchySettings(branching=5), seed=0)

    for row in level_statistics(tree, topics):
        level = row["level"]
        counts: dict[int, int] = {}
        cosines = []
        for passage, vector in enumerate(topics.astype(np.float64)):
            node = tree.path(passage)[level - 1]
            counts[node] = counts.get(node, 0) + 1
            cosines.append(float(vector @ tree.centroids[level - 1][node]))

        passages = list(counts.values())
        assert row["nodes"] == len(counts)
        assert row["passages_min"] == min(passages)
        assert row["passages_max"] == max(passages)
        assert row["passages_median"] == np.median(passages)
        assert row["cosine_mean"] == pytest.approx(np.mean(cosines), abs=2e-5)


@pytest.mark.parametrize(("passages", "branching"), [(300, 4), (1, None)])
def test_equal_trees_give_equal_plots(
    topics: np.ndarray, passages: int, branching: int | None, tmp_path: Path
) -> None:
    vectors = topics[:passages]
    for name in ("first.png", "second.png"):
        tree = build_hierarchy(vectors, HierarchySettings(branching=branching), seed=0)
        draw_hierarchy(tree, vectors, tmp_path / name)

    png = (tmp_path / "first.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert png == (tmp_path / "second.png").read_bytes()
    assert b"Software" not in png
