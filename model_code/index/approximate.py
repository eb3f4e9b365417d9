"""Approximate nearest-neighbour indexes by `faiss.index_factory`, addressed by stable keys.

Such an index only proposes candidates: their scores are computed from the vectors themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from model_code.errors import FreshetError
from model_code.index.settings import IndexSettings


class ApproximateIndex:
    """A FAISS inner-product index whose entries are numbered by the keys of an `IdMap`."""

    def __init__(self, index: Any, settings: IndexSettings) -> None:
        self.index = index
        set_depth(index, settings)

    @classmethod
    def build(cls, vectors: np.ndarray, keys: np.ndarray, factory: str, settings: IndexSettings) -> ApproximateIndex:
        """Train on `vectors` (n, H) and add them under `keys` (n,); FreshetError if `factory` does not fit them."""
        _faiss()
        with _fitting(factory, len(vectors)):
            approximate = cls(make_index(factory, *vectors.shape), settings)
            approximate.index.train(vectors)
            with _one_thread():  # several threads link an HNSW graph differently every time
                approximate.index.add_with_ids(vectors, keys)
        return approximate

    @classmethod
    def load(cls, path: Path, settings: IndexSettings) -> ApproximateIndex:
        """Read what `save` wrote."""
        return cls(_faiss().read_index(str(path)), settings)

    def save(self, path: Path) -> None:
        """Write the FAISS index."""
        import faiss

        faiss.write_index(self.index, str(path))

    def candidates(self, queries: np.ndarray, count: int) -> np.ndarray:
        """Keys of about the `count` nearest entries of each query: (q, count) int64, -1 where there are fewer."""
        _, keys = self.index.search(queries, count)
        return keys


def require_factory(settings: IndexSettings, count: int, dimension: int) -> None:
    """FreshetError if `settings` name an index that `count` vectors of `dimension` components do not fit.

    It takes no vectors: ask before an hour of encoding, not after it.
    """
    factory = settings.factory_for(count)
    if factory != "Flat":
        _faiss()
        with _fitting(factory, count):
            make_index(factory, count, dimension)


@contextmanager
def _fitting(factory: str, count: int) -> Iterator[None]:
    """FAISS's own errors as one line."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).rsplit(": ", 1)[-1]
        raise FreshetError(f"index.factory {factory!r} does not fit {count} vectors: {reason}") from error


def _faiss() -> Any:
    """The module; FreshetError where it is not installed."""
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise FreshetError(
            "an approximate index needs faiss, which is not installed: pip install -e '.[cpu]' (or faiss-cpu alone), "
            "or set index.factory: Flat, exact search that does without, and build the index again"
        ) from error
    return faiss


@contextmanager
def _one_thread() -> Iterator[None]:
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


def make_index(factory: str, count: int, dimension: int) -> Any:
    """An empty inner-product index for `count` vectors of `dimension` components, whose entries get keys.

    FreshetError for one that has keys of its own or more lists than vectors; FAISS's own RuntimeError for a
    string that it does not know.
    """
    import faiss

    index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    inside = list(parts(index))
    if any(isinstance(part, faiss.IndexIDMap) for part in inside):
        raise FreshetError(f"index.factory {factory!r} is refused: leave out IDMap: entries get keys in any case")
    lists = max((part.nlist for part in inside if isinstance(part, faiss.IndexIVF)), default=0)
    if lists > count:
        raise FreshetError(f"index.factory {factory!r} does not fit {count} vectors: each of {lists} lists needs one")
    # Inverted lists keep keys themselves, but what refines them numbers its vectors from 0.
    refined = any(isinstance(part, faiss.IndexRefine) for part in inside)
    return index if isinstance(inside[-1], faiss.IndexIVF) and not refined else faiss.IndexIDMap2(index)


def set_depth(index: Any, settings: IndexSettings) -> None:
    """Make searches as deep as `settings` say, wherever in `index` the lists or the graph lie."""
    import faiss

    for part in parts(index):
        if isinstance(part, faiss.IndexIVF):
            part.nprobe = settings.nprobe
        elif isinstance(part, faiss.IndexHNSW):
            part.hnsw.efSearch = settings.ef_search
        elif isinstance(part, faiss.IndexNSG):
            part.nsg.search_L = settings.ef_search


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
