"""Guards the picture: a readable PNG with equal bytes for equal trees, for one node and for many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.picture import draw_hierarchy
from model_code.hierarchy.settings import HierarchySettings


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
