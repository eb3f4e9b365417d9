"""Search a generation, an immutable snapshot of the live index.

A `Searcher` opens the indexes of a generation once and then searches them in memory. It reads only
the folder of the live collection, never the artifacts of builds. So a build in progress does not
affect searches.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from freshet.results import Hit, SearchResult, TokenMatch
from model_code.collection.generations.boosts import add_boosts, require_boostable_fields
from model_code.collection.generations.generation import (
    Generation,
    known_overrides,
    removed_by_segment,
    tuned_weights,
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
from model_code.collection.segments.documents import document_from_row
from model_code.collection.segments.segment import (
    BaseSegment,
    LoadedSegment,
    SegmentView,
    open_segment,
)
from model_code.corpus.corpus_queries import drop_held_out
from model_code.errors import FreshetError
from model_code.retrieval.diversity import diversify, term_similarities
from model_code.retrieval.id_map import AllowedDocuments
from model_code.retrieval.indexed import RetrieverSegment, find_segment, require_segment
from model_code.retrieval.protocol import Ranking, Retriever, TypedQuery, top_k_ranking
from model_code.retrieval.relevance_floor import RelevanceFloor
from model_code.retrieval.typed_words import split_unfinished_word
from model_code.text.documents import EXPIRES, Document
from model_code.text.known_queries import KnownQuery, QuerySource, resolve_queries
from model_code.text.passages import Span, section_at
from model_code.text.query_syntax import ParsedQuery, fold_text, parse_query
from model_code.text.snippets import find_marks, make_snippet, require_queries
from model_code.text.terms import get_analyzer
from model_code.text.words import split_search_words

if TYPE_CHECKING:
    import numpy as np

    from model_code.collection.segments.conditions import FieldValue, Filters
    from model_code.collection.segments.field_index import FieldIndex
    from model_code.collection.segments.filters import CollectionFields
    from model_code.retrieval.bm25_index import Bm25Index
    from model_code.retrieval.reranker import Reranker

# Largest number of values that a facet returns, the most frequent ones.
MAX_FACET_VALUES = 20
# The relevance floor is learned from random queries, made of words of 8 x 32 documents. The
# documents are read in runs of neighbours, which is faster than reading them one by one.
FLOOR_RUNS = 8
FLOOR_RUN_LENGTH = 32
# Number of characters of a document that are the query when similar documents are searched.
MAX_LIKE_CHARACTERS = 1000
MILLISECONDS = 1000.0
# Name of the reranker's score in an explanation.
RERANKER = "reranker"


class Searcher:
    """Searches one generation, a snapshot of the index that consists of segments.

    Indexes and hierarchy are in memory. Texts are read from the disk. Data that only some searches
    need, such as the index of fields, is opened by the first such search.

    A searcher always searches the same generation. `renewed` returns a searcher of the current one.

    Attributes:
        live: Folder of the live collections of all retrievers.
        generation: The generation.
        base: Base segment, which holds the documents of the build.
        views: All segments of the generation with their removed documents, the base segment first.
        reranker: Model that reorders the best documents. None if the project has none.
    """

    def __init__(
        self, live: Path, generation: Generation, loaded: Mapping[int, LoadedSegment]
    ) -> None:
        """Open the segments of a generation.

        Args:
            live: Folder of the live collections of all retrievers.
            generation: Generation to search.
            loaded: Segments that are open already, by number. They are used again, unless their
                folders were deleted or replaced.

        Raises:
            Damaged: If a file is damaged.
            FingerprintMismatch: If another encoder made the vectors.
        """
        self.live = live
        self.generation = generation
        self.reranker: Reranker | None = None
        with verify_checksums_on_error(generation):
            open_segments: dict[int, LoadedSegment] = {}
            for number, segment in loaded.items():
                if segment.lock.is_valid():
                    open_segments[number] = segment

            base = open_segments.get(generation.base)
            if not isinstance(base, BaseSegment):
                folder = generation.sibling(generation.base)
                base = BaseSegment.open(folder, generation.fingerprint)
            self.base = base.with_weights(tuned_weights(generation))
            open_segments[generation.base] = self.base

            overrides = known_overrides(generation)
            views: list[SegmentView] = []
            for number, removed in removed_by_segment(generation).items():
                if number not in open_segments:
                    folder = generation.sibling(number)
                    open_segments[number] = open_segment(self.base, folder)
                view = SegmentView(open_segments[number], removed)
                views.append(view.with_known(overrides))
            self.views = tuple(views)

    @property
    def base_view(self) -> SegmentView:
        """View of the base segment: documents of the build that are live and unchanged.

        A document that was added or changed since the build is in a later view.
        """
        return self.views[0]

    @cached_property
    def retriever(self) -> Retriever:
        """Retriever that searches all segments together. It is created on first use."""
        segments = [view.searchable for view in self.views]
        return type(self.base.retriever).join_segments(segments)

    @classmethod
    def open(cls, live: Path, retriever: str | None = None) -> Searcher:
        """Open the current generation of a retriever.

        Args:
            live: Folder of the live collections of all retrievers.
            retriever: Name of the retriever. None means the default retriever.

        Raises:
            FreshetError: If the retriever is not live.
            FingerprintMismatch: If encoder, index and manifest do not belong together.
        """
        return _open_current(live, retriever or default_retriever(live), {})

    def renewed(self) -> Searcher:
        """Return a searcher of the current generation. It is this searcher if nothing changed.

        A new searcher uses the segments that are open already. Generations are compared by their
        manifests, not by their numbers, because numbers start from 0 again after a live collection
        was deleted.
        """
        store = GenerationStore(self.live, self.generation.retriever)
        if store.current() == self.generation:
            return self
        renewed = _open_current(self.live, self.generation.retriever, self.parts)
        renewed.reranker = self.reranker
        return renewed

    def ready(self) -> Self:
        """Create everything that a search needs, so that the first search is fast.

        The relevance floor is the fit below which a hit is probably no answer. Learning it encodes
        many queries. Afterwards, the encoder can release memory that single queries do not need.
        """
        had_floor = self.base.floor is not None
        _ = self.relevance_floor
        has_learned_floor = not had_floor and self.base.floor is not None
        dense = self.retriever.dense
        if has_learned_floor and dense is not None:
            dense.encoder.release_weights()
        return self

    @cached_property
    def relevance_floor(self) -> RelevanceFloor:
        """Relevance floor: the fit below which a hit is probably no answer.

        It is learned from random queries, once for the segment of the build. A collection of few
        documents has an empty floor, which later generations with more documents replace.
        """
        floor = self.base.floor
        if floor is None:
            documents = self.documents(self._spread_runs(FLOOR_RUNS, FLOOR_RUN_LENGTH))
            texts = [f"{document.title} {document.text}" for document in documents.values()]
            floor = RelevanceFloor.learn(self.retriever, texts)
            if floor.thresholds:
                self.base.floor = floor
        return floor

    @property
    def parts(self) -> dict[int, LoadedSegment]:
        """Open segments by number. They never change, so searchers and threads can share them."""
        return {view.segment.number: view.segment for view in self.views}

    def search(
        self, text: str, k: int = 10, filters: Filters = (), explain: bool = False
    ) -> list[Hit]:
        """Return the k best documents for a text, best first; see `search_batch`."""
        return self.search_batch([text], k, filters, explain)[0]

    def search_batch(
        self, texts: Sequence[str], k: int = 10, filters: Filters = (), explain: bool = False
    ) -> list[list[Hit]]:
        """Search for several texts at once, without query syntax and typo tolerance.

        See `search_pages` for a search with all options.
        """
        options = QueryOptions(
            k=k, filters=filters, explain=explain, syntax=False, typos=False, floor=False
        )
        return [page.hits for page in self.search_pages(texts, options)]

    def search_pages(self, texts: Sequence[str], options: QueryOptions) -> list[SearchResult]:
        """Search for several texts at once, which is faster than one by one.

        Args:
            texts: The query texts.
            options: Options of all queries.

        Returns:
            A page for each text, with fewer than k hits if fewer documents match.

        Raises:
            SettingsError: If a text is empty, or an option is malformed.
            FreshetError: If the options name a field that no document ever had.
        """
        require_queries(texts)
        with verify_checksums_on_error(self.generation):
            self._require_usable_fields(options)
            allowed = self.matching_documents(options.filters)
            if allowed is not None and not allowed:
                # No document meets the filters, so no text has to be encoded.
                no_values: dict[str, dict[str, int]] = {name: {} for name in options.facets}
                return [self._make_page([], 0, no_values) for _ in texts]

            parsed_queries = [self._parse(text, options) for text in texts]
            typed_queries: list[TypedQuery] = []
            for parsed, text in zip(parsed_queries, texts, strict=True):
                typed_queries.append(self._type_query(parsed, text, options))
            encoded_queries = self._encode(typed_queries, options)
            allowed_sets = [self._meeting(parsed, allowed) for parsed in parsed_queries]
            rankings = self._rank(encoded_queries, self._depth(options), allowed_sets)

            pages: list[SearchResult] = []
            for i, query in enumerate(typed_queries):
                allowed_by_query = allowed_sets[i]
                matching = self.document_count
                if allowed_by_query is not None:
                    matching = len(allowed_by_query)
                # The encoded queries are a batch, and so is a slice with one of them.
                encoded = encoded_queries[i : i + 1]
                page = self._answer(
                    self.retriever, query.text, encoded, rankings[i], matching, options
                )
                pages.append(page)
            return pages

    def search_like(self, document_id: str, options: QueryOptions) -> SearchResult:
        """Search for documents that are similar to a given document.

        The query is the title and the beginning of the text of the given document. This works with
        every kind of retriever. The given document is left out of the result.

        Args:
            document_id: Id of the given document.
            options: Options of the search. `syntax`, `typos` and `prefix` have no effect.

        Raises:
            FreshetError: If there is no live document with this id, or an option names a field that
                no document ever had.
        """
        with verify_checksums_on_error(self.generation):
            # `view_of` raises an error if no live document has this id.
            self.view_of(document_id)
            document = self.unexpired_documents([document_id]).get(document_id)
            if document is None:
                raise FreshetError(f"the document {document_id!r} has expired")
            text = f"{document.title}\n{document.text}".strip()[:MAX_LIKE_CHARACTERS]
            query = self.retriever.encode_queries([text])
            shown_text = document.title or text
            # The relevance floor is learned from queries, and does not apply to a whole document.
            unmarked = replace(options, floor=False)
            return self._search_encoded(self.retriever, query, shown_text, unmarked, document_id)

    def search_vector(self, vector: Sequence[float], options: QueryOptions) -> SearchResult:
        """Search for the documents whose passages are nearest to a vector.

        Args:
            vector: Vector (H,) of the encoder, of any norm above 0.
            options: Options of the search. `syntax`, `typos`, `prefix`, `floor` and `rerank` have
                no effect.

        Raises:
            SettingsError: If the vector has another dimension, is not finite, or is 0.
            FreshetError: If the retriever has no vectors.
        """
        dense = self.retriever.dense
        if dense is None:
            raise FreshetError(
                f"{self.generation.retriever} is a {self.base.kind} retriever, which has no "
                "vectors; search with a text, or with another retriever"
            )
        query = dense.normalize_query(vector)
        # A vector has no text that a reranker could read.
        without_text = replace(options, floor=False, rerank=False)
        with verify_checksums_on_error(self.generation):
            return self._search_encoded(dense, query, "", without_text)

    def _search_encoded(
        self,
        retriever: Retriever,
        query: Any,
        text: str,
        options: QueryOptions,
        excluded: str | None = None,
    ) -> SearchResult:
        """Search for one encoded query, and return the page of hits.

        Args:
            retriever: Retriever that encoded the query.
            query: The encoded query.
            text: Text whose words the snippets show.
            options: Options of the search.
            excluded: Id of a document to leave out of the result, or None.
        """
        self._require_usable_fields(options)
        allowed = self.matching_documents(options.filters)
        matching = self.document_count if allowed is None else len(allowed)
        depth = self._depth(options)
        searched_depth = depth
        if excluded is not None:
            # The excluded document may be in the ranking. So one more document is ranked, to fill
            # the page.
            searched_depth += 1
        ranking: Ranking = []
        if matching > 0:
            (ranking,) = retriever.search_and_rerank(query, searched_depth, allowed)
        if excluded is not None:
            others = [entry for entry in ranking if entry[0] != excluded]
            ranking = others[:depth]
            meets_filters = allowed is None or excluded in allowed
            if meets_filters:
                matching -= 1
        return self._answer(retriever, text, query, ranking, matching, options)

    def _require_usable_fields(self, options: QueryOptions) -> None:
        """Raise an error if an option names an unknown field, or a boost would have no effect."""
        if options.fields():
            self._fields.require_known(options.fields())
            require_boostable_fields(options.boosts, self._fields)

    def _parse(self, text: str, options: QueryOptions) -> ParsedQuery:
        """Split the text of a query into words to search and conditions, such as phrases.

        "-word" excludes a word. But if a document contains "-word" itself, it is probably the flag
        of a command, such as `-rf`. Then it is searched like any other word.
        """
        if not options.syntax:
            return ParsedQuery(text)
        parsed = parse_query(text)
        if options.prefix:
            parsed = self._complete_title(parsed, text)
        has_words_with_dash = any(condition.literal for condition in parsed.conditions)
        if not has_words_with_dash:
            return parsed
        flags = flags_among(
            parsed.conditions,
            self._live_documents,
            self.views,
            self._title_and_text_index,
            self.retriever.language,
        )
        return parse_query(text, flags)

    def _type_query(self, query: ParsedQuery, text: str, options: QueryOptions) -> TypedQuery:
        """Return a query in the form that retrievers search, with its last word completed.

        Args:
            query: The query, parsed.
            text: The query as the user typed it. If its last word is in quotes, it is finished.
            options: Options of the search.
        """
        # A quotation mark or an excluded word at the end finishes the last word to search.
        words = query.text.split()
        ends_with_last_word = len(words) > 0 and text.endswith(words[-1])
        is_unfinished = options.prefix and ends_with_last_word
        searched_text = query.text
        if is_unfinished:
            searched_text = self._complete(query.text)
        return TypedQuery(searched_text, query.text, is_unfinished, options.typos)

    def _complete_title(self, query: ParsedQuery, text: str) -> ParsedQuery:
        """Complete the word of a `title:` that a user is still typing, as in `title:riv`.

        Otherwise no document would meet the condition before the word is finished.

        Args:
            query: The query, parsed.
            text: The query as typed.
        """
        if not query.conditions:
            return query
        last = query.conditions[-1]
        is_unfinished = last.in_title and not last.is_exact and text.endswith(last.words)
        if not is_unfinished or last.is_excluded:
            return query
        completed = replace(last, words=self._complete(last.words))
        return replace(query, conditions=(*query.conditions[:-1], completed))

    def _complete(self, text: str) -> str:
        """Complete the last word of a text, if no document contains it.

        Encoders need complete words: the vector of the beginning of a word says little. The BM25
        index knows only stems, and returns the most frequent stem that begins like the last word.
        The complete word is read from the first document with this stem.

        Args:
            text: Text with an unfinished last word.

        Returns:
            The text with the completed word. The text itself if there is no completion.
        """
        index = self.retriever.keyword_index
        if index is None:
            return text
        unfinished = split_unfinished_word(text)
        analyzer = get_analyzer(index.language)
        is_complete = any(index.knows(term) for term in analyzer.whole_terms(unfinished.word))
        completions = index.complete(unfinished.word)
        if is_complete or not completions:
            return text
        stem = completions[0]
        document_id = index.first_document_with(stem)
        if document_id is None:
            return text

        document = self.documents([document_id])[document_id]
        document_text = f"{document.title} {document.text}"
        beginning = fold_text(unfinished.word)
        for start, end, terms in analyzer.locate(document_text):
            word = document_text[start:end]
            if stem in terms and fold_text(word).startswith(beginning):
                return unfinished.finished_text + word
        return text

    def _encode(self, queries: Sequence[TypedQuery], options: QueryOptions) -> Any:
        if options.typos or options.prefix:
            return self.retriever.encode_typed(queries)
        return self.retriever.encode_queries([query.text for query in queries])

    def _meeting(
        self, query: ParsedQuery, allowed: AllowedDocuments | None
    ) -> AllowedDocuments | None:
        """Return the documents that meet the conditions of a query, such as phrases.

        Args:
            query: The query, parsed.
            allowed: Documents that meet the filters. None means all documents.

        Returns:
            The documents. None means all documents.
        """
        if not query.conditions:
            return allowed
        documents = self._live_documents if allowed is None else allowed
        return documents_meeting(
            query.conditions,
            documents,
            self.views,
            self._title_and_text_index,
            self.retriever.language,
        )

    @property
    def _title_and_text_index(self) -> Bm25Index | None:
        """BM25 index of titles and texts. None without BM25, or if its passages lack titles."""
        has_titles = bool(self.generation.manifest["text"]) and self.generation.text.include_title
        if not has_titles:
            return None
        return self.retriever.keyword_index

    def _rank(
        self, queries: Any, depth: int, allowed_sets: Sequence[Collection[str] | None]
    ) -> list[Ranking]:
        """Return a ranking for each query.

        Queries that may find the same documents are searched together. Otherwise they are searched
        one by one.

        Args:
            queries: Encoded queries.
            depth: Number of documents in a ranking.
            allowed_sets: For each query, the documents that it may find. None means all documents.
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

    def matching(self, filters: Filters, waiting: FieldIndex | None = None) -> AllowedDocuments:
        """Return the documents that meet a filter, including expired documents.

        Args:
            filters: The filter.
            waiting: Fields of documents that are not searchable yet. The filter may name them.

        Raises:
            FreshetError: If the filter compares a field that no document ever had.
            SettingsError: If the filter is malformed.
        """
        fields = self._fields
        if waiting is not None:
            fields = fields.with_waiting(waiting)
        masks = fields.find(filters)
        return self._allow(masks[: len(self.views)])

    def expired_documents(self) -> Collection[str]:
        """Return the live documents whose field `expires` is a past date."""
        if not any(view.segment.may_expire for view in self.views):
            return ()
        now = datetime.now(UTC).isoformat()
        return self.matching({EXPIRES: {"<=": now}})

    def matching_documents(self, filters: Filters) -> AllowedDocuments | None:
        """Return the documents that meet a filter and are not expired.

        None means all documents, which retrievers search faster than a set of documents.

        Raises:
            FreshetError: If the filter compares a field that no document ever had.
            SettingsError: If the filter is malformed.
        """
        expired = self.expired_documents()
        if not filters and not expired:
            return None
        allowed = self.matching(filters)
        if not isinstance(expired, AllowedDocuments):
            return allowed
        return allowed.difference(expired)

    def _allow(self, masks: Sequence[np.ndarray]) -> AllowedDocuments:
        rows = [view.segment.rows for view in self.views]
        return AllowedDocuments(list(zip(rows, masks, strict=True)))

    def _depth(self, options: QueryOptions) -> int:
        """Return the number of documents that the retriever has to rank, including reranking."""
        if self.reranker is not None and options.rerank:
            return max(options.depth, self.reranker.depth)
        return options.depth

    def _rerank(
        self, reranker: Reranker, retriever: Retriever, text: str, query: Any, ranking: Ranking
    ) -> Ranking:
        """Rerank the best documents of a ranking.

        The reranker, a cross-encoder, reads the query together with the best passage of each
        document.

        Args:
            reranker: The reranker.
            retriever: Retriever that encoded the query.
            text: Text of the query.
            query: The encoded query.
            ranking: Ranking of the retriever.

        Returns:
            The first `reranker.depth` documents with the reranker's scores, best first.
        """
        document_ids = [document_id for document_id, _ in ranking[: reranker.depth]]
        documents = self.documents(document_ids)
        passages: list[str] = []
        for document_id in document_ids:
            document = documents[document_id]
            rows = self.view_of(document_id).segment.rows.rows_of([document_id])
            best = self._best_passage(retriever, query, document_id)
            span = self._passage_span(document.text, best, len(rows))
            passage = document.text[span.start : span.end]
            passages.append(f"{document.title}\n{passage}".strip())
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
        """Apply all options to a ranking, and return the page of hits.

        Args:
            retriever: Retriever that encoded the query and ranked the documents.
            text: Text of the query. Empty if the query is a vector.
            query: The encoded query.
            ranking: The best documents, as many as `_depth` asks for.
            matching: Number of documents that meet the filters.
            options: Options of the search.
        """
        reranker = self.reranker if options.rerank else None
        rerank_ms = None
        contributions: dict[str, list[TokenMatch]] = {}
        if reranker is not None:
            started = time.perf_counter()
            ranking = self._rerank(reranker, retriever, text, query, ranking)
            rerank_ms = round((time.perf_counter() - started) * MILLISECONDS, 3)
        # Reranked hits show the scores of the reranker. So the limit is compared with those scores.
        if options.min_score is not None:
            ranking = [entry for entry in ranking if entry[1] >= options.min_score]

        # The total is the number of documents that a user could page through. If the ranking is
        # shorter than asked for, it has all documents that the retriever finds.
        is_complete = reranker is not None or len(ranking) < self._depth(options)
        total = len(ranking) if is_complete else matching
        if reranker is not None:
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
        # If the user sorts by fields, that order stays.
        if options.diversity > 0 and not options.sort:
            ranking = self._diversify(ranking, options.diversity)
        if options.reorders:
            # Only documents of the window were reordered, so there are no pages beyond them.
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
        """Add boosts to the scores of a ranking, and sort it again.

        Args:
            ranking: Documents with scores.
            options: Options of the search.
            contributions: Parts of each document's score, by document id. The boosts are appended
                to them, for the explanation.
        """
        document_ids = [document_id for document_id, _ in ranking]
        scores = [score for _, score in ranking]
        values = [self.field_values_of(boost.field, document_ids) for boost in options.boosts]
        additions = add_boosts(options.boosts, scores, values)

        boosted: Ranking = []
        for i, document_id in enumerate(document_ids):
            score_before = TokenMatch(self.generation.retriever, scores[i])
            score_parts = contributions.setdefault(document_id, [score_before])
            amounts = [addition[i] for addition in additions]
            for boost, amount in zip(options.boosts, amounts, strict=True):
                score_parts.append(TokenMatch(f"boost {boost.field}", amount))
            boosted.append((document_id, scores[i] + sum(amounts)))
        boosted.sort(key=lambda entry: (-entry[1], entry[0]))
        return boosted

    def _diversify(self, ranking: Ranking, diversity: float) -> Ranking:
        """Move documents down that are similar to documents above them.

        Similarity is computed from vectors, or from common terms if the retriever has no vectors.

        Args:
            ranking: Documents with scores.
            diversity: How far they move, from 0 to 1.
        """
        document_ids = [document_id for document_id, _ in ranking]
        if not document_ids:
            return ranking
        dense = self.retriever.dense
        if dense is not None:
            similarities = dense.vectors_of(document_ids).similarities()
        else:
            documents = self.documents(document_ids)
            analyzer = get_analyzer(self.retriever.language)
            term_sets: list[frozenset[str]] = []
            for document_id in document_ids:
                document = documents[document_id]
                terms = analyzer.analyze(f"{document.title} {document.text}")
                term_sets.append(frozenset(terms))
            similarities = term_similarities(term_sets)
        return diversify(ranking, similarities, diversity)

    def field_values_of(
        self, field: str, document_ids: Sequence[str]
    ) -> list[Sequence[FieldValue]]:
        """Return the values of a field for each given document, in the order of the documents."""
        positions_by_segment: dict[LoadedSegment, list[int]] = {}
        for position, document_id in enumerate(document_ids):
            segment = self.view_of(document_id).segment
            positions_by_segment.setdefault(segment, []).append(position)

        values: list[Sequence[FieldValue]] = [()] * len(document_ids)
        for segment, positions in positions_by_segment.items():
            ids = [document_ids[position] for position in positions]
            found_values = segment.values_of(field, ids)
            for position, found in zip(positions, found_values, strict=True):
                values[position] = found
        return values

    @cached_property
    def document_count(self) -> int:
        """Number of live documents, including expired ones."""
        return sum(view.documents for view in self.views)

    @property
    def can_explain(self) -> bool:
        """Whether the retriever can explain the parts that a score consists of."""
        return self.retriever.can_explain

    def view_of(self, document_id: str) -> SegmentView:
        """Return the segment that holds a live document.

        Only one segment has the document as a live one. It is removed from all others.

        Raises:
            FreshetError: If there is no live document with this id.
        """
        return require_segment(self.views, document_id)

    def find_view(self, document_id: str) -> SegmentView | None:
        """Return the segment that holds a live document, or None if there is no such document."""
        return find_segment(self.views, document_id)

    @cached_property
    def _fields(self) -> CollectionFields:
        """Fields of all live documents, to which filters are applied."""
        # The import is inside because it takes time and most searches have no filter.
        from model_code.collection.segments.filters import CollectionFields

        segments = [(view.segment.field_index, view.is_live) for view in self.views]
        return CollectionFields(segments, self.generation.manifest.get("known_fields", ()))

    @property
    def _live_documents(self) -> AllowedDocuments:
        """All live documents."""
        return self._allow([view.is_live for view in self.views])

    def field_values(self, limit: int) -> dict[str, dict[str, int]]:
        """Count the documents with each value of each field.

        Args:
            limit: Largest number of values per field. The most frequent values are returned.

        Returns:
            For each field, the number of documents by the text of the value.
        """
        from model_code.collection.segments.filters import commonest

        fields = self._fields
        unexpired = self.matching_documents(())
        if unexpired is not None:
            fields = fields.restricted_to([mask for _, mask in unexpired.segments])
        return {name: commonest(fields.count(name), limit) for name in fields.names()}

    def documents(self, document_ids: Collection[str]) -> dict[str, Document]:
        """Read live documents by their ids. Other ids are left out of the result."""
        documents: dict[str, Document] = {}
        for view in self.views:
            ids = [document_id for document_id in document_ids if document_id in view]
            if not ids:
                continue
            for document_id, row in view.segment.document_file.read(ids).items():
                documents[document_id] = document_from_row(row)
        return documents

    def unexpired_documents(self, document_ids: Collection[str]) -> dict[str, Document]:
        """Read live documents that have not expired. Other ids are left out of the result."""
        expired = self.expired_documents()
        return self.documents([name for name in document_ids if name not in expired])

    @cached_property
    def plain_retriever(self) -> Retriever:
        """Retriever that ignores known queries, which BM25 indexes as words of their documents.

        With these words, a known query finds its document in any case. So this retriever shows
        whether the document would be found without them.
        """
        return self.retriever.without_known_words()

    def segments_without(
        self, held_out: frozenset[str], with_feedback: bool = True
    ) -> list[RetrieverSegment]:
        """Return the segments without certain known queries, for an evaluation with these queries.

        This generation may be older than the judgements. So it can contain a query of the
        evaluation as a known query of a document, which would make the result too good.

        Args:
            held_out: Hashes of the queries to leave out; see `query_hash`.
            with_feedback: Whether feedback counts as evidence. A build has none, so a comparison
                with a build leaves it out.
        """
        segments: list[RetrieverSegment] = []
        for view in self.views:
            # Known queries that changed after indexing replace those that the segment itself has.
            overrides = dict(view.known)
            for document_id, evidence in view.known_queries():
                kept = drop_held_out(evidence, held_out)
                if not with_feedback:
                    kept = [query for query in kept if query.source != QuerySource.FEEDBACK]
                if len(kept) < len(evidence):
                    overrides[document_id] = kept
            segments.append(view.with_known(overrides).searchable)
        return segments

    def known_queries(self, document_ids: Collection[str] | None = None) -> list[KnownQuery]:
        """Return the known queries of live documents.

        Args:
            document_ids: Ids of the documents. None means all documents.

        Returns:
            One query for each document and normalised text, in the order of `resolve_queries`.
        """
        queries: list[KnownQuery] = []
        for view in self.views:
            for _, evidence in view.known_queries(document_ids):
                queries.extend(evidence)
        return resolve_queries(drop_held_out(queries, self.base.build_queries.held_out))

    def _spread_runs(self, runs: int, length: int) -> list[str]:
        """Return a sample of the live ids that consists of runs of neighbours.

        The runs start at documents that are evenly spread over the largest segment. So the ids of a
        million documents need not be listed.

        Args:
            runs: Number of runs.
            length: Number of ids in a run.
        """
        largest = max(self.views, key=lambda view: view.documents)
        sample: list[str] = []
        for first_id in largest.spread_ids(runs, length):
            sample.append(first_id)
            sample.extend(self.ids_after(first_id, length - 1))
        return sample

    def ids_after(self, after: str, limit: int) -> list[str]:
        """Return the first `limit` live document ids that are larger than `after`, ascending."""
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
        """Return the hits of a page, with snippets.

        Args:
            retriever: Retriever that encoded the query.
            text: Text of the query. Empty if the query is a vector.
            query: The encoded query.
            ranking: Documents of the page, with scores.
            options: Options of the search.
            contributions: Parts of each document's score that are known already, by document id:
                the score of the reranker or the retriever, then the boosts.
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
        """Mark the hits that fit the query so little that they are probably no answers.

        The limit, called relevance floor, is learned from random queries, which the collection
        hardly answers. If the query has no words, all hits are marked.
        """
        if not hits:
            return []
        is_below = [True] * len(hits)
        if split_search_words(text):
            (fits,) = self.retriever.fits(query, [[hit.document_id for hit in hits]])
            is_below = self.relevance_floor.is_below(fits, len(hits))
        return [replace(hit, below_floor=below) for hit, below in zip(hits, is_below, strict=True)]

    def _best_passage(self, retriever: Retriever, query: Any, document_id: str) -> int:
        """Return the number, from 0, of the passage of a document that fits a query best."""
        rows = self.view_of(document_id).segment.rows.rows_of([document_id])
        if len(rows) <= 1:
            return 0
        return retriever.best_passage_encoded(query, document_id)

    def _explain(
        self,
        retriever: Retriever,
        text: str,
        query: Any,
        document_ids: Sequence[str],
        contributions: Mapping[str, list[TokenMatch]],
    ) -> list[list[TokenMatch]]:
        """Return the parts of each document's score, in the order of `document_ids`.

        These are the parts that the retriever explains, or the score of the reranker, and then the
        boosts.

        Args:
            retriever: Retriever that encoded the query.
            text: Text of the query.
            query: The encoded query.
            document_ids: Ids of the documents to explain.
            contributions: Parts that are known already, by document id: the whole score of the
                reranker or the retriever, and then each boost. Empty if there is no reranker and no
                boost.
        """
        is_reranked = any(parts[0].token == RERANKER for parts in contributions.values())
        is_boosted_only = bool(contributions) and not retriever.can_explain
        if is_reranked or is_boosted_only:
            return [contributions[document_id] for document_id in document_ids]
        shares = retriever.explain_all(text, query, document_ids)
        for document_id, tokens in zip(document_ids, shares, strict=True):
            # `tokens` already has the parts of the retriever's score. The first contribution is
            # this whole score, so only the boosts after it are added.
            boost_parts = contributions.get(document_id, [])[1:]
            tokens.extend(boost_parts)
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
        """Return a hit that shows the best passage of a document.

        Args:
            rank: Rank of the hit, from 1.
            score: Score of the hit.
            document: The document.
            text: Text of the query.
            best: Number, from 0, of the passage that fits the query best.
            added_terms: Terms that were searched in place of words of the query, such as corrected
                typos. The snippet shows them, too.
        """
        segment = self.view_of(document.document_id).segment
        rows = segment.rows.rows_of([document.document_id])
        span = self._passage_span(document.text, best, len(rows))
        passage = document.text[span.start : span.end]
        language = self.retriever.language
        snippet = make_snippet(passage, text, language=language, more_terms=added_terms)

        path = tuple(segment.placements.paths[rows[best]].tolist())
        # `strict` is False because the list of topics is empty if the build did not name any.
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
        """Return where a passage starts and ends in the text of its document.

        The result is the whole text if the document has one passage, or if the rules by which it
        was cut are unknown.

        Args:
            text: Text of the document.
            passage: Number of the passage, from 0.
            passages: Number of passages that the index has of the document.
        """
        whole_text = Span(0, len(text))
        if passages <= 1 or not self.generation.manifest["text"]:
            return whole_text
        spans = self.generation.text.passage_spans(text)
        if len(spans) != passages:
            return whole_text
        return spans[passage]


def _open_current(live: Path, retriever: str, loaded: Mapping[int, LoadedSegment]) -> Searcher:
    """Open the current generation of a retriever.

    Another process may replace the current generation and delete its folder meanwhile. Then the new
    current generation is opened.
    """
    store = GenerationStore(live, retriever)
    number = store.current_number()
    try:
        return Searcher(live, store.current(), loaded)
    except (FreshetError, FileNotFoundError):
        if store.current_number() == number:
            raise
        return _open_current(live, retriever, loaded)
