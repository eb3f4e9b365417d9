"""BM25 as a retriever that is evaluated, registered and kept live like any other.

It needs no training. Its encoder folder holds the settings, and its index is one segment of
postings. Several segments are searched with the statistics of all documents that are not removed,
as one index of these documents would be.
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

HASHED_DIMENSION = 256
"""Components of a passage's vector of hashed terms."""


class Bm25Retriever(Bm25Index, IndexedRetriever[list[Bm25Query]]):
    """BM25 over one segment."""

    def __init__(self, segment: Bm25Segment, settings: Bm25Settings) -> None:
        super().__init__([(segment, frozenset())], settings)
        self.segment = segment

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index new passages in `folder`."""
        segment = Bm25Segment.build(new.texts, new.document_ids, self.settings.language)
        self.save_segment(segment, folder)

    def reopen(self, folder: Path) -> Self:
        """Return a retriever with the same settings over the segment in another folder."""
        return type(self)(Bm25Segment.load(folder), self.settings)

    @classmethod
    def merge(cls, sources: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Merge selected documents of several retrievers without reading their texts again."""
        merged = Bm25Segment.merge(
            [(retriever.segment, document_ids) for retriever, document_ids in sources]
        )
        first_retriever, _ = sources[0]
        first_retriever.save_segment(merged, folder)

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """Return one index over all segments, with common statistics."""
        first_retriever: Any = segments[0].retriever
        bm25_segments = []
        for segment in segments:
            retriever: Any = segment.retriever
            bm25_segments.append((retriever.segment, segment.removed))
        return Bm25Index(bm25_segments, first_retriever.settings)

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return the term counts of each passage, hashed to a few components with random signs.

        Returns:
            Vectors of shape (n, `HASHED_DIMENSION`), float32.
        """
        # Imported here because the import is slow, and only drift checks need it.
        from sklearn.feature_extraction import FeatureHasher

        segment = self.segment
        term_numbers = np.repeat(np.arange(len(segment.vocabulary)), np.diff(segment.starts))
        term_counts: list[dict[str, int]] = [{} for _ in segment.lengths]
        for number, row, count in zip(
            term_numbers.tolist(),
            segment.rows.tolist(),
            segment.frequencies.tolist(),
            strict=True,
        ):
            term_counts[row][segment.vocabulary[number]] = count
        hasher = FeatureHasher(HASHED_DIMENSION, dtype=np.float32)
        return hasher.transform(term_counts).toarray()

    def save_segment(self, segment: Bm25Segment, folder: Path) -> None:
        """Write a segment whose manifest names this retriever's fingerprint."""
        segment.save(folder, {"fingerprint": self.fingerprint})


def build_folders(
    texts: Sequence[str],
    document_ids: Sequence[str],
    settings: Bm25Settings,
    encoder: Path,
    index: Path,
) -> None:
    """Build a retriever and write it to two new folders.

    Args:
        texts: The passages.
        document_ids: Document of each passage.
        settings: Parameters of the formula, and the language.
        encoder: Folder that receives the settings.
        index: Folder that receives the segment.
    """
    encoder.mkdir(parents=True)
    write_json(encoder / SETTINGS, settings.model_dump())
    segment = Bm25Segment.build(texts, document_ids, settings.language)
    Bm25Retriever(segment, settings).save_segment(segment, index)


def open_folders(encoder: Path, index: Path, **_: Any) -> Bm25Retriever:
    """Open the retriever in two folders. Options for loading an encoder are ignored.

    Raises:
        FreshetError: If the index was built with other settings.
    """
    settings = Bm25Settings(**read_json(encoder / SETTINGS))
    retriever = Bm25Retriever(Bm25Segment.load(index), settings)
    if retriever.fingerprint != read_json(index / MANIFEST)["fingerprint"]:
        raise FreshetError(
            f"{encoder} holds other settings than {index} was built with; "
            "run the stage baselines again"
        )
    return retriever
