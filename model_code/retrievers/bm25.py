"""BM25 as a retriever: it can be evaluated, registered and kept live like any other, and needs no training.

Its "encoder" is a folder with the settings; its index is a segment of postings. Segments of a live collection are
searched with the statistics of all documents that can be found, as one index of them would be.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_text, read_json, write_json
from model_code.index.bm25 import Bm25, Bm25Query, Bm25Segment
from model_code.index.settings import Bm25Settings
from model_code.manifest import MANIFEST
from model_code.retriever import Ranking, TokenMatch
from model_code.retrievers.base import EncodedRetriever, IndexedRetriever, NewPassages, Segment

SETTINGS = "bm25.json"
PROJECTED = 256  # components that the vocabulary is projected to for the hierarchy


class Bm25Search(EncodedRetriever[list[Bm25Query]]):
    """BM25 over segments without their removed documents."""

    def __init__(self, segments: Sequence[tuple[Bm25Segment, frozenset[str]]], settings: Bm25Settings) -> None:
        self.settings, self._segments, self.language = settings, tuple(segments), settings.language
        self.fingerprint = hash_text(f"bm25 {canonical_json(settings.model_dump())}")

    @cached_property
    def bm25(self) -> Bm25:
        """The statistics of what can be found; made at the first search."""
        return Bm25(self._segments, self.settings)

    def encode_queries(self, texts: Sequence[str]) -> list[Bm25Query]:
        """The terms of texts."""
        return self.bm25.queries(texts)

    def search_encoded(self, queries: list[Bm25Query], k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """The k best documents for each query, those that share no term left out."""
        return self.bm25.best(queries, k, allowed)

    def rerank_encoded(self, queries: list[Bm25Query], candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """All candidates of each query, 0 for those that share no term with it."""
        rankings = []
        for query, documents in zip(queries, map(list, candidates), strict=True):
            own = zip(documents, self.bm25.of(query, documents).tolist(), strict=True)
            rankings.append(sorted(own, key=lambda hit: (-hit[1], hit[0])))
        return rankings

    def best_passage_encoded(self, query: list[Bm25Query], document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) scores highest; the first of equals."""
        return self.bm25.best_passage(query[0], document_id)

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """What each term adds to the document's best passage, the heaviest first."""
        shares = self.bm25.shares(self.encode_queries([text])[0], document_id)
        return [TokenMatch(term, share) for term, share in shares]


class Bm25Retriever(Bm25Search, IndexedRetriever[list[Bm25Query]]):
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
        parts[0][0]._save(Bm25Segment.merge([(part.segment, documents) for part, documents in parts]), folder)

    @classmethod
    def joined(cls, segments: Sequence[Segment]) -> EncodedRetriever:
        """The search of all documents that can be found."""
        own: list[tuple[Any, frozenset[str]]] = [(segment.retriever, segment.removed) for segment in segments]
        return Bm25Search([(retriever.segment, removed) for retriever, removed in own], own[0][0].settings)

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """(n, D): how often each term occurs, hashed to few components with random signs."""
        from sklearn.feature_extraction import FeatureHasher

        segment = self.segment
        counts: list[dict[str, int]] = [{} for _ in segment.lengths]
        terms = np.repeat(np.arange(len(segment.vocabulary)), np.diff(segment.starts)).tolist()
        for term, row, count in zip(terms, segment.rows.tolist(), segment.frequencies.tolist(), strict=True):
            counts[row][segment.vocabulary[term]] = count
        return FeatureHasher(PROJECTED, dtype=np.float32).transform(counts).toarray()

    def _save(self, segment: Bm25Segment, folder: Path) -> None:
        segment.save(folder, {"fingerprint": self.fingerprint})


def build_folders(
    texts: Sequence[str], document_ids: Sequence[str], settings: Bm25Settings, encoder: Path, index: Path
) -> None:
    """Write a retriever of passages `texts` (n), passage i of document `document_ids[i]`, to two new folders."""
    encoder.mkdir(parents=True)
    write_json(encoder / SETTINGS, settings.model_dump())
    segment = Bm25Segment.build(texts, document_ids, settings.language)
    Bm25Retriever(segment, settings)._save(segment, index)


def open_folders(encoder: Path, index: Path, **_: Any) -> Bm25Retriever:
    """The retriever in two folders; how an encoder is loaded is of no matter to it."""
    retriever = Bm25Retriever(Bm25Segment.load(index), Bm25Settings(**read_json(encoder / SETTINGS)))
    if retriever.fingerprint != read_json(index / MANIFEST)["fingerprint"]:
        raise FreshetError(f"{encoder} holds other settings than {index} was built with; run the stage baselines again")
    return retriever
