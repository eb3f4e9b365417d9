"""Contract of the hierarchy: a tree over the very passages of the corpus, and statistics that are of this tree."""

from __future__ import annotations

import numpy as np

from model_code.context import StageContext
from model_code.contracts.known import passage_documents
from model_code.contracts.rules import require, require_files, require_finite
from model_code.files import read_json
from model_code.hierarchy.settings import HierarchySettings, default_branching, level_sizes
from model_code.hierarchy.tree import DOCUMENT_IDS, SUMMARY, TENSORS, Hierarchy

ROUNDING = 1e-3  # of a unit vector's norm, in float32


def check_hierarchy(context: StageContext) -> None:
    """`Hierarchy` refuses what is no tree; here are its place in the corpus, its size, its centroids and statistics."""
    folder, documents = context.output, passage_documents(context.inputs["corpus"])
    require_files(folder, [TENSORS, SUMMARY, DOCUMENT_IDS, "statistics.json", "hierarchy.png"])
    tree = Hierarchy.load(folder)
    passages = len(documents)
    require(len(tree.leaves) == passages, f"{TENSORS} places {len(tree.leaves)} passages; the corpus has {passages}")
    require(
        read_json(folder / DOCUMENT_IDS) == documents,
        f"{DOCUMENT_IDS} must name the document of each passage, in the order of the corpus's passages",
    )
    _check_sizes(tree, context.settings["hierarchy"])
    for level, centroids in enumerate(tree.centroids, start=1):
        _check_centroids(f"{TENSORS}: centroids.{level}", centroids)
    _check_summary(tree, read_json(folder / SUMMARY))
    _check_statistics(tree, read_json(folder / "statistics.json")["levels"])


def _check_sizes(tree: Hierarchy, settings: HierarchySettings) -> None:
    """`branching` is a mean, so it bounds the nodes of a level; k-means may leave a cluster without points out."""
    most = level_sizes(len(tree.leaves), settings.branching or default_branching(len(tree.leaves)))
    found = [len(parents) for parents in tree.parents]
    fit = len(found) == len(most) and all(nodes <= bound for nodes, bound in zip(found, most, strict=True))
    require(fit, f"{TENSORS} has {found} nodes on its levels, where the settings' branching allows {most}")


def _check_centroids(what: str, centroids: np.ndarray) -> None:
    require_finite(what, centroids)
    far = float(np.abs(np.linalg.norm(centroids, axis=1) - 1).max())
    require(far <= ROUNDING, f"{what} must have unit norm, but one is off by {far:.3g}")


def _check_summary(tree: Hierarchy, summary: dict[str, object]) -> None:
    nodes = [len(parents) for parents in tree.parents]
    facts = {"depth": tree.depth, "dimension": tree.dimension, "passages": len(tree.leaves), "nodes": nodes}
    wrong = [name for name, value in facts.items() if summary.get(name) != value]
    require(not wrong, f"{SUMMARY} must state the tree's own {', '.join(wrong)}")


def _check_statistics(tree: Hierarchy, levels: list[dict[str, float]]) -> None:
    require([row["level"] for row in levels] == list(range(1, tree.depth + 1)), "statistics.json must have every level")
    for row in levels:
        sizes = tree.sizes(int(row["level"]))
        facts = {"nodes": len(sizes), "passages_min": int(sizes.min()), "passages_max": int(sizes.max())}
        wrong = [name for name, value in facts.items() if row[name] != value]
        require(not wrong, f"statistics.json, level {row['level']}: {', '.join(wrong)} must be the tree's own")
        cosines = (row["cosine_5th_percentile"], row["cosine_mean"])
        sound = all(-1 - ROUNDING <= cosine <= 1 + ROUNDING for cosine in cosines)
        require(sound, f"statistics.json, level {row['level']}: cosines must lie between -1 and 1")
