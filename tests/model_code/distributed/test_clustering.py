"""Guards k-means on Ray: the clusters of k-means here, by 1 and 2 workers, and after a death."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model_code.distributed import clustering, engine
from model_code.distributed.engine import ScaleSettings
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.kmeans import Clustering, KMeans
from model_code.hierarchy.settings import HierarchySettings
from tests.model_code.distributed.jobs import compare_and_die

SETTINGS = HierarchySettings(max_iterations=6)


@pytest.fixture(scope="module")
def vectors() -> torch.Tensor:
    return torch.nn.functional.normalize(
        torch.randn(3000, 24, generator=torch.Generator().manual_seed(0)), dim=1
    )


def flat(vectors: torch.Tensor) -> Clustering:
    return KMeans(SETTINGS, seed=1, make_lloyd=clustering.make_lloyd).cluster(vectors, 40)


def agree(found: Clustering, expected: Clustering) -> None:
    """The same clusters; cosines may differ in their last bits, as matrix products of other shapes
    do.
    """
    assert torch.equal(found.labels, expected.labels)
    assert torch.equal(found.centroids, expected.centroids)
    assert found.objective == pytest.approx(expected.objective, rel=1e-7)


def test_workers_find_the_clusters_that_one_process_finds(workers, vectors):
    expected = flat(vectors)
    with engine.using(workers):
        agree(flat(vectors), expected)


def test_a_worker_that_dies_changes_nothing(ray, vectors, tmp_path: Path, monkeypatch):
    expected = flat(vectors)
    monkeypatch.setattr(clustering, "compare_slice", compare_and_die(tmp_path / "died"))
    with engine.using(ScaleSettings(engine="ray", workers=2)):
        found = flat(vectors)
    assert (tmp_path / "died").exists()
    agree(found, expected)


def test_tree_with_more_workers_than_nodes(ray, vectors):
    settings = HierarchySettings(max_iterations=3, device="cpu")
    few = vectors[:60].numpy()
    expected = build_hierarchy(few, settings, seed=0)
    with engine.using(ScaleSettings(engine="ray", workers=2)):
        found = build_hierarchy(few, settings, seed=0, make_lloyd=clustering.make_lloyd)
    assert [level.tobytes() for level in found.centroids] == [
        level.tobytes() for level in expected.centroids
    ]
    assert found.leaves.tolist() == expected.leaves.tolist()
