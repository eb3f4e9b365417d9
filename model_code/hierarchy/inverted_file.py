"""An index as by-product of the hierarchy: the nodes of one level are the coarse quantiser of an inverted file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy

if TYPE_CHECKING:
    import faiss


def build_inverted_file(tree: Hierarchy, vectors: np.ndarray, level: int | None = None) -> faiss.IndexIVFFlat:
    """An inner-product `IndexIVFFlat` over `vectors` (N, H), numbered by row, with a level's nodes (default: last).

    faiss need not train anything: the centroids are the tree's. A query looks through the lists of its `nprobe` nearest
    nodes, and each vector is in the list of the node nearest to it (at the last level of a bottom-up tree, its own).
    The vectors may come from a later encoder than the tree's: recall then tells how well the tree still fits.
    """
    import faiss

    level = tree.depth if level is None else level
    if not 1 <= level <= tree.depth:
        raise FreshetError(f"the hierarchy has levels 1 to {tree.depth}, not {level}; choose one of these")
    centroids = tree.centroids[level - 1]
    quantiser = faiss.IndexFlatIP(tree.dimension)
    quantiser.add(centroids)
    index = faiss.IndexIVFFlat(quantiser, tree.dimension, len(centroids), faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    index.add(np.ascontiguousarray(vectors, np.float32))
    return index
