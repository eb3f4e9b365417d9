"""Test k-means on Ray: the clusters of one process, by 1 and 2 workers, and after a death."""

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
    generator = torch.Generator().manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(3000, 24, generator=generator), dim=1)


def cluster(vectors: torch.Tensor) -> Clustering:
    return KMeans(SETTINGS, seed=1, make_lloyd=clustering.make_lloyd).cluster(vectors, 40)


def assert_equal_clusters(clusters: Clustering, expected: Clustering) -> None:
    """Compare clusters. Matrix products of other shapes may change the last bits of cosines."""
    assert torch.equal(clusters.labels, expected.labels)
    assert torch.equal(clusters.centroids, expected.centroids)
    assert clusters.objective == pytest.approx(expected.objective, rel=1e-7)


def test_workers_find_the_clusters_of_one_process(workers, vectors):
    expected = cluster(vectors)

    with engine.using(workers):
        clusters = cluster(vectors)

    assert_equal_clusters(clusters, expected)


def test_dead_worker_changes_nothing(ray, vectors, tmp_path: Path, monkeypatch):
    expected = cluster(vectors)
    monkeypatch.setattr(clustering, "compare_slice", compare_and_die(tmp_path / "died"))

    with engine.using(ScaleSettings(engine="ray", workers=2)):
        clusters = cluster(vectors)

    assert (tmp_path / "died").exists()
    assert_equal_clusters(clusters, expected)


def test_tree_with_more_workers_than_nodes(ray, vectors):
    settings = HierarchySettings(max_iterations=3, device="cpu")
    few_vectors = vectors[:60].numpy()
    expected = build_hierarchy(few_vectors, settings, seed=0)

    with engine.using(ScaleSettings(engine="ray", workers=2)):
        tree = build_hierarchy(few_vectors, settings, seed=0, make_lloyd=clustering.make_lloyd)

    for centroids, expected_centroids in zip(tree.centroids, expected.centroids, strict=True):
        assert centroids.tobytes() == expected_centroids.tobytes()
    assert tree.leaves.tolist() == expected.leaves.tolist()


def test_workers_cluster_the_same_sample(ray, vectors):
    settings = HierarchySettings(branching=60, max_iterations=3, device="cpu")
    all_vectors = vectors.numpy()
    expected = build_hierarchy(all_vectors, settings, seed=0, max_clustered=1000)

    with engine.using(ScaleSettings(engine="ray", workers=2)):
        tree = build_hierarchy(
            all_vectors, settings, seed=0, make_lloyd=clustering.make_lloyd, max_clustered=1000
        )

    assert tree.leaves.tolist() == expected.leaves.tolist()
    assert tree.centroids[-1].tobytes() == expected.centroids[-1].tobytes()
