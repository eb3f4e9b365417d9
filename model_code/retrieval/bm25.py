"""BM25 as a retriever that is evaluated, registered and kept live like any other.

It needs no training. Its encoder folder holds the settings, and its index is one segment of
postings. Several segments are searched with the statistics of all documents that are not removed,
as one index of these documents would be.

If known queries count as words, the folder `known` of an index holds their own postings. They are
joined with those of the passages when a query is searched, so that the queries of a document can be
replaced without reading its text again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_code.errors import FreshetError
from model_code.files import MANIFEST, read_json, write_json
from model_code.retrieval.bm25_index import (
    Bm25Index,
    Bm25Query,
    Bm25Segment,
    KnownPart,
    KnownSegment,
    KnownWords,
)
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, RetrieverSegment
from model_code.retrieval.protocol import Retriever

SETTINGS = "bm25.json"

# How known queries count, beside the settings; missing if they do not count.
KNOWN_WORDS = "known_words.json"

# Folder of the known queries, in the folder of an index.
KNOWN = "known"

HASHED_DIMENSION = 256
"""Components of a passage's vector of hashed terms."""


class Bm25Retriever(Bm25Index, IndexedRetriever[list[Bm25Query]]):
    """BM25 over one segment, with the known queries of its documents if they count as words."""

    def __init__(
        self,
        segment: Bm25Segment,
        settings: Bm25Settings,
        words: KnownWords | None = None,
        known: KnownSegment | None = None,
    ) -> None:
        """Search one segment.

        Args:
            segment: The segment.
            settings: Parameters of the formula, and the language.
            words: How known queries count; None ignores them.
            known: Known queries of the segment's documents; needed if they count.
        """
        parts = [] if known is None else [KnownPart(0, known)]
        super().__init__([(segment, frozenset())], settings, words=words, known=parts)
        self.segment = segment
        self.known_segment = known

    @classmethod
    def index(
        cls, new: NewPassages, settings: Bm25Settings, words: KnownWords | None = None
    ) -> Self:
        """Index passages in memory, with the known queries of their documents if they count.

        Args:
            new: The passages.
            settings: Parameters of the formula, and the language.
            words: How known queries count; None ignores them.
        """
        segment = Bm25Segment.build(new.texts, new.document_ids, settings.language)
        known = None
        if words is not None:
            known = KnownSegment.build(new.known, segment.ids, words.limits, settings.language)
        return cls(segment, settings, words, known)

    def with_words(self, words: KnownWords) -> Self:
        """Return a retriever over the same postings in which known queries count differently.

        Args:
            words: How they count. The limits must be those of this retriever.
        """
        return type(self)(self.segment, self.settings, words, self.known_segment)

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index new passages in `folder`, with the known queries of their documents."""
        self.index(new, self.settings, self.words).save(folder)

    def save(self, folder: Path) -> None:
        """Write the index to a folder."""
        if self.known_segment is not None:
            self.save_segment(self.known_segment.queries, folder / KNOWN)
        # The manifest of the folder has the checksums of all files below it.
        self.save_segment(self.segment, folder)

    def reopen(self, folder: Path) -> Self:
        """Return a retriever with the same settings over the segment in another folder."""
        segment = Bm25Segment.load(folder)
        known = None
        if self.words is not None:
            known = KnownSegment(Bm25Segment.load(folder / KNOWN), segment.ids)
        return type(self)(segment, self.settings, self.words, known)

    @classmethod
    def merge(cls, sources: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Merge selected documents of several retrievers without reading their texts again."""
        first_retriever, _ = sources[0]
        known_sources = []
        for retriever, document_ids in sources:
            if retriever.known_segment is not None:
                queries = retriever.known_segment.queries
                known_sources.append((queries, queries.ids.intersection(set(document_ids))))
        if known_sources:
            merged_known = Bm25Segment.merge(known_sources)
            first_retriever.save_segment(merged_known, folder / KNOWN)

        merged = Bm25Segment.merge(
            [(retriever.segment, document_ids) for retriever, document_ids in sources]
        )
        first_retriever.save_segment(merged, folder)

    @classmethod
    def join_segments(
        cls, segments: Sequence[RetrieverSegment], reference: Bm25Index | None = None
    ) -> Retriever:
        """Return one index over all segments, with common statistics.

        Args:
            segments: The segments.
            reference: Index whose statistics are used instead; see `Bm25Index`.
        """
        first_retriever: Any = segments[0].retriever
        bm25_segments = []
        known_parts: list[KnownPart] = []
        for number, segment in enumerate(segments):
            retriever: Any = segment.retriever
            bm25_segments.append((retriever.segment, segment.removed))
            known_parts.extend(retriever.known_parts(number, segment))
        return Bm25Index(
            bm25_segments,
            first_retriever.settings,
            reference,
            words=first_retriever.words,
            known=known_parts,
        )

    def known_parts(self, number: int, segment: RetrieverSegment) -> list[KnownPart]:
        """Return the known queries of this retriever's documents in an index of several segments.

        Args:
            number: Number of this segment in the index.
            segment: Tells which documents are removed, and whose known queries are replaced.
        """
        if self.words is None or self.known_segment is None:
            return []
        replaced = segment.known.keys()
        parts = [KnownPart(number, self.known_segment, segment.removed.union(replaced))]
        if replaced:
            known = KnownSegment.build(
                segment.known, self.segment.ids, self.words.limits, self.settings.language
            )
            parts.append(KnownPart(number, known, segment.removed))
        return parts

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
    passages: NewPassages,
    settings: Bm25Settings,
    encoder: Path,
    index: Path,
    words: KnownWords | None = None,
) -> None:
    """Build a retriever and write it to two new folders.

    Args:
        passages: The passages, and the known queries of their documents.
        settings: Parameters of the formula, and the language.
        encoder: Folder that receives the settings.
        index: Folder that receives the segment.
        words: How known queries count; None ignores them.
    """
    encoder.mkdir(parents=True)
    write_json(encoder / SETTINGS, settings.model_dump())
    if words is not None:
        write_json(encoder / KNOWN_WORDS, asdict(words))
    Bm25Retriever.index(passages, settings, words).save(index)


def open_folders(encoder: Path, index: Path, **_: Any) -> Bm25Retriever:
    """Open the retriever in two folders. Options for loading an encoder are ignored.

    Raises:
        FreshetError: If the index was built with other settings.
    """
    settings = Bm25Settings(**read_json(encoder / SETTINGS))
    words = read_known_words(encoder)
    empty = Bm25Segment.build([], [], settings.language)
    retriever = Bm25Retriever(empty, settings, words).reopen(index)
    if retriever.fingerprint != read_json(index / MANIFEST)["fingerprint"]:
        raise FreshetError(
            f"{encoder} holds other settings than {index} was built with; "
            "run the stage baselines again"
        )
    return retriever


def read_known_words(encoder: Path) -> KnownWords | None:
    """Return how known queries count for the retriever in a folder; None if they do not."""
    path = encoder / KNOWN_WORDS
    if not path.is_file():
        return None
    return KnownWords.from_facts(read_json(path))
