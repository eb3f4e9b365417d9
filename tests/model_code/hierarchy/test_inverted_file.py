"""Guards the index that the hierarchy gives away: exact with all lists probed, good with some, on any level."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.inverted_file import build_inverted_file
from model_code.hierarchy.settings import HierarchySettings

pytest.importorskip("faiss")


@pytest.fixture
def queries(topics: np.ndarray) -> np.ndarray:
    """50 vectors near some of the topics' members."""
    noise = 0.1 * np.random.default_rng(8).standard_normal((50, 16))
    return (topics[:50] + noise).astype(np.float32)


def recall(found: np.ndarray, exact: np.ndarray) -> float:
    """Mean share of the exact ten that were found."""
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), exact.tolist(), strict=True)]))


@pytest.mark.parametrize("level", [2, 3, None])
def test_all_probes_are_exact_and_some_are_good(topics: np.ndarray, queries: np.ndarray, level: int | None) -> None:
    tree = build_hierarchy(topics, HierarchySettings(branching=6), seed=0)
    index = build_inverted_file(tree, topics, level)
    exact = np.argsort(-(queries @ topics.T), axis=1, kind="stable")[:, :10]
    index.nprobe = index.nlist
    scores, found = index.search(queries, 10)
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ topics.T, exact, 1), rtol=1e-5)
    recalls = []
    for probes in (1, index.nlist // 4 + 1, index.nlist // 2 + 1):
        index.nprobe = probes
        recalls.append(recall(index.search(queries, 10)[1], exact))
    assert recalls == sorted(recalls)
    assert recalls[-1] > 0.95


def test_lists_are_the_leaf_nodes_of_a_bottom_up_tree(topics: np.ndarray) -> None:
    tree = build_hierarchy(topics, HierarchySettings(branching=6), seed=0)
    index = build_inverted_file(tree, topics)
    sizes = [index.invlists.list_size(number) for number in range(index.nlist)]
    assert sizes == tree.sizes(tree.depth).tolist()


@pytest.mark.parametrize("level", [0, 4])
def test_levels_that_do_not_exist_are_refused(topics: np.ndarray, level: int) -> None:
    tree = build_hierarchy(topics, HierarchySettings(branching=6), seed=0)
    with pytest.raises(FreshetError, match="has levels 1 to 3"):
        build_inverted_file(tree, topics, level)
