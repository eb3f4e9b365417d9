"""Search a live collection: open once, then answer from memory. Reads live generations only, never
`artifacts/`.
"""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from freshet.results import Hit
from model_code.collection.generations.generation import (
    Generation,
    removed_by_segment,
    verify_checksums_on_error,
)
from model_code.collection.generations.generation_store import GenerationStore, default_retriever
from model_code.collection.segments.documents import document_from_row
from model_code.collection.segments.segment import (
    BaseSegment,
    LoadedSegment,
    SegmentView,
    open_segment,
)
from model_code.errors import FreshetError
from model_code.retrieval.protocol import Ranking, Retriever
from model_code.text.documents import Document
from model_code.text.passages import Span, section_at
from model_code.text.snippets import find_marks, make_snippet, require_queries

if TYPE_CHECKING:
    from model_code.collection.segments.filters import Filters, Index


class Searcher:
    """One generation, loaded: indexes and hierarchy in memory, texts on disk. It answers from this
    generation for good.

    What only some searches need, such as fields, is read by the first of them and kept.
    """

    def __init__(
        self, live: Path, generation: Generation, loaded: Mapping[int, LoadedSegment]
    ) -> None:
        """Load the parts of `generation` that are not among those `loaded`, by their numbers;
        Damaged if one is.
        """
        self.live, self.generation = live, generation
        with verify_checksums_on_error(generation):
            loaded = {number: part for number, part in loaded.items() if part.lock.is_valid()}
            base = loaded.get(generation.base)
            self.base = (
                base
                if isinstance(base, BaseSegment)
                else BaseSegment.open(generation.sibling(generation.base), generation.fingerprint)
            )
            segments = {
                n: loaded.get(n) or open_segment(self.base, generation.sibling(n))
                for n in generation.segments
            }
            parts = {generation.base: self.base} | segments
            self.views = tuple(
                SegmentView(parts[number], gone)
                for number, gone in removed_by_segment(generation).items()
            )

    @cached_property
    def retriever(self) -> Retriever:
        """The search of all parts together; put together by the first that asks, as not all who
        open a searcher do.
        """
        return type(self.base.retriever).join_segments([view.searchable for view in self.views])

    @classmethod
    def open(cls, live: Path, retriever: str | None = None) -> Searcher:
        """Load the current generation of `retriever` (default: the live folder's default one).

        FreshetError if nothing is live; FingerprintMismatch if encoder, index and manifest are not
        of one piece.
        """
        return _open(live, retriever or default_retriever(live), {})

    def renewed(self) -> Searcher:
        """A searcher of the current generation that shares every part with this one; this one if it
        is current.

        Numbers begin anew where a live collection was deleted: the manifest tells one generation
        from another.
        """
        if GenerationStore(self.live, self.generation.retriever).current() == self.generation:
            return self
        return _open(self.live, self.generation.retriever, self.parts)

    def ready(self) -> Self:
        """Itself, once what every search needs is put together, so that the first search need not
        wait for it.
        """
        _ = self.retriever
        return self

    @property
    def parts(self) -> dict[int, LoadedSegment]:
        """What is loaded, by its generation's number; it never changes, so that searchers and
        threads share it.
        """
        return {view.segment.number: view.segment for view in self.views}

    def search(
        self, text: str, k: int = 10, filters: Filters = (), explain: bool = False
    ) -> list[Hit]:
        """The k best documents for a text, best first; fewer if the collection holds fewer.

        filters: an object or texts, see `model_code.collection.segments.filters`. explain: the hits
        say what their scores are made of. SettingsError if the text is empty, FreshetError if no
        document has the fields that the filters name.
        """
        return self.search_batch([text], k, filters, explain)[0]

    def search_batch(
        self, texts: Sequence[str], k: int = 10, filters: Filters = (), explain: bool = False
    ) -> list[list[Hit]]:
        """The hits of several texts at once, in their order. Each is encoded once. SettingsError if
        one is empty.
        """
        require_queries(texts)
        with verify_checksums_on_error(self.generation):
            allowed = None
            if filters:
                from model_code.collection.segments.filters import (
                    matching_documents,  # here and below when a filter needs it
                )

                allowed = matching_documents(self._fields, filters, lambda: self._document_ids)
                if not allowed:
                    return [[] for _ in texts]
            queries = self.retriever.encode_queries(texts)
            rankings = self.retriever.search_and_rerank(queries, k, allowed)
            return [
                self._hits(text, queries[i : i + 1], rankings[i], explain)
                for i, text in enumerate(texts)
            ]

    @property
    def can_explain(self) -> bool:
        """Whether a search can `explain` what a score is made of."""
        return self.retriever.can_explain

    def view_of(self, document_id: str) -> SegmentView:
        """The part that has a document; FreshetError if none has."""
        for view in reversed(self.views):
            if document_id in view:
                return view
        raise FreshetError(
            f"the collection holds no document {document_id!r}: it was never added, or is deleted"
        )

    @cached_property
    def _fields(self) -> Index:
        from model_code.collection.segments.filters import MergedFields

        return MergedFields([(view.segment.fields, view.removed) for view in self.views])

    @cached_property
    def _document_ids(self) -> Set[str]:
        return {name for view in self.views for name in view.document_ids()}

    def field_values(self, limit: int) -> dict[str, dict[str, int]]:
        """The commonest `limit` values of each field, and of how many documents each is."""
        from model_code.collection.segments.filters import commonest

        return {name: commonest(self._fields[name], limit) for name in sorted(self._fields)}

    def documents(self, document_ids: Ids[str]) -> dict[str, Document]:
        """Those of `document_ids` that can be found, by id."""
        rows = {}
        for view in self.views:
            names = [name for name in document_ids if name in view]
            rows |= view.segment.document_file.read(names) if names else {}
        return {name: document_from_row(row) for name, row in rows.items()}

    def ids_after(self, after: str, limit: int) -> list[str]:
        """The next `limit` documents that can be found, by ascending id."""
        return list(islice(merge(*(view.ids_after(after) for view in self.views)), limit))

    def _hits(self, text: str, query: Any, ranking: Ranking, explain: bool) -> list[Hit]:
        names = [document for document, _ in ranking]
        documents = self.documents(names)
        hits = [
            self._hit(rank, score, documents[document], text, query)
            for rank, (document, score) in enumerate(ranking, start=1)
        ]
        if not explain:
            return hits
        shares = self.retriever.explain_all(text, query, names)
        return [
            replace(hit, tokens=tuple(tokens)) for hit, tokens in zip(hits, shares, strict=True)
        ]

    def _hit(self, rank: int, score: float, document: Document, text: str, query: Any) -> Hit:
        """query: the encoded `text`, which the best passage is found and the snippet is cut by."""
        part = self.view_of(document.document_id).segment
        rows = part.rows.rows_of([document.document_id])
        best = (
            self.retriever.best_passage_encoded(query, document.document_id) if len(rows) > 1 else 0
        )
        place = self._place(document.text, best, len(rows))
        passage = document.text[place.start : place.end]
        language = self.retriever.language
        shown = make_snippet(passage, text, language=language)
        path = tuple(part.placements.paths[rows[best]].tolist())
        return Hit(
            rank=rank,
            score=score,
            document_id=document.document_id,
            title=document.title,
            text=passage,
            start=place.start,
            end=place.end,
            section=section_at(document.text, place.start),
            snippet=shown,
            marks=find_marks(shown, text, language),
            fields=document.fields,
            date=document.date,
            path=path,
            topics=tuple(names[node] for names, node in zip(self.base.topics, path, strict=False)),
            generation=self.generation.number,
        )

    def _place(self, text: str, best: int, passages: int) -> Span:
        """Where the best of a document's passages stands; all of the text where it was not cut, or
        nobody knows how.
        """
        rules = self.generation.manifest["text"] and self.generation.text
        places = rules.passage_spans(text) if rules and passages > 1 else []
        return places[best] if len(places) == passages else Span(0, len(text))


def _open(live: Path, retriever: str, loaded: Mapping[int, LoadedSegment]) -> Searcher:
    """Load the current generation; once more if it was replaced, and its folders deleted, while it
    was being read.
    """
    collection = GenerationStore(live, retriever)
    number = collection.current_number()
    try:
        return Searcher(live, collection.current(), loaded)
    except (FreshetError, FileNotFoundError):
        if collection.current_number() == number:
            raise
        return _open(live, retriever, loaded)
