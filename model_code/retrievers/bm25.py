"""BM25 as a retriever: it can be evaluated, registered and kept live like any other, and needs no training.

Its "encoder" is a folder with the settings; its index holds the passages' texts. Statistics are those of all documents
that can be found, so that the segments of a live collection are searched as one index.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_text, read_json, write_json
from model_code.index.bm25 import Bm25
from model_code.index.id_map import IdMap
from model_code.index.settings import Bm25Settings
from model_code.manifest import read_manifest, seal, verify
from model_code.retriever import Ranking
from model_code.retrievers.base import EncodedRetriever, IndexedRetriever, NewPassages, Segment

FORMAT, KIND = 1, "bm25"
SETTINGS, PASSAGES = "bm25.json", "passages.json"
PROJECTED = 256  # components that the vocabulary is projected to for the hierarchy


class Bm25Retriever(IndexedRetriever[list[str]]):
    """BM25 over passages; encoded queries are their texts."""

    def __init__(self, texts: Sequence[str], ids: IdMap, settings: Bm25Settings) -> None:
        self.texts, self.ids, self.settings = list(texts), ids, settings
        self.fingerprint = hash_text(f"bm25 {canonical_json(settings.model_dump())}")

    @cached_property
    def bm25(self) -> Bm25:
        """The index of all texts."""
        return Bm25(self.texts, self.ids.document_ids, self.settings)

    def encode_queries(self, texts: Sequence[str]) -> list[str]:
        """The texts."""
        return list(texts)

    def search_encoded(self, queries: list[str], k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """The k best documents for each query, those that share no term left out."""
        return self.bm25.search(queries, k, allowed)

    def rerank_encoded(self, queries: list[str], candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """All candidates of each query, 0 for those that share no term with it."""
        rankings = []
        for query, documents in zip(queries, candidates, strict=True):
            scores = self.bm25.scores(query)
            own = [(document, float(scores[self.ids.rows_of([document])].max())) for document in documents]
            rankings.append(sorted(own, key=lambda hit: (-hit[1], hit[0])))
        return rankings

    def best_passage_encoded(self, query: list[str], document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) scores highest; the first of equals."""
        return int(np.argmax(self.bm25.scores(query[0])[self.ids.rows_of([document_id])]))

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Keep the texts in `folder`."""
        self._save(folder, new.texts, new.document_ids)

    def reopen(self, folder: Path) -> Self:
        """The same settings over another folder's texts."""
        return type(self)(*_load(folder), self.settings)

    @classmethod
    def merge(cls, parts: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Keep the named documents of each part in `folder`."""
        chosen = [(part, row) for part, documents in parts for row in part.ids.rows_of(documents).tolist()]
        texts, ids = [part.texts[row] for part, row in chosen], [part.ids.document_ids[row] for part, row in chosen]
        parts[0][0]._save(folder, texts, ids)

    @classmethod
    def joined(cls, segments: Sequence[Segment]) -> EncodedRetriever:
        """One index of all documents that can be found."""
        rows: list[tuple[str, str]] = []
        for segment in segments:
            if not isinstance(segment.retriever, Bm25Retriever):
                raise TypeError("a segment of another kind")
            own = zip(segment.retriever.ids.document_ids, segment.retriever.texts, strict=True)
            rows += [(document, text) for document, text in own if document not in segment.removed]
        first: Any = segments[0].retriever
        return cls([text for _, text in rows], IdMap([document for document, _ in rows]), first.settings)

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """(n, D): how often each term occurs, hashed to few components with random signs."""
        from sklearn.feature_extraction.text import HashingVectorizer

        hashed = HashingVectorizer(n_features=PROJECTED, norm=None, analyzer=self.bm25.terms, dtype=np.float32)
        return hashed.transform(self.texts).toarray()

    def _save(self, folder: Path, texts: Sequence[str], document_ids: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / PASSAGES, {"texts": list(texts), "document_ids": list(document_ids)})
        facts = {"kind": KIND, "fingerprint": self.fingerprint, "passages": len(texts)}
        seal(folder, FORMAT, facts | {"documents": len(set(document_ids))})


def _load(folder: Path) -> tuple[list[str], IdMap]:
    verify(folder, read_manifest(folder, FORMAT))
    table = read_json(folder / PASSAGES)
    return table["texts"], IdMap(table["document_ids"])


def build_folders(
    texts: Sequence[str], document_ids: Sequence[str], settings: Bm25Settings, encoder: Path, index: Path
) -> None:
    """Write a retriever of passages `texts` (n), passage i of document `document_ids[i]`, to two new folders."""
    encoder.mkdir(parents=True)
    write_json(encoder / SETTINGS, settings.model_dump())
    Bm25Retriever(texts, IdMap(document_ids), settings).write_segment(index, NewPassages(texts, document_ids))


def open_folders(encoder: Path, index: Path, **_: Any) -> Bm25Retriever:
    """The retriever in two folders; an encoder's settings are of no matter to it."""
    retriever = Bm25Retriever(*_load(index), Bm25Settings(**read_json(encoder / SETTINGS)))
    stated = read_manifest(index, FORMAT)["fingerprint"]
    if retriever.fingerprint != stated:
        raise FreshetError(f"{encoder} holds other settings than {index} was built with; run the stage baselines again")
    return retriever
