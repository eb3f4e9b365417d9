"""How far down the hierarchy a retriever goes right: accuracy of its first document's path, level by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from model_code.evaluation.gains import Qrels, Run
from model_code.hierarchy.tree import Hierarchy

Nodes = Mapping[str, list[set[int]]]  # document id -> its nodes at levels 1..depth; several if its passages part


def document_nodes(hierarchy: Hierarchy, document_ids: Sequence[str]) -> dict[str, list[set[int]]]:
    """The nodes at every level above a document's passages; `document_ids` (N,) names each passage's document."""
    nodes: dict[str, list[set[int]]] = {}
    for document_id, path in zip(document_ids, hierarchy.paths().tolist(), strict=True):
        levels = nodes.setdefault(document_id, [set() for _ in path])
        for level, node in zip(levels, path, strict=True):
            level.add(node)
    return nodes


def level_accuracy(run: Run, qrels: Qrels, nodes: Nodes) -> dict[str, dict[str, float]]:
    """Per level t ("level@t") and query: 1 if the first document shares its node at level t with a relevant one.

    A node determines its path from the root, so this is equality of the paths' first t steps. Level depth + 1, the
    document itself, is hit@1. A query that retrieves nothing, or only documents outside the hierarchy, scores 0.
    """
    depth = len(next(iter(nodes.values()), ()))
    query_ids = sorted(qrels)
    right = np.array([_right_levels(run.get(query_id, ()), qrels[query_id], nodes, depth) for query_id in query_ids])
    columns = right.reshape(len(query_ids), depth).T.astype(float).tolist()
    return {f"level@{t}": dict(zip(query_ids, column, strict=True)) for t, column in enumerate(columns, start=1)}


def _right_levels(
    ranking: Sequence[tuple[str, float]], relevant: Mapping[str, int], nodes: Nodes, depth: int
) -> list[bool]:
    first = nodes.get(ranking[0][0]) if ranking else None
    if first is None:
        return [False] * depth
    known = [nodes[document_id] for document_id in relevant if document_id in nodes]
    return [any(first[t] & levels[t] for levels in known) for t in range(depth)]
