"""FAISS indexes by factory string: those that can be added to, deleted from and saved; others are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model_code.errors import FreshetError
from model_code.index.settings import IndexSettings


def make_index(factory: str, count: int, dimension: int) -> Any:
    """An empty inner-product index for `count` vectors of `dimension` components, whose entries get keys.

    FreshetError for a kind that would lose entries or has more lists than vectors; FAISS's own RuntimeError for a
    string that it does not know.
    """
    import faiss

    index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    inside = list(parts(index))
    _require_kinds(factory, inside)
    lists = max((part.nlist for part in inside if isinstance(part, faiss.IndexIVF)), default=0)
    if lists > count:
        raise FreshetError(f"index.factory {factory!r} does not fit {count} vectors: each of {lists} lists needs one")
    # Inverted lists keep keys themselves, but what refines them numbers its vectors from 0.
    refined = any(isinstance(part, faiss.IndexRefine) for part in inside)
    return index if isinstance(inside[-1], faiss.IndexIVF) and not refined else faiss.IndexIDMap2(index)


def _require_kinds(factory: str, inside: list[Any]) -> None:
    import faiss

    refused = {
        (faiss.IndexFastScan, faiss.IndexIVFFastScan): "FAISS's FastScan loses what is added after a deletion; leave "
        "out 'fs'",
        (faiss.IndexNSG,): "FAISS adds nothing to an NSG graph once it is built; take HNSW",
        (faiss.IndexIDMap,): "leave out IDMap: entries get keys in any case",
    }
    for kinds, remedy in refused.items():
        if any(isinstance(part, kinds) for part in inside):
            raise FreshetError(f"index.factory {factory!r} is refused: {remedy}")


def set_depth(index: Any, settings: IndexSettings) -> None:
    """Make searches as deep as `settings` say, wherever in `index` the lists or the graph lie."""
    import faiss

    for part in parts(index):
        if isinstance(part, faiss.IndexIVF):
            part.nprobe = settings.nprobe
        elif isinstance(part, faiss.IndexHNSW):
            part.hnsw.efSearch = settings.ef_search


def parts(index: Any) -> Iterator[Any]:
    """The index and, from the outside in, those that it wraps: under keys, a transformation or a refinement."""
    import faiss

    while True:
        index = faiss.downcast_index(index)
        yield index
        if isinstance(index, faiss.IndexRefine):
            index = index.base_index
        elif isinstance(index, (faiss.IndexIDMap, faiss.IndexPreTransform)):
            index = index.index
        else:
            return
