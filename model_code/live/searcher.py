"""Search a live collection: open once, then answer from memory. Reads live generations only, never `artifacts/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model_code.encoding.encoder import Encoder
from model_code.errors import FingerprintMismatch
from model_code.hierarchy.tree import Hierarchy
from model_code.index.dense_index import DenseIndex
from model_code.index.top_k import Ranking
from model_code.live.collection import Collection, default_retriever
from model_code.live.documents import read_documents
from model_code.live.generation import DOCUMENTS, ENCODER, HIERARCHY, INDEX, Generation
from model_code.live.snippet import snippet


@dataclass(frozen=True)
class Hit:
    """A document found: `rank` from 1, inner product `score`, and where its best passage stands in the hierarchy.

    `path` is one node per level, root first; `snippet` the words of the text around the query's.
    """

    rank: int
    score: float
    document_id: str
    title: str
    snippet: str
    path: tuple[int, ...]


class Searcher:
    """One generation, loaded: encoder, index and hierarchy in memory, texts on disk."""

    def __init__(self, generation: Generation, encoder: Encoder, index: DenseIndex, hierarchy: Hierarchy) -> None:
        self.generation, self.encoder, self.index, self.hierarchy = generation, encoder, index, hierarchy

    @classmethod
    def open(cls, live: Path, retriever: str | None = None, device: str = "auto") -> Searcher:
        """Load the current generation of `retriever` (default: the live folder's default one).

        FreshetError if nothing is live; FingerprintMismatch if encoder, index and manifest are not of one piece.
        """
        generation = Collection(live, retriever or default_retriever(live)).current()
        encoder = Encoder.load(generation.folder / ENCODER, device=device)
        index = DenseIndex.load(generation.folder / INDEX)
        for what, found in (("encoder", encoder.fingerprint()), ("index", index.fingerprint)):
            if found != generation.fingerprint:
                raise FingerprintMismatch(
                    f"{generation.folder}: its {what} has fingerprint {found[:12]}, its manifest says "
                    f"{generation.fingerprint[:12]}; the folder was changed: promote again or roll back"
                )
        return cls(generation, encoder, index, Hierarchy.load(generation.folder / HIERARCHY))

    def search(self, text: str, k: int = 10) -> list[Hit]:
        """The k best documents for a text, best first; fewer if the collection holds fewer."""
        return self.search_batch([text], k)[0]

    def search_batch(self, texts: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """The hits of several texts at once, in their order."""
        vectors = self.encoder.encode(texts)
        rankings = self.index.search(vectors, k, self.generation.fingerprint)
        return [self._hits(*found) for found in zip(texts, vectors, rankings, strict=True)]

    def _hits(self, text: str, vector: np.ndarray, ranking: Ranking) -> list[Hit]:
        documents = read_documents(self.generation.folder / DOCUMENTS, [document for document, _ in ranking])
        hits = []
        for rank, (document, score) in enumerate(ranking, start=1):
            path = self.hierarchy.path(self.index.best_passage(vector, document))
            title, body = documents[document]["title"], documents[document]["text"]
            hits.append(Hit(rank, score, document, title, snippet(body, text), path))
        return hits
