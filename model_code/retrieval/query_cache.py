"""Searches that cache the encodings of their queries in a folder.

A drift check searches many of the queries of the check before again. Encoding a query takes several
times as long as searching it. So the encodings of the last queries are cached between checks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_code.encoding.token_signs import TokenSigns
from model_code.files import (
    MANIFEST,
    read_json,
    read_manifest,
    replace_folder,
    verify_checksums,
    write_array,
    write_json,
    write_manifest,
)
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.fused import FusedSearch
from model_code.retrieval.headline import HeadlineRetriever
from model_code.retrieval.protocol import Retriever

FORMAT = 1
KIND = "query_encodings"
TEXTS = "texts.json"
VECTORS = "vectors.npy"
# Folders of the encodings without and with token signs. The names are part of the format.
VECTORS_ONLY = "encode"
WITH_SIGNS = "encode_with_tokens"
# Largest number of queries of each encoder that are cached: 8 MB for an encoder of 384 dimensions.
# The ones that were used longest ago are dropped.
MAX_STORED_QUERIES = 5000


class CachedEncodings:
    """The encodings of queries that were searched before, by text.

    Attributes:
        vectors: Vector (H,) of each query, ordered by its last use, the most recent one last.
        signs: Token signs (t, W) of each query. Empty if the encoder made none.
    """

    def __init__(self) -> None:
        self.vectors: dict[str, np.ndarray] = {}
        self.signs: dict[str, np.ndarray] = {}

    def use(self, text: str) -> np.ndarray:
        """Return the vector of a query, and note that it was used, so that it stays longer."""
        vector = self.vectors.pop(text)
        self.vectors[text] = vector
        return vector

    def save(self, folder: Path) -> None:
        """Write the `MAX_STORED_QUERIES` encodings that were used last to a new folder."""
        folder.mkdir(parents=True)
        texts = list(self.vectors)[-MAX_STORED_QUERIES:]
        write_json(folder / TEXTS, texts, lines=False)
        vectors = np.stack([self.vectors[text] for text in texts])
        write_array(folder / VECTORS, vectors)
        if self.signs:
            TokenSigns.of([self.signs[text] for text in texts]).save(folder)
        write_manifest(folder, FORMAT, {"kind": KIND, "signs": bool(self.signs)})

    @classmethod
    def load(cls, folder: Path) -> CachedEncodings:
        """Read a folder that `save` wrote.

        Raises:
            Damaged: If a file differs from its checksum in the manifest.
        """
        manifest = read_manifest(folder, FORMAT)
        verify_checksums(folder, manifest, f"delete {folder}")
        cached = cls()
        texts = read_json(folder / TEXTS)
        cached.vectors = dict(zip(texts, np.load(folder / VECTORS), strict=True))
        if manifest["signs"]:
            signs = TokenSigns.load(folder)
            for row, text in enumerate(texts):
                cached.signs[text] = signs.bits[signs.starts[row] : signs.starts[row + 1]]
        return cached


class CachedEncoder:
    """An encoder of queries that encodes a text only if its encoding is not cached.

    A query's vector may differ if its token signs are made as well. So the encodings without and
    with token signs are cached separately, each in a folder.

    Args:
        encoder: The encoder.
        folder: Folder of the cached encodings. It may be missing. None: they are cached in memory.
    """

    def __init__(self, encoder: Any, folder: Path | None) -> None:
        self.encoder = encoder
        self.folder = folder
        # The cached encodings by the name of their folder. `_changed` has the names of the folders
        # that must be written again.
        self._cached: dict[str, CachedEncodings] = {}
        self._changed: set[str] = set()

    @property
    def dimension(self) -> int:
        """Number of dimensions of a vector."""
        dimension: int = self.encoder.dimension
        return dimension

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors (q, H) of queries; encode only those that are not cached."""
        cached = self._cached_in(VECTORS_ONLY)

        def encode_missing(missing: Sequence[str]) -> None:
            vectors = self.encoder.encode_queries(missing)
            for text, vector in zip(missing, vectors, strict=True):
                cached.vectors[text] = vector

        return self._vectors(VECTORS_ONLY, texts, encode_missing)

    def encode_queries_with_signs(self, texts: Sequence[str]) -> tuple[np.ndarray, TokenSigns]:
        """Return the vectors (q, H) and token signs of queries; encode only those not cached."""
        cached = self._cached_in(WITH_SIGNS)

        def encode_missing(missing: Sequence[str]) -> None:
            vectors, signs = self.encoder.encode_queries_with_signs(missing)
            for row, text in enumerate(missing):
                cached.vectors[text] = vectors[row]
                cached.signs[text] = signs.bits[signs.starts[row] : signs.starts[row + 1]]

        vectors = self._vectors(WITH_SIGNS, texts, encode_missing)
        return vectors, TokenSigns.of([cached.signs[text] for text in texts])

    def save(self) -> None:
        """Write the cached encodings to the folder, if there are new ones."""
        if self.folder is None:
            return
        for name in sorted(self._changed):
            staging = self.folder / f".{name}.making"
            # A process that was killed may have left a part of it.
            shutil.rmtree(staging, ignore_errors=True)
            self._cached[name].save(staging)
            replace_folder(staging, self.folder / name)
        self._changed.clear()

    def _vectors(
        self, name: str, texts: Sequence[str], encode_missing: Callable[[Sequence[str]], None]
    ) -> np.ndarray:
        """Return the vectors (q, H) of queries.

        Args:
            name: Name of the folder of the encodings.
            texts: The queries.
            encode_missing: Encodes some queries and caches their encodings.
        """
        cached = self._cached_in(name)
        missing = [text for text in dict.fromkeys(texts) if text not in cached.vectors]
        if missing:
            encode_missing(missing)
            self._changed.add(name)
        vectors = np.empty((len(texts), self.dimension), np.float32)
        for row, text in enumerate(texts):
            vectors[row] = cached.use(text)
        return vectors

    def _cached_in(self, name: str) -> CachedEncodings:
        """Return the cached encodings of a folder, which is read at the first call."""
        if name not in self._cached:
            cached = CachedEncodings()
            if self.folder is not None and (self.folder / name / MANIFEST).is_file():
                cached = CachedEncodings.load(self.folder / name)
            self._cached[name] = cached
        return self._cached[name]


class QueryCache:
    """Caches the encodings of queries in a folder, for searches that repeat queries.

    Args:
        folder: Folder of the encodings of all encoders. It may be deleted at any time. None: they
            are cached in memory only.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._encoders: dict[str, CachedEncoder] = {}

    def cached(self, retriever: Retriever) -> Retriever:
        """Return a search with equal results that caches the encodings of its queries.

        Only dense retrievers, alone or in a fusion, encode queries slowly. All others stay as they
        are.
        """
        if isinstance(retriever, FusedSearch):
            components: dict[str, Retriever] = {}
            for name, component in retriever.components.items():
                components[name] = self.cached(component)
            return FusedSearch(components, retriever.fusion)
        if isinstance(retriever, DenseRetriever):
            encoder: Any = self._encoder(retriever)
            return type(retriever)(encoder, retriever.index, retriever.fingerprint)
        return retriever

    def encode(self, retriever: Retriever, texts: Sequence[str]) -> None:
        """Encode queries ahead of their searches, and cache the encodings.

        Encoding many queries together takes less time than one by one. The retriever that
        `cached(retriever)` returns finds these encodings when it searches these queries.

        Args:
            retriever: Retriever that will search the queries.
            texts: The queries.
        """
        if isinstance(retriever, FusedSearch):
            self._encode_for_components(retriever, texts)
        elif isinstance(retriever, DenseRetriever):
            self._encoder(retriever).encode_queries(texts)

    def _encode_for_components(self, fusion: FusedSearch, texts: Sequence[str]) -> None:
        """Encode queries as the components of a fusion will need them, and cache the encodings.

        Only dense components need encodings. Some of them search passages, others headlines. If
        both have the same encoder, the fusion uses the query vectors of the passage component for
        the headline component too. The headline component is then left out here.
        """
        passage_fingerprints = set()
        for component in fusion.components.values():
            # `dense` is None for a headline component.
            if component.dense is not None:
                passage_fingerprints.add(component.fingerprint)

        for name, component in fusion.components.items():
            is_headline = isinstance(component, HeadlineRetriever)
            if is_headline and component.fingerprint in passage_fingerprints:
                continue
            # Late interaction needs token signs as well as vectors.
            if isinstance(component, DenseRetriever) and name in fusion.late_components:
                self._encoder(component).encode_queries_with_signs(texts)
            else:
                self.encode(component, texts)

    def save(self) -> None:
        """Write the new encodings of each encoder to the cache folder."""
        for encoder in self._encoders.values():
            encoder.save()

    def _encoder(self, retriever: DenseRetriever) -> CachedEncoder:
        """Return a retriever's encoder with a cache, which retrievers with equal encoders share."""
        fingerprint = retriever.fingerprint
        if fingerprint not in self._encoders:
            folder = None
            if self.folder is not None:
                folder = self.folder / fingerprint[:16]
            self._encoders[fingerprint] = CachedEncoder(retriever.encoder.pytorch, folder)
        return self._encoders[fingerprint]
