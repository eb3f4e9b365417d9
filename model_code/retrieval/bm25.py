"""BM25 as a retriever that is evaluated, registered and kept live like any other.

It needs no training. Its encoder folder holds the settings, and its index is one segment: an
immutable set of postings. Several segments are searched with the statistics of all documents that
are not removed. So they rank like one index of these documents.

A known query is a query that a document is known to answer, for example from training data. Its
words can count as words of the document. Then the folder `known` of an index holds the postings of
the known queries, which a search adds to the postings of the passages. So the known queries of a
document can be replaced without indexing its text again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_code.errors import FreshetError
from model_code.files import MANIFEST, read_json, write_json
from model_code.retrieval.bm25_index import Bm25Index, Bm25Query
from model_code.retrieval.bm25_known import KnownPart, KnownSegment, KnownWords
from model_code.retrieval.bm25_segment import Bm25Segment
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, RetrieverSegment
from model_code.retrieval.protocol import Retriever

SETTINGS = "bm25.json"

# File beside the settings that holds a `KnownWords`. It is missing if known queries do not count.
KNOWN_WORDS = "known_words.json"

# Folder inside an index folder that holds the postings of the known queries.
KNOWN = "known"

# Number of dimensions of the vector that `Bm25Retriever.passage_vectors` makes of a passage.
HASHED_DIMENSION = 256


class Bm25Retriever(Bm25Index, IndexedRetriever[list[Bm25Query]]):
    """BM25 over one segment, which counts known queries as words if `words` is given."""

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
            words: How known queries count as words. None ignores them.
            known: Known queries of the segment's documents. Required if `words` is given.
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
            new: The passages, and the known queries of their documents.
            settings: Parameters of the formula, and the language.
            words: How known queries count as words. None ignores them.
        """
        segment = Bm25Segment.build(new.texts, new.document_ids, settings.language)
        known = None
        if words is not None:
            known = KnownSegment.build(new.known, segment.ids, words.limits, settings.language)
        return cls(segment, settings, words, known)

    def with_words(self, words: KnownWords) -> Self:
        """Return a retriever over the same postings in which known queries count differently.

        Args:
            words: How known queries count. Its `limits` must equal the limits of this retriever,
                because they decided which known queries were indexed.
        """
        return type(self)(self.segment, self.settings, words, self.known_segment)

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index new passages in `folder`, with the known queries of their documents."""
        self.index(new, self.settings, self.words).save(folder)

    def save(self, folder: Path) -> None:
        """Write the postings of passages to a folder, and those of known queries to a subfolder."""
        if self.known_segment is not None:
            self.save_segment(self.known_segment.queries, folder / KNOWN)
        # This comes last, because the manifest that it writes holds the checksums of all files in
        # the folder, also those of the known queries.
        self.save_segment(self.segment, folder)

    def reopen(self, folder: Path) -> Self:
        """Return a retriever with the same settings over the index in another folder.

        The folder holds the postings of passages. If known queries count as words, it also holds
        the postings of the queries that documents are known to answer.
        """
        segment = Bm25Segment.load(folder)
        known = None
        if self.words is not None:
            known = KnownSegment(Bm25Segment.load(folder / KNOWN), segment.ids)
        return type(self)(segment, self.settings, self.words, known)

    @classmethod
    def merge(cls, sources: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Merge selected documents of several retrievers without reading their texts again.

        Args:
            sources: Retrievers, each with the ids of the documents to take from it.
            folder: Folder of the merged index.
        """
        first_retriever, _ = sources[0]
        known_sources = []
        for retriever, document_ids in sources:
            if retriever.known_segment is not None:
                queries = retriever.known_segment.queries
                ids_with_queries = queries.ids.intersection(set(document_ids))
                known_sources.append((queries, ids_with_queries))
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

        A segment holds the postings of some documents. The numbers of passages and their mean
        length are counted over all segments. So they rank like one index of all documents.

        Args:
            segments: The segments.
            reference: Index whose statistics replace the statistics of these segments; see
                `Bm25Index`.
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
        """Return this segment's known queries as parts of an index of several segments.

        The first part holds the known queries that were indexed with the documents. The second part
        holds the known queries that replaced some of them later.

        Args:
            number: Number of this segment in the index of several segments.
            segment: This segment, with its removed documents and replaced known queries.
        """
        if self.words is None or self.known_segment is None:
            return []
        documents_with_new_queries = segment.known.keys()
        excluded = segment.removed.union(documents_with_new_queries)
        parts = [KnownPart(number, self.known_segment, excluded)]
        if documents_with_new_queries:
            new_queries = KnownSegment.build(
                segment.known, self.segment.ids, self.words.limits, self.settings.language
            )
            parts.append(KnownPart(number, new_queries, segment.removed))
        return parts

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return a vector of each passage: its term counts, hashed to a fixed dimension.

        The hash of a term selects its dimension and its sign.

        Args:
            document_ids: Not used.

        Returns:
            Vectors of shape (n, `HASHED_DIMENSION`), float32.
        """
        # scikit-learn is slow to import, and only drift checks need these vectors.
        from sklearn.feature_extraction import FeatureHasher

        segment = self.segment
        # The number of each posting's term: term t has starts[t + 1] - starts[t] postings.
        term_numbers = np.repeat(np.arange(len(segment.vocabulary)), np.diff(segment.starts))

        # How often each term occurs in each passage.
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
        """Write a segment, and this retriever's fingerprint, which is checked when it is opened."""
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
    """Open the retriever that `build_folders` wrote.

    Args:
        encoder: Folder of the settings.
        index: Folder of the segment.
        **_: Options for loading a neural encoder, which every kind accepts. BM25 ignores them.

    Raises:
        FreshetError: If the index was built with other settings.
    """
    settings = Bm25Settings(**read_json(encoder / SETTINGS))
    words = read_known_words(encoder)
    empty_segment = Bm25Segment.build([], [], settings.language)
    retriever = Bm25Retriever(empty_segment, settings, words).reopen(index)
    if retriever.fingerprint != read_json(index / MANIFEST)["fingerprint"]:
        raise FreshetError(
            f"{encoder} holds other settings than {index} was built with; "
            "run the stage baselines again"
        )
    return retriever


def read_known_words(encoder: Path) -> KnownWords | None:
    """Read how known queries count for a retriever; None if they do not count.

    Args:
        encoder: The retriever's encoder folder.
    """
    path = encoder / KNOWN_WORDS
    if not path.is_file():
        return None
    return KnownWords.from_facts(read_json(path))
