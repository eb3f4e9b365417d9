"""A base of all that is live: the same encoder and vectors under a hierarchy that is clustered anew."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.hierarchy.settings import HierarchySettings
from model_code.index.dense_index import DenseIndex
from model_code.index.settings import IndexSettings
from model_code.live.generation import ENCODER, HIERARCHY, INDEX, PASSAGES, Generation
from model_code.live.part import Part, View
from model_code.live.placement import Placements
from model_code.live.segment import merge_segments
from model_code.live.trained import keep_trained
from model_code.manifest import MANIFEST, add_facts
from model_code.progress import Progress, silent
from model_code.retrievers.dense import DenseRetriever
from model_code.retrievers.kinds import open_retriever
from model_code.retrievers.segments import segments


def write_base(
    folder: Path,
    current: Generation,
    views: Sequence[View],
    settings: HierarchySettings,
    seed: int,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Fill `folder` with one base of what `views`, those of `current`, still find; return the facts for its manifest.

    FreshetError if nothing is left, or a passage has no direction to be clustered by.
    """
    from model_code.hierarchy.build import build_hierarchy

    if not any(view.documents for view in views):
        raise FreshetError("every document was deleted: there is nothing to cluster")
    base = views[0].part
    merge_segments(folder, views)
    _as_a_base(base, folder / INDEX)
    shutil.copytree(base.folder / ENCODER, folder / ENCODER)
    passages = read_json(folder / PASSAGES)
    vectors = segments(base.kind).passage_vectors(open_retriever(folder / ENCODER, folder / INDEX), passages)
    tree = build_hierarchy(vectors, settings, seed, progress)
    tree.save(folder / HIERARCHY)
    Placements(tree.paths(), Placements.find(tree, vectors).cosines).save(folder)
    keep_trained(folder, current)
    facts = {"build": current.build, "segments": [], "removed": None, "fingerprint": current.fingerprint}
    facts |= {"text": current.manifest["text"], "ledger": {"watermark": current.watermark}}
    return facts | {"documents": len(set(passages)), "passages": len(passages)}


def _as_a_base(base: Part, folder: Path) -> None:
    """State all that the index of a base states, which its segments need not; an approximate one is made anew."""
    if isinstance(base.retriever, DenseRetriever) and base.retriever.index.approximate is not None:
        _approximate(base.retriever.index.settings, folder)
    before, merged = read_json(base.folder / INDEX / MANIFEST), read_json(folder / MANIFEST)
    add_facts(folder, {name: before[name] for name in before if name not in merged or name == "kind"})


def _approximate(settings: IndexSettings, folder: Path) -> None:
    """Write the index over the exact one; what a kind keeps beside it stays."""
    exact = DenseIndex.load(folder)
    per = exact.vectors_per_passage
    DenseIndex.build(exact.vectors, exact.document_ids, exact.fingerprint, settings, per).save(folder)
