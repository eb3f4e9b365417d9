"""BM25 as a retriever: it can be evaluated, registered and kept live like any other, and needs no
training.

Its "encoder" is a folder with the settings; its index is a segment of postings. Segments of a live
collection are searched with the statistics of all documents that can be found, as one index of them
would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_code.errors import FreshetError
from model_code.files import MANIFEST, read_json, write_json
from model_code.retrieval.bm25_index import Bm25Index, Bm25Query, Bm25Segment
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, RetrieverSegment
from model_code.retrieval.protocol import Retriever

SETTINGS = "bm25.json"
PROJECTED = 256  # components that the vocabulary is projected to for the hierarchy


class Bm25Retriever(Bm25Index, IndexedRetriever[list[Bm25Query]]):
    """BM25 over one segment."""

    def __init__(self, segment: Bm25Segment, settings: Bm25Settings) -> None:
        super().__init__([(segment, frozenset())], settings)
        self.segment = segment

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index new passages in `folder`."""
        self._save(Bm25Segment.build(new.texts, new.document_ids, self.settings.language), folder)

    def reopen(self, folder: Path) -> Self:
        """The same settings over another folder's segment."""
        return type(self)(Bm25Segment.load(folder), self.settings)

    @classmethod
    def merge(cls, parts: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """One segment of the named documents of each, whose texts are not read again."""
        merged = Bm25Segment.merge([(part.segment, documents) for part, documents in parts])
        parts[0][0]._save(merged, folder)

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """The search of all documents that can be found."""
        parts: list[tuple[Any, frozenset[str]]] = [
            (segment.retriever, segment.removed) for segment in segments
        ]
        return Bm25Index(
            [(retriever.segment, removed) for retriever, removed in parts], parts[0][0].settings
        )

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """(n, D): how often each term occurs, hashed to few components with random signs."""
        # which only drift needs, and a search does without
        from sklearn.feature_extraction import FeatureHasher

        segment = self.segment
        counts: list[dict[str, int]] = [{} for _ in segment.lengths]
        terms = np.repeat(np.arange(len(segment.vocabulary)), np.diff(segment.starts)).tolist()
        for term, row, count in zip(
            terms, segment.rows.tolist(), segment.frequencies.tolist(), strict=True
        ):
            counts[row][segment.vocabulary[term]] = count
        return FeatureHasher(PROJECTED, dtype=np.float32).transform(counts).toarray()

    def _save(self, segment: Bm25Segment, folder: Path) -> None:
        segment.save(folder, {"fingerprint": self.fingerprint})


def build_folders(
    texts: Sequence[str],
    document_ids: Sequence[str],
    settings: Bm25Settings,
    encoder: Path,
    index: Path,
) -> None:
    """Write a retriever of passages `texts` (n), passage i of document `document_ids[i]`, to two
    new folders.
    """
    encoder.mkdir(parents=True)
    write_json(encoder / SETTINGS, settings.model_dump())
    segment = Bm25Segment.build(texts, document_ids, settings.language)
    Bm25Retriever(segment, settings)._save(segment, index)


def open_folders(encoder: Path, index: Path, **_: Any) -> Bm25Retriever:
    """The retriever in two folders; how an encoder is loaded is of no matter to it."""
    retriever = Bm25Retriever(
        Bm25Segment.load(index), Bm25Settings(**read_json(encoder / SETTINGS))
    )
    if retriever.fingerprint != read_json(index / MANIFEST)["fingerprint"]:
        raise FreshetError(
            f"{encoder} holds other settings than {index} was built with; run the stage baselines again"
        )
    return retriever
