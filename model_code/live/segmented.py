"""Several indexes of one encoder searched as one: equal to the one that all their documents would be built into."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from model_code.errors import FreshetError
from model_code.index.top_k import SPARE, search_kept
from model_code.live.part import View
from model_code.retriever import Ranking, Search, TokenMatch
from model_code.retrievers.base import EncodedRetriever


class SegmentedRetriever(EncodedRetriever[Any]):
    """A `Retriever` over views of parts, no document in two of them: queries are encoded once, for all.

    Every part ranks exactly as it would alone, and rankings are merged by descending score and ascending id.
    """

    def __init__(self, views: Sequence[View]) -> None:
        self.views = tuple(views)
        self.first = self.views[0].part.retriever
        self.fingerprint: str = self.first.fingerprint
        self.proposed = self.first.proposed

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """The kind's own form of query texts."""
        return self.first.encode_queries(texts)

    def search_encoded(self, queries: Any, k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """The k best documents of all parts for each query, best first; of `allowed` documents only, unless None.

        FreshetError if an allowed document is unknown.
        """
        if allowed is None:
            return _merged([_surviving(view, queries, k) for view in self.views if view.documents], len(queries), k)
        shares = self._shares(allowed)
        found = [view.part.retriever.search_encoded(queries, k, own) for view, own in shares.items()]
        return _merged(found, len(queries), k)

    def rerank_encoded(self, queries: Any, candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """All candidates of each query, best first; FreshetError if one is unknown."""
        rankings = []
        for i, documents in enumerate(candidates):
            shares = self._shares(documents)
            found = [view.part.retriever.rerank_encoded(queries[i : i + 1], [own]) for view, own in shares.items()]
            rankings += _merged(found, 1, max(1, len(documents)))
        return rankings

    def best_passage_encoded(self, query: Any, document_id: str) -> int:
        """Which of the document's passages answers the query best."""
        return self.view_of(document_id).part.retriever.best_passage_encoded(query, document_id)

    def variants(self) -> Mapping[str, Search]:
        """None: a live collection is searched in the main way only."""
        return {}

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Which tokens matched, the heaviest first; FreshetError if the kind does not score by token."""
        return self.view_of(document_id).part.retriever.explain(text, document_id)

    def view_of(self, document_id: str) -> View:
        """The part that has a document; FreshetError if none has."""
        for view in reversed(self.views):
            if document_id in view:
                return view
        raise FreshetError(f"the collection holds no document {document_id!r}: it was never added, or is deleted")

    def _shares(self, document_ids: Collection[str]) -> dict[View, list[str]]:
        """The documents by the part that has them."""
        shares: dict[View, list[str]] = {}
        for document_id in set(document_ids):
            shares.setdefault(self.view_of(document_id), []).append(document_id)
        return shares


def _surviving(view: View, queries: Any, k: int) -> list[Ranking]:
    """The k best documents of a part for each query that are not removed; fewer only where no others match."""
    search, removed = view.part.retriever.search_encoded, view.removed
    if not removed:
        return search(queries, k)
    return search_kept(search, queries, k, lambda document: document not in removed, k + SPARE, k + len(removed))


def _merged(parts: Sequence[Sequence[Ranking]], queries: int, k: int) -> list[Ranking]:
    """The k best of all parts' rankings, for each of the queries."""
    if len(parts) == 1:
        return [list(ranking[:k]) for ranking in parts[0]]
    merged = []
    for i in range(queries):
        hits = [hit for rankings in parts for hit in rankings[i]]
        merged.append(sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:k])
    return merged
