"""Search a live collection: open once, then answer from memory. Reads live generations only, never `artifacts/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.errors import FingerprintMismatch
from model_code.files import read_json
from model_code.hierarchy.tree import Hierarchy
from model_code.index.id_map import IdMap
from model_code.index.top_k import Ranking
from model_code.live.collection import Collection, default_retriever
from model_code.live.documents import read_documents
from model_code.live.generation import DOCUMENTS, ENCODER, HIERARCHY, INDEX, PASSAGES, Generation
from model_code.live.snippet import snippet
from model_code.retrievers.kinds import open_retriever
from model_code.retrievers.retriever import Retriever, TokenMatch

if TYPE_CHECKING:
    from model_code.live.filters import Index
    from model_code.live.hybrid import Hybrid, HybridSettings


@dataclass(frozen=True)
class Hit:
    """A document found: `rank` from 1, the retriever's `score`, and where its best passage stands in the hierarchy.

    `path` is one node per level, root first; `snippet` the words of the text around the query's.
    """

    rank: int
    score: float
    document_id: str
    title: str
    snippet: str
    path: tuple[int, ...]


class Searcher:
    """One generation, loaded: retriever and hierarchy in memory, texts on disk.

    What only some searches need, fields and BM25, is read by the first of them and kept.
    """

    def __init__(self, generation: Generation, retriever: Retriever, hierarchy: Hierarchy, rows: IdMap) -> None:
        """rows: the document of each passage that the hierarchy places."""
        self.generation, self.retriever, self.hierarchy, self.rows = generation, retriever, hierarchy, rows
        self._hybrids: dict[HybridSettings, Hybrid] = {}

    @classmethod
    def open(cls, live: Path, retriever: str | None = None) -> Searcher:
        """Load the current generation of `retriever` (default: the live folder's default one).

        FreshetError if nothing is live; FingerprintMismatch if encoder, index and manifest are not of one piece.
        """
        generation = Collection(live, retriever or default_retriever(live)).current()
        opened = open_retriever(generation.folder / ENCODER, generation.folder / INDEX)
        if opened.fingerprint != generation.fingerprint:
            raise FingerprintMismatch(
                f"{generation.folder}: its encoder has fingerprint {opened.fingerprint[:12]}, its manifest says "
                f"{generation.fingerprint[:12]}; the folder was changed: promote again or roll back"
            )
        rows = IdMap(read_json(generation.folder / PASSAGES))
        return cls(generation, opened, Hierarchy.load(generation.folder / HIERARCHY), rows)

    def search(
        self, text: str, k: int = 10, filters: Sequence[str] = (), hybrid: HybridSettings | None = None
    ) -> list[Hit]:
        """The k best documents for a text, best first; fewer if the collection holds fewer.

        filters: "field=value" each; documents must have one of the values named for a field, for every field named.
        hybrid: fuse the ranking with BM25's; scores are then those of reciprocal-rank fusion.
        FreshetError if no document has the fields that the filters name.
        """
        return self.search_batch([text], k, filters, hybrid)[0]

    def search_batch(
        self, texts: Sequence[str], k: int = 10, filters: Sequence[str] = (), hybrid: HybridSettings | None = None
    ) -> list[list[Hit]]:
        """The hits of several texts at once, in their order."""
        allowed = self._allowed(filters) if filters else None
        if hybrid is None:
            rankings = self.retriever.search(texts, k, allowed)
        else:
            rankings = self._hybrid(hybrid).search(self.retriever, texts, k, allowed)
        return [self._hits(*found) for found in zip(texts, rankings, strict=True)]

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Which tokens of the retriever matched, the heaviest first; FreshetError if it does not score by token."""
        return self.retriever.explain(text, document_id)

    @property
    def _documents(self) -> Path:
        return self.generation.folder / DOCUMENTS

    @cached_property
    def _fields(self) -> Index:
        from model_code.live.filters import read_fields

        return read_fields(self._documents)

    def _allowed(self, filters: Sequence[str]) -> set[str]:
        from model_code.live.filters import matching

        return matching(self._fields, filters)

    def _hybrid(self, settings: HybridSettings) -> Hybrid:
        from model_code.live.hybrid import Hybrid

        if settings not in self._hybrids:
            self._hybrids[settings] = Hybrid(self._documents, settings)
        return self._hybrids[settings]

    def _hits(self, text: str, ranking: Ranking) -> list[Hit]:
        documents = read_documents(self._documents, [document for document, _ in ranking])
        hits = []
        for rank, (document, score) in enumerate(ranking, start=1):
            title, body = documents[document]["title"], documents[document]["text"]
            hits.append(Hit(rank, score, document, title, snippet(body, text), self._path(text, document)))
        return hits

    def _path(self, text: str, document_id: str) -> tuple[int, ...]:
        """The nodes above the document's best passage; a query is encoded again only where there are several."""
        rows = self.rows.rows_of([document_id])
        best = self.retriever.best_passage(text, document_id) if len(rows) > 1 else 0
        return self.hierarchy.path(int(rows[best]))
