"""Guards the report on a hierarchy: its numbers against loops over the passages, and the picture, a
readable PNG with equal bytes for equal trees.
"""

from __future__ import annotations

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
        assert row["nodes"] == len(counts)
        assert (row["passages_min"], row["passages_max"]) == (
            min(counts.values()),
            max(counts.values()),
        )
        assert row["passages_median"] == np.median(list(counts.values()))
        assert row["cosine_mean"] == pytest.approx(np.mean(cosines), abs=2e-5)


@pytest.mark.parametrize(("passages", "branching"), [(300, 4), (1, None)])
def test_equal_trees_give_equal_pictures(topics, passages, branching, tmp_path):
    vectors = topics[:passages]
    for name in ("a.png", "b.png"):
        tree = build_hierarchy(vectors, HierarchySettings(branching=branching), seed=0)
        draw_hierarchy(tree, vectors, tmp_path / name)
    picture = (tmp_path / "a.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert picture == (tmp_path / "b.png").read_bytes()
    assert b"Software" not in picture
