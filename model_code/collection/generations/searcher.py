"""Search the documents of a live generation: open it once, then search it in memory.

Only the folders of live generations are read, never `artifacts/`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from freshet.results import Hit, SearchResult, TokenMatch
from model_code.collection.generations.boosts import add_boosts
from model_code.collection.generations.generation import (
    Generation,
    known_overrides,
    removed_by_segment,
    verify_checksums_on_error,
)
from model_code.collection.generations.generation_store import GenerationStore, default_retriever
from model_code.collection.generations.query_options import (
    QueryOptions,
    count_facets,
    group_ranking,
    sort_ranking,
)
from model_code.collection.generations.text_matches import documents_meeting, flags_among
from model_code.collection.segments.documents import EXPIRES, document_from_row
from model_code.collection.segments.segment import (
    BaseSegment,
    LoadedSegment,
    SegmentView,
    open_segment,
)
from model_code.collection.segments.solved import SolvedDocuments, SolvedQuery
from model_code.corpus.known_queries import drop_held_out
from model_code.errors import FreshetError
from model_code.retrieval.diversity import diversify, term_similarities
from model_code.retrieval.id_map import AllowedDocuments
from model_code.retrieval.indexed import RetrieverSegment
from model_code.retrieval.protocol import Ranking, Retriever, TypedQuery, top_k_ranking
from model_code.retrieval.relevance_floor import RelevanceFloor
from model_code.retrieval.typed_words import split_unfinished_word
from model_code.text.documents import Document
from model_code.text.known_queries import KnownQuery, normalize_query, resolve_queries
from model_code.text.passages import Span, section_at
from model_code.text.query_syntax import ParsedQuery, fold_text, parse_query
from model_code.text.snippets import find_marks, make_snippet, require_queries
from model_code.text.terms import get_analyzer
from model_code.text.words import split_search_words

if TYPE_CHECKING:
    import numpy as np

    from model_code.collection.segments.conditions import FieldValue, Filters
    from model_code.collection.segments.filters import CollectionFields
    from model_code.retrieval.bm25_index import Bm25Index
    from model_code.retrieval.reranker import Reranker

# Values of a field that a search counts.
MAX_FACET_VALUES = 20
# Documents whose words make the random queries of the relevance floor. Neighbours are read at once.
FLOOR_RUNS = 8
FLOOR_RUN_LENGTH = 32
# Beginning of a document that is the query for documents like it.
MAX_LIKE_CHARACTERS = 1000
MILLISECONDS = 1000.0
# Name of the reranker's score in an explanation.
RERANKER = "reranker"


SHOWN_HITS = 10
"""Hits that a user of the search is assumed to see."""

MAX_FEEDBACK_RANK = 100
"""Rank of a hit beyond which feedback on it looks no deeper for the document."""


class Searcher:
    """One generation in memory, which it searches for as long as it lives.

    Indexes and hierarchy are in memory, texts on the disk. What only some searches need, such as
    fields, is read by the first of them and kept.

    Attributes:
        live: Folder of all live collections.
        generation: The generation.
        base: Its base segment.
        views: Its segments, base first.
    """

    def __init__(
        self, live: Path, generation: Generation, loaded: Mapping[int, LoadedSegment]
    ) -> None:
        """Load the segments of a generation.

        Args:
            live: Folder of all live collections.
            generation: Generation to search.
            loaded: Segments in memory by number, which are shared. Those whose folders were
                deleted or replaced are loaded again.

        Raises:
            Damaged: If a file is damaged.
            FingerprintMismatch: If the encoder is not the one that made the vectors.
        """
        self.live = live
        self.generation = generation
        self.reranker: Reranker | None = None
        with verify_checksums_on_error(generation):
            shared = {
                number: segment for number, segment in loaded.items() if segment.lock.is_valid()
            }
            base = shared.get(generation.base)
            if not isinstance(base, BaseSegment):
                folder = generation.sibling(generation.base)
                base = BaseSegment.open(folder, generation.fingerprint)
            self.base = base

            overrides = known_overrides(generation)
            views: list[SegmentView] = []
            for number, removed in removed_by_segment(generation).items():
                segment = base if number == generation.base else shared.get(number)
                if segment is None:
                    segment = open_segment(base, generation.sibling(number))
                views.append(SegmentView(segment, removed).with_known(overrides))
            self.views = tuple(views)

    @cached_property
    def retriever(self) -> Retriever:
        """Retriever over all segments, which is put together on first use."""
        segments = [view.searchable for view in self.views]
        return type(self.base.retriever).join_segments(segments)

    @classmethod
    def open(cls, live: Path, retriever: str | None = None) -> Searcher:
        """Load the current generation of a retriever.

        Args:
            live: Folder of all live collections.
            retriever: Name of the retriever; None means the default one.

        Raises:
            FreshetError: If the retriever is not live.
            FingerprintMismatch: If encoder, index and manifest do not belong together.
        """
        return _open_current(live, retriever or default_retriever(live), {})

    def renewed(self) -> Searcher:
        """Return a searcher of the current generation, which is this one if nothing changed.

        It shares all segments with this one. Generations are compared by their manifests, since
        numbers start again after a live collection was deleted.
        """
        store = GenerationStore(self.live, self.generation.retriever)
        if store.current() == self.generation:
            return self
        renewed = _open_current(self.live, self.generation.retriever, self.parts)
        renewed.reranker = self.reranker
        return renewed

    def ready(self) -> Self:
        """Put together what every search needs, so that the first search does not wait for it."""
        _ = self.relevance_floor
        return self

    @property
    def relevance_floor(self) -> RelevanceFloor:
        """Floor of the retriever. It is learned once per base segment."""
        if self.base.floor is None:
            ids = self.ids_after("", self.document_count)
            documents = self.documents(spread_runs(ids, FLOOR_RUNS, FLOOR_RUN_LENGTH))
            texts = [f"{document.title} {document.text}" for document in documents.values()]
            self.base.floor = RelevanceFloor.learn(self.retriever, texts)
        return self.base.floor

    @property
    def parts(self) -> dict[int, LoadedSegment]:
        """Loaded segments by number. They never change, so searchers and threads share them."""
        return {view.segment.number: view.segment for view in self.views}

    def search(
        self, text: str, k: int = 10, filters: Filters = (), explain: bool = False
    ) -> list[Hit]:
        """Return the k best documents for a text, best first; see `search_batch`."""
        return self.search_batch([text], k, filters, explain)[0]

    def search_batch(
        self, texts: Sequence[str], k: int = 10, filters: Filters = (), explain: bool = False
    ) -> list[list[Hit]]:
        """Search for several texts at once, which are taken literally; see `search_pages`."""
        options = QueryOptions(
            k=k, filters=filters, explain=explain, syntax=False, typos=False, floor=False
        )
        return [page.hits for page in self.search_pages(texts, options)]

    def search_pages(self, texts: Sequence[str], options: QueryOptions) -> list[SearchResult]:
        """Search for several texts at once, which are encoded together.

        Args:
            texts: Queries.
            options: Options that all queries share.

        Returns:
            A page of hits for each text. There are fewer than k if fewer documents match.

        Raises:
            SettingsError: If a text is empty, or an option is malformed.
            FreshetError: If no document ever had a field that the options name.
        """
        require_queries(texts)
        with verify_checksums_on_error(self.generation):
            if options.fields():
                self._fields.require_known(options.fields())
            allowed = self.matching_documents(options.filters)
            if allowed is not None and not allowed:
                no_values: dict[str, dict[str, int]] = {name: {} for name in options.facets}
                return [self._make_page([], 0, no_values) for _ in texts]
            parsed = [self._parse(text, options) for text in texts]
            typed = [
                self._type_query(query, text, options)
                for query, text in zip(parsed, texts, strict=True)
            ]
            queries = self._encode(typed, options)
            allowed_sets = [self._meeting(query, allowed) for query in parsed]
            rankings = self._rank(queries, self._depth(options), allowed_sets)
            pages: list[SearchResult] = []
            for i, query in enumerate(typed):
                query_allowed = allowed_sets[i]
                matching = self.document_count if query_allowed is None else len(query_allowed)
                encoded = queries[i : i + 1]
                pages.append(
                    self._answer(
                        self.retriever, query.text, encoded, rankings[i], matching, options
                    )
                )
            return pages

    def search_like(self, document_id: str, options: QueryOptions) -> SearchResult:
        """Search for documents that resemble a document, which is left out.

        The title and the beginning of its text are the query, so that every retriever can do this.

        Args:
            document_id: Id of the document.
            options: Options of the search. `syntax`, `typos` and `prefix` have no effect.

        Raises:
            FreshetError: If no document with this id can be found, or an option names a field that
                no document ever had.
        """
        with verify_checksums_on_error(self.generation):
            self.view_of(document_id)
            document = self.documents([document_id])[document_id]
            text = f"{document.title}\n{document.text}".strip()[:MAX_LIKE_CHARACTERS]
            query = self.retriever.encode_queries([text])
            shown_text = document.title or text
            # The relevance floor is learned from queries, and a document is none.
            unmarked = replace(options, floor=False)
            return self._search_encoded(self.retriever, query, shown_text, unmarked, document_id)

    def search_vector(self, vector: Sequence[float], options: QueryOptions) -> SearchResult:
        """Search for the passages that are nearest to a vector of the encoder.

        Args:
            vector: Vector (H,) of any length above 0.
            options: Options of the search. `syntax`, `typos` and `prefix` have no effect.

        Raises:
            SettingsError: If the vector has another dimension, or is not finite, or is 0.
            FreshetError: If the retriever has no vectors.
        """
        dense = self.retriever.dense
        if dense is None:
            raise FreshetError(
                f"{self.generation.retriever} is a {self.base.kind} retriever, which has no "
                "vectors; search with a text, or with another retriever"
            )
        query = dense.normalize_query(vector)
        with verify_checksums_on_error(self.generation):
            return self._search_encoded(dense, query, "", replace(options, floor=False))

    def _search_encoded(
        self,
        retriever: Retriever,
        query: Any,
        text: str,
        options: QueryOptions,
        excluded: str | None = None,
    ) -> SearchResult:
        """Return the page of one encoded query.

        Args:
            retriever: Retriever that encoded the query.
            query: The encoded query.
            text: Text whose words the snippets show.
            options: Options of the search.
            excluded: A document to leave out.
        """
        if options.fields():
            self._fields.require_known(options.fields())
        allowed = self.matching_documents(options.filters)
        matching = self.document_count if allowed is None else len(allowed)
        depth = options.depth
        if excluded is not None:
            # The excluded document may be among the best ones.
            depth += 1
        ranking: Ranking = []
        if matching:
            (ranking,) = retriever.search_and_rerank(query, depth, allowed)
        if excluded is not None:
            ranking = [entry for entry in ranking if entry[0] != excluded][: options.depth]
            if allowed is None or excluded in allowed:
                matching -= 1
        return self._answer(retriever, text, query, ranking, matching, options)

    def _parse(self, text: str, options: QueryOptions) -> ParsedQuery:
        if not options.syntax:
            return ParsedQuery(text)
        parsed = parse_query(text)
        if not any(condition.literal for condition in parsed.conditions):
            return parsed
        flags = flags_among(
            parsed.conditions,
            self._document_ids,
            self.views,
            self._title_and_text_index,
            self.retriever.language,
        )
        return parse_query(text, flags)

    def _type_query(self, query: ParsedQuery, text: str, options: QueryOptions) -> TypedQuery:
        """Return a query as retrievers take it.

        Args:
            query: The query without its syntax.
            text: The query as typed. A last word in quotes is finished.
            options: Options of the search.
        """
        is_unfinished = options.prefix and query.text.endswith(text[-1:])
        searched_text = self._complete(query.text) if is_unfinished else query.text
        return TypedQuery(searched_text, query.text, is_unfinished, options.typos)

    def _complete(self, text: str) -> str:
        """Return a text whose last word is completed if no document contains it.

        Encoders know words, but hardly their beginnings. The word of the first document that has
        the most frequent completion is taken.
        """
        index = self.retriever.keyword_index
        if index is None:
            return text
        unfinished = split_unfinished_word(text)
        completions = index.complete(unfinished.word)
        analyzer = get_analyzer(index.language)
        if not completions or any(map(index.knows, analyzer.whole_terms(unfinished.word))):
            return text
        document_id = index.first_document_with(completions[0])
        if document_id is None:
            return text

        document = self.documents([document_id])[document_id]
        document_text = f"{document.title} {document.text}"
        beginning = fold_text(unfinished.word)
        for start, end, terms in analyzer.locate(document_text):
            word = document_text[start:end]
            if completions[0] in terms and fold_text(word).startswith(beginning):
                return unfinished.finished_text + word
        return text

    def _encode(self, queries: Sequence[TypedQuery], options: QueryOptions) -> Any:
        if options.typos or options.prefix:
            return self.retriever.encode_typed(queries)
        return self.retriever.encode_queries([query.text for query in queries])

    def _meeting(
        self, query: ParsedQuery, allowed: Collection[str] | None
    ) -> Collection[str] | None:
        """Return the allowed documents that meet a query's conditions; None allows all."""
        if not query.conditions:
            return allowed
        documents = self._document_ids if allowed is None else set(allowed)
        return documents_meeting(
            query.conditions,
            documents,
            self.views,
            self._title_and_text_index,
            self.retriever.language,
        )

    @property
    def _title_and_text_index(self) -> Bm25Index | None:
        """The BM25 index of titles and texts. None without BM25, or if it has no titles."""
        has_titles = bool(self.generation.manifest["text"]) and self.generation.text.include_title
        return self.retriever.keyword_index if has_titles else None

    def _rank(
        self, queries: Any, depth: int, allowed_sets: Sequence[Collection[str] | None]
    ) -> list[Ranking]:
        """Return the best documents for each query.

        Args:
            queries: Encoded queries.
            depth: Number of documents.
            allowed_sets: Documents that each query may find; None allows all.
        """
        if not allowed_sets:
            return []
        first_set = allowed_sets[0]
        if all(allowed is first_set for allowed in allowed_sets):
            if first_set is not None and not first_set:
                return [[] for _ in allowed_sets]
            return self.retriever.search_and_rerank(queries, depth, first_set)
        rankings: list[Ranking] = []
        for i, allowed in enumerate(allowed_sets):
            rankings.extend(self._rank(queries[i : i + 1], depth, [allowed]))
        return rankings

    def matching(self, filters: Filters) -> AllowedDocuments:
        """Return the documents that meet a filter, expired ones as well.

        Raises:
            FreshetError: If no document ever had a field whose values the filter compares.
            SettingsError: If the filter is malformed.
        """
        return self._allow(self._fields.find(filters))

    def expired_documents(self) -> Collection[str]:
        """Return the documents whose field `expires` is a past date."""
        if not any(view.segment.may_expire for view in self.views):
            return ()
        now = datetime.now(UTC).isoformat()
        return self.matching({EXPIRES: {"<=": now}})

    def matching_documents(self, filters: Filters) -> AllowedDocuments | None:
        """Return the documents that meet a filter and are not expired; None for all.

        Raises:
            FreshetError: If no document ever had a field whose values the filter compares.
            SettingsError: If the filter is malformed.
        """
        expired = self.expired_documents()
        if not filters and not expired:
            return None
        allowed = self.matching(filters)
        if not isinstance(expired, AllowedDocuments):
            return allowed
        masks = [
            mask & ~expired_mask
            for (_, mask), (_, expired_mask) in zip(allowed.segments, expired.segments, strict=True)
        ]
        return self._allow(masks)

    def _allow(self, masks: Sequence[np.ndarray]) -> AllowedDocuments:
        rows = [view.segment.rows for view in self.views]
        return AllowedDocuments(list(zip(rows, masks, strict=True)))

    def _depth(self, options: QueryOptions) -> int:
        """Return the number of documents that the retriever has to rank."""
        if self.reranker is not None and options.rerank:
            return max(options.depth, self.reranker.depth)
        return options.depth

    def _rerank(
        self, reranker: Reranker, retriever: Retriever, text: str, query: Any, ranking: Ranking
    ) -> Ranking:
        """Return the best documents of a ranking in the order of the reranker, with its scores."""
        document_ids = [document_id for document_id, _ in ranking[: reranker.depth]]
        documents = self.documents(document_ids)
        passages: list[str] = []
        for document_id in document_ids:
            document = documents[document_id]
            rows = self.view_of(document_id).segment.rows.rows_of([document_id])
            best = self._best_passage(retriever, query, document_id)
            span = self._passage_span(document.text, best, len(rows))
            passages.append(f"{document.title}\n{document.text[span.start : span.end]}".strip())
        if not passages:
            return []
        return top_k_ranking(document_ids, reranker.score(text, passages), len(document_ids))

    def _answer(
        self,
        retriever: Retriever,
        text: str,
        query: Any,
        ranking: Ranking,
        matching: int,
        options: QueryOptions,
    ) -> SearchResult:
        """Return the page of a ranking.

        Args:
            retriever: Retriever that encoded the query and ranked the documents.
            text: Text of the query.
            query: The encoded text.
            ranking: The `options.depth` best documents.
            matching: Number of documents that match the filters.
            options: Options of the search.
        """
        if options.min_score is not None:
            ranking = [entry for entry in ranking if entry[1] >= options.min_score]
        # A short ranking holds every document that the retriever finds.
        total = len(ranking) if len(ranking) < self._depth(options) else matching
        rerank_ms = None
        contributions: dict[str, list[TokenMatch]] = {}
        if self.reranker is not None and options.rerank and text:
            started = time.perf_counter()
            ranking = self._rerank(self.reranker, retriever, text, query, ranking)
            rerank_ms = round((time.perf_counter() - started) * MILLISECONDS, 3)
            total = len(ranking)
            for document_id, score in ranking:
                contributions[document_id] = [TokenMatch(RERANKER, score)]
        window_ids = [document_id for document_id, _ in ranking[: options.window]]
        facets = count_facets(window_ids, options.facets, self.field_values_of, MAX_FACET_VALUES)

        if options.boosts:
            ranking = self._boost(ranking, options, contributions)
        if options.sort:
            ranking = sort_ranking(ranking, options.sort, self.field_values_of)
        if options.group_by is not None:
            ranking = group_ranking(ranking, options.group_by, self.field_values_of)
        if options.diversity and not options.sort:
            ranking = self._diversify(ranking, options.diversity)
        if options.reorders:
            total = len(ranking)

        page = ranking[options.offset : options.offset + options.k]
        hits = self._make_hits(retriever, text, query, page, options, contributions)
        return self._make_page(hits, total, facets, rerank_ms)

    def _make_page(
        self,
        hits: list[Hit],
        total: int,
        facets: Mapping[str, Mapping[str, int]],
        rerank_ms: float | None = None,
    ) -> SearchResult:
        return SearchResult(
            self.generation.retriever, self.generation.number, hits, total, facets, rerank_ms
        )

    def _boost(
        self,
        ranking: Ranking,
        options: QueryOptions,
        contributions: dict[str, list[TokenMatch]],
    ) -> Ranking:
        """Return a ranking with the boosts added to its scores.

        Args:
            ranking: The ranking.
            options: Options of the search.
            contributions: The parts of each document's score, to which the boosts are added.
        """
        document_ids = [document_id for document_id, _ in ranking]
        scores = [score for _, score in ranking]
        values = [self.field_values_of(boost.field, document_ids) for boost in options.boosts]
        additions = add_boosts(options.boosts, scores, values)

        boosted: Ranking = []
        for i, document_id in enumerate(document_ids):
            added = [addition[i] for addition in additions]
            boosted.append((document_id, scores[i] + sum(added)))
            own_score = TokenMatch(self.generation.retriever, scores[i])
            parts = contributions.setdefault(document_id, [own_score])
            for boost, weight in zip(options.boosts, added, strict=True):
                parts.append(TokenMatch(f"boost {boost.field}", weight))
        boosted.sort(key=lambda entry: (-entry[1], entry[0]))
        return boosted

    def _diversify(self, ranking: Ranking, diversity: float) -> Ranking:
        """Move documents down that resemble better ones."""
        document_ids = [document_id for document_id, _ in ranking]
        if not document_ids:
            return ranking
        dense = self.retriever.dense
        if dense is not None:
            similarities = dense.vectors_of(document_ids).similarities()
        else:
            documents = self.documents(document_ids)
            analyzer = get_analyzer(self.retriever.language)
            term_sets = [
                frozenset(analyzer.analyze(f"{documents[name].title} {documents[name].text}"))
                for name in document_ids
            ]
            similarities = term_similarities(term_sets)
        return diversify(ranking, similarities, diversity)

    def field_values_of(
        self, field: str, document_ids: Sequence[str]
    ) -> list[Sequence[FieldValue]]:
        """Return the values that each of some documents has in a field."""
        places: dict[LoadedSegment, list[int]] = {}
        for place, document_id in enumerate(document_ids):
            segment = self.view_of(document_id).segment
            places.setdefault(segment, []).append(place)

        values: list[Sequence[FieldValue]] = [()] * len(document_ids)
        for segment, segment_places in places.items():
            ids = [document_ids[place] for place in segment_places]
            for place, found in zip(segment_places, segment.values_of(field, ids), strict=True):
                values[place] = found
        return values

    @cached_property
    def document_count(self) -> int:
        """Number of documents that can be found."""
        return sum(view.documents for view in self.views)

    @property
    def can_explain(self) -> bool:
        """Whether a search can explain what a score is made of."""
        return self.retriever.can_explain

    def view_of(self, document_id: str) -> SegmentView:
        """Return the segment that holds a document.

        Raises:
            FreshetError: If no document with this id can be found.
        """
        for view in reversed(self.views):
            if document_id in view:
                return view
        raise FreshetError(
            f"the collection holds no document {document_id!r}: it was never added, or is deleted"
        )

    @cached_property
    def _fields(self) -> CollectionFields:
        # Imported when needed, as most searches have no filter.
        from model_code.collection.segments.filters import CollectionFields

        segments = [(view.segment.field_index, view.is_live) for view in self.views]
        return CollectionFields(segments, self.generation.manifest.get("known_fields", ()))

    @cached_property
    def _document_ids(self) -> Set[str]:
        document_ids: set[str] = set()
        for view in self.views:
            document_ids.update(view.document_ids())
        return document_ids

    def field_values(self, limit: int) -> dict[str, dict[str, int]]:
        """Return the most frequent values of each field, with their numbers of documents.

        Args:
            limit: Largest number of values of a field.
        """
        from model_code.collection.segments.filters import commonest

        fields = self._fields
        return {name: commonest(fields.count(name), limit) for name in fields.names()}

    def documents(self, document_ids: Collection[str]) -> dict[str, Document]:
        """Return documents by their ids; those that cannot be found are left out."""
        documents: dict[str, Document] = {}
        for view in self.views:
            ids = [document_id for document_id in document_ids if document_id in view]
            if not ids:
                continue
            for document_id, row in view.segment.document_file.read(ids).items():
                documents[document_id] = document_from_row(row)
        return documents

    @cached_property
    def plain_retriever(self) -> Retriever:
        """The same search in which known queries do not count as words.

        A query that a document arrived with says nothing about the search if it finds the document
        by its own words.
        """
        return self.retriever.without_known_words()

    def is_raised_by_known_queries(self, text: str, document_id: str, rank: int) -> bool:
        """Return whether a hit was shown only because of known queries of documents.

        Without them, the document is not among the first hits: neither without their words, nor
        with the encoding of a document whose vector was solved for this query.

        Args:
            text: The query.
            document_id: Document that the hit showed.
            rank: Rank of the hit, from 1.
        """
        depth = min(max(rank, SHOWN_HITS), MAX_FEEDBACK_RANK)
        solved_query = self._solved_query(text, document_id)
        if solved_query is not None and solved_query.rank_before > depth:
            return True
        if self.plain_retriever is self.retriever:
            return False
        (ranking,) = self.plain_retriever.search([text], depth)
        return document_id not in dict(ranking)

    def _solved_query(self, text: str, document_id: str) -> SolvedQuery | None:
        """Return how a document was solved for a query; None if it was not."""
        view = next((view for view in self.views if document_id in view), None)
        if view is None:
            return None
        with verify_checksums_on_error(self.generation):
            solved = SolvedDocuments.load(view.segment.folder).documents.get(document_id)
        if solved is None:
            return None
        normalized = normalize_query(text)
        for query in solved.queries:
            if normalize_query(query.text) == normalized:
                return query
        return None

    def segments_without(self, held_out: frozenset[str]) -> list[RetrieverSegment]:
        """Return the segments to search when some queries judge, which must not be known then.

        The queries of a corpus can judge although this generation knows them, since it may be older
        than the corpus.

        Args:
            held_out: Hashes of the queries that judge; see `query_hash`.
        """
        segments: list[RetrieverSegment] = []
        for view in self.views:
            overrides = dict(view.known)
            for document_id, evidence in view.known_queries():
                kept = drop_held_out(evidence, held_out)
                if len(kept) < len(evidence):
                    overrides[document_id] = kept
            segments.append(view.with_known(overrides).searchable)
        return segments

    def known_queries(self, document_ids: Collection[str] | None = None) -> list[KnownQuery]:
        """Return the known queries of the documents that can be found.

        Args:
            document_ids: Documents whose queries are returned; None means all documents.

        Returns:
            One query per document and normalised text, in the order of `resolve_queries`.
        """
        queries: list[KnownQuery] = []
        for view in self.views:
            for _, evidence in view.known_queries(document_ids):
                queries.extend(evidence)
        return resolve_queries(drop_held_out(queries, self.base.build_queries.held_out))

    def ids_after(self, after: str, limit: int) -> list[str]:
        """Return the next `limit` documents that can be found, by ascending id."""
        ids = merge(*(view.ids_after(after) for view in self.views))
        return list(islice(ids, limit))

    def _make_hits(
        self,
        retriever: Retriever,
        text: str,
        query: Any,
        ranking: Ranking,
        options: QueryOptions,
        contributions: Mapping[str, list[TokenMatch]],
    ) -> list[Hit]:
        """Return the hits of a page.

        Args:
            retriever: Retriever that encoded the query.
            text: Text of the query.
            query: The encoded text.
            ranking: Documents of the page.
            options: Options of the search.
            contributions: The score of the retriever and the boosts, by document.
        """
        document_ids = [document_id for document_id, _ in ranking]
        documents = self.documents(document_ids)
        hits: list[Hit] = []
        added_terms = retriever.added_terms(query)
        for rank, (document_id, score) in enumerate(ranking, start=options.offset + 1):
            document = documents[document_id]
            best = self._best_passage(retriever, query, document_id)
            hits.append(self._make_hit(rank, score, document, text, best, added_terms))
        if options.floor:
            hits = self._mark_below_floor(hits, text, query)
        if not options.explain:
            return hits

        explained: list[Hit] = []
        shares = self._explain(retriever, text, query, document_ids, contributions)
        for hit, tokens in zip(hits, shares, strict=True):
            explained.append(replace(hit, tokens=tuple(tokens)))
        return explained

    def _mark_below_floor(self, hits: Sequence[Hit], text: str, query: Any) -> list[Hit]:
        """Mark the hits that fit the query too little. A text without any word fits nothing."""
        if not hits:
            return []
        is_below = [True] * len(hits)
        if split_search_words(text):
            (fits,) = self.retriever.fits(query, [[hit.document_id for hit in hits]])
            is_below = self.relevance_floor.is_below(fits, len(hits))
        return [replace(hit, below_floor=below) for hit, below in zip(hits, is_below, strict=True)]

    def _best_passage(self, retriever: Retriever, query: Any, document_id: str) -> int:
        """Return the number of the passage of a document that answers a query best."""
        rows = self.view_of(document_id).segment.rows.rows_of([document_id])
        return retriever.best_passage_encoded(query, document_id) if len(rows) > 1 else 0

    def _explain(
        self,
        retriever: Retriever,
        text: str,
        query: Any,
        document_ids: Sequence[str],
        contributions: Mapping[str, list[TokenMatch]],
    ) -> list[list[TokenMatch]]:
        """Return the parts of each document's score, boosts last."""
        is_reranked = any(parts[0].token == RERANKER for parts in contributions.values())
        if is_reranked or (contributions and not retriever.can_explain):
            return [contributions[document_id] for document_id in document_ids]
        shares = retriever.explain_all(text, query, document_ids)
        for document_id, tokens in zip(document_ids, shares, strict=True):
            # The first contribution is the retriever's score, which the tokens explain.
            tokens.extend(contributions.get(document_id, [])[1:])
        return shares

    def _make_hit(
        self,
        rank: int,
        score: float,
        document: Document,
        text: str,
        best: int,
        added_terms: frozenset[str],
    ) -> Hit:
        """Return a hit, which shows the best passage of the document for the query.

        Args:
            rank: Rank of the hit.
            score: Its score.
            document: Its document.
            text: Text of the query.
            best: Number of its passage that answers the query best.
            added_terms: Terms that replaced words of the text.
        """
        segment = self.view_of(document.document_id).segment
        rows = segment.rows.rows_of([document.document_id])
        span = self._passage_span(document.text, best, len(rows))
        passage = document.text[span.start : span.end]
        language = self.retriever.language
        snippet = make_snippet(passage, text, language=language, more_terms=added_terms)

        path = tuple(segment.placements.paths[rows[best]].tolist())
        # A build may name no topics at all.
        topics = [names[node] for names, node in zip(self.base.topics, path, strict=False)]
        return Hit(
            rank=rank,
            score=score,
            document_id=document.document_id,
            title=document.title,
            text=passage,
            start=span.start,
            end=span.end,
            section=section_at(document.text, span.start),
            snippet=snippet,
            marks=find_marks(snippet, text, language, added_terms),
            fields=document.fields,
            date=document.date,
            path=path,
            topics=tuple(topics),
            generation=self.generation.number,
        )

    def _passage_span(self, text: str, passage: int, passages: int) -> Span:
        """Return the span of a passage in the text of its document.

        It is the whole text if the document is not cut, or if the rules are unknown.

        Args:
            text: Text of the document.
            passage: Number of the passage, from 0.
            passages: Number of passages in the index.
        """
        whole_text = Span(0, len(text))
        if passages <= 1 or not self.generation.manifest["text"]:
            return whole_text
        spans = self.generation.text.passage_spans(text)
        return spans[passage] if len(spans) == passages else whole_text


def spread_runs(ids: Sequence[str], runs: int, length: int) -> list[str]:
    """Return some ids: runs of neighbours that are spread over all of them.

    >>> spread_runs("abcdefghij", runs=2, length=2)
    ['a', 'b', 'f', 'g']
    """
    step = max(length, len(ids) // runs)
    chosen: list[str] = []
    for start in range(0, len(ids), step)[:runs]:
        chosen.extend(ids[start : start + length])
    return chosen


def _open_current(live: Path, retriever: str, loaded: Mapping[int, LoadedSegment]) -> Searcher:
    """Load the current generation; again if it was replaced and deleted while it was being read."""
    store = GenerationStore(live, retriever)
    number = store.current_number()
    try:
        return Searcher(live, store.current(), loaded)
    except (FreshetError, FileNotFoundError):
        if store.current_number() == number:
            raise
        return _open_current(live, retriever, loaded)
