"""Guards the contract of the hierarchy, on what the stage makes of random vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from model_code.contracts.registry import check
from model_code.errors import FreshetError
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import Hierarchy
from model_code.stages import hierarchy
from tests.model_code.contracts.damage import assert_refused, json_edited, json_with, removed, written
from tests.model_code.stages.test_hierarchy import context


def cluster(folder, **settings):
    place = context(folder, 60, 60, **settings)
    with pytest.MonkeyPatch.context() as patch:  # drawing takes longer than all the rest
        patch.setattr(hierarchy, "draw_hierarchy", lambda tree, unit, path: path.write_bytes(b"png"))
        hierarchy.run(place)
    return place


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    return cluster(tmp_path_factory.mktemp("clustered"))


def with_centroids(factor):
    """The tree with its first centroid scaled."""

    def damage(folder):
        tree = Hierarchy.load(folder)
        first = tree.centroids[0].copy()
        first[0] *= factor
        Hierarchy((first, *tree.centroids[1:]), tree.parents, tree.leaves).save(folder)

    return damage


def with_leaves(edit):
    def damage(folder):
        tree = Hierarchy.load(folder)
        Hierarchy(tree.centroids, tree.parents, edit(tree)).save(folder)

    return damage


def moved(tree):
    """A passage of the largest leaf node under another one."""
    leaves, sizes = tree.leaves.copy(), np.bincount(tree.leaves)
    leaves[np.flatnonzero(leaves == sizes.argmax())[0]] = sizes.argmin()
    return leaves


def first_level(**changes):
    return json_edited("statistics.json", lambda value: value["levels"][0].update(changes))


@pytest.mark.parametrize("method", ["bottom_up", "top_down"])
def test_whole_trees_pass(tmp_path, method):
    check("hierarchy", cluster(tmp_path / method, method=method, branching=3))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (removed("hierarchy.png"), "must hold hierarchy.png"),
        (written("hierarchy.safetensors", "no tensors"), "cannot be read|safetensors"),
        (json_with("hierarchy.json", passages=61), "hierarchy.json must state the tree's own passages"),
        (json_with("hierarchy.json", format=0), "format 0"),
        (json_edited("document_ids.json", lambda ids: ids.reverse()), "document_ids.json must name the document"),
        (json_edited("document_ids.json", lambda ids: ids.pop()), "document_ids.json must name the document"),
        (with_centroids(1.5), "centroids.1 must have unit norm, but one is off by 0.5"),
        (with_centroids(np.nan), "centroids.1 must be finite numbers"),
        (with_leaves(lambda tree: tree.leaves[:-1]), "places 59 passages; the corpus has 60"),
        (with_leaves(moved), "statistics.json, level .* must be the tree's own"),
        (first_level(nodes=99), "statistics.json, level 1: nodes must be the tree's own"),
        (first_level(passages_max=99), "passages_max must be the tree's own"),
        (first_level(cosine_mean=1.5), "level 1: cosines must lie between -1 and 1"),
        (json_edited("statistics.json", lambda value: value["levels"].pop()), "must have every level"),
    ],
)
def test_each_broken_rule_is_named(clustered, tmp_path, damage, message):
    assert_refused("hierarchy", clustered, tmp_path, damage, message)


def test_a_tree_of_another_branching_is_refused(clustered):
    settings = clustered.settings | {"hierarchy": HierarchySettings(branching=30)}
    with pytest.raises(FreshetError, match=r"has \[4, 15\] nodes .* branching allows \[2\]"):
        check("hierarchy", replace(clustered, settings=settings))


def test_a_tree_over_another_corpus_is_refused(clustered, tmp_path):
    pd.DataFrame({"document_id": ["d0"] * 61}).to_parquet(tmp_path / "passages.parquet")
    with pytest.raises(FreshetError, match="places 60 passages; the corpus has 61"):
        check("hierarchy", replace(clustered, inputs={"corpus": tmp_path}))
