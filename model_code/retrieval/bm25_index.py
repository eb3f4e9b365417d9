"""BM25 over passages, in segments that can be added, removed and merged.

A passage d scores for a query the sum over the query's terms t of

    idf(t) * f(t, d) / (f(t, d) + k1 * (1 - b + b * |d| / mean_length)),
    idf(t) = log(1 + (N - n_t + 0.5) / (n_t + 0.5)),

where f(t, d) is how often t occurs in d, |d| is the number of terms of d, and n_t of the N passages
contain t. k1 saturates repeated terms, and b normalises by length. The formula is that of Robertson
and Zaragoza (2009), The Probabilistic Relevance Framework, with the idf of Lucene.

A known query is a query that a document is known to answer. Its words can count as words of all
passages of the document, with a weight u. If t occurs c times in the known queries of a document, u
* c is added to f(t, d). If the words count towards the length, u times the number of all terms of
these queries is added to |d|. n_t then includes passages that have t from a known query only. u is
a multiple of 1/4, so that all these sums are exact.

An index consists of segments: immutable postings of some documents. Segments store integers only.
N, n_t and the mean length are computed at query time, over the passages that are not removed. So
after any sequence of additions and removals, scores equal those of a rebuilt index bit for bit.

This is our own code because bm25s builds one index from all texts: it cannot add, remove or merge
documents. Posting lists in numpy do that and search as fast.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from model_code.files import canonical_json, hash_text
from model_code.retrieval.bm25_known import (
    KnownCounts,
    KnownPart,
    KnownWords,
    PairMatches,
    PairTerms,
    PairWithout,
    match_terms,
)
from model_code.retrieval.bm25_segment import FORMAT, Bm25Segment
from model_code.retrieval.bm25_weights import (
    MIN_COMMON_SHARE,
    TermWeights,
    WeightCache,
    inverse_document_frequency,
)
from model_code.retrieval.id_map import AllowedDocuments, IdMaps
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.protocol import Ranking, Retriever, TokenMatch, TypedQuery
from model_code.retrieval.typed_words import (
    completed_stems,
    corrected_stem,
    split_unfinished_word,
)
from model_code.text.known_queries import MIN_DUPLICATE_JACCARD
from model_code.text.terms import get_analyzer
from model_code.text.words import split_search_words

if TYPE_CHECKING:
    from scipy import sparse

DEFAULT_SETTINGS = Bm25Settings()
# Unicode's last character: all terms that begin with a prefix sort before prefix + LAST_CHARACTER.
LAST_CHARACTER = "\U0010ffff"
# Number of completions of an unfinished word that an explanation names.
MAX_NAMED_COMPLETIONS = 3
# Lower limit of the highest score of a query, which is a divisor. Without a match it is 0.
MIN_HIGHEST_SCORE = 1e-9
# Weight of the completions of a typed last word that is itself a term of the index.
FINISHED_WORD_FACTOR = 0.5

# Size of the cached weights of terms, in bytes per passage of the index. The weights of a common
# term take 8 bytes per passage, and those of other terms 12 for each passage that contains the
# term. So there is room for the common terms and for hundreds of others.
MAX_CACHED_BYTES_PER_PASSAGE = 256

# Size in bytes up to which a small index caches the weights of the terms that were searched. A
# quarter of it did not suffice for the terms of 400 queries over 21,000 passages, so that a search
# took 1.6 times as long.
MIN_CACHED_BYTES = 2**24

# Largest number of postings of a term whose weights are computed together with those of others.
# The postings of all these terms are sorted, which takes longer than to compute a term with more
# postings alone.
MAX_LOADED_POSTINGS = 1024

# Number of scores, over all queries of a call, up to which queries keep them (512 MiB). A search,
# the scores of candidates and the best passage need the same scores. An evaluation of thousands of
# queries over a large index would fill the memory with them, so it computes them again.
MAX_KEPT_SCORES = 2**27


@dataclass(frozen=True, eq=False)
class Bm25Query:
    """An encoded query: its terms, and a cache of the scores that indexes computed for it.

    Attributes:
        terms: How often each term occurs in the query.
        completions: Terms that may complete an unfinished last word. They are scored together as
            one term, like synonyms.
        completion_weight: Factor of the weight of the completions.
        corrections: The terms among `terms` that replace a mistyped word.
        scores: Cached passage scores by `id()` of the index, each of shape (n,), float32.
    """

    terms: Counter[str]
    completions: tuple[str, ...] = ()
    completion_weight: float = 1.0
    corrections: frozenset[str] = frozenset()
    scores: dict[int, np.ndarray] = field(default_factory=dict)


class _Statistics(NamedTuple):
    """Statistics of the passages that are not removed, over all segments.

    Attributes:
        length_norms: k1 * (1 - b + b * |d| / mean_length) of each passage, shape (n,).
        mean_length: Mean number of terms of a passage.
        passages: Number of passages that are not removed.
        is_live: Mask of the passages that are not removed, shape (n,). None if no passage is
            removed.
        total_length: Sum of the lengths of the passages that are not removed.
    """

    length_norms: np.ndarray
    mean_length: float
    passages: int
    is_live: np.ndarray | None
    total_length: float


class _Postings(NamedTuple):
    """The passages that contain a term.

    Attributes:
        rows: Passages, counted through all segments, shape (p,).
        frequencies: Occurrences of the term in each of them, shape (p,).
    """

    rows: np.ndarray
    frequencies: np.ndarray


class Bm25Index(Retriever[list[Bm25Query]]):
    """BM25 over several segments without their removed documents.

    A document is ranked by its best passage. Documents that share no term with the query are left
    out.

    >>> texts = ["the cat sat", "dogs ran away", "a cat and a cat"]
    >>> index = Bm25Index.build(texts, ["a", "b", "c"])
    >>> [document for document, _ in index.search(["cats"], k=3)[0]]
    ['c', 'a']
    """

    can_explain = True

    def __init__(
        self,
        segments: Sequence[tuple[Bm25Segment, frozenset[str]]],
        settings: Bm25Settings = DEFAULT_SETTINGS,
        reference: Bm25Index | None = None,
        words: KnownWords | None = None,
        known: Sequence[KnownPart] = (),
    ) -> None:
        """Search segments together.

        Args:
            segments: Segments, each with the ids of its removed documents. A document that is not
                removed may be in one segment only.
            settings: Parameters of the formula, and the language.
            reference: Index whose statistics (N, n_t and mean length) are used instead of those of
                the segments. With it, the score of a document does not depend on the documents that
                were added with it or after it.
            words: How known queries count as words; None ignores them.
            known: Known queries of the documents, by segment.
        """
        self.segments = [segment for segment, _ in segments]
        self.ids = IdMaps([(segment.ids, removed) for segment, removed in segments])
        self.settings = settings
        self.words = words
        self.known = known
        self.language = settings.language
        self.fingerprint = fingerprint_of(settings, words)
        self.reference = reference
        max_cached_bytes = MAX_CACHED_BYTES_PER_PASSAGE * len(self.ids)
        self._usual_cache_bytes = max(MIN_CACHED_BYTES, max_cached_bytes)
        self._cached_weights = WeightCache(self._usual_cache_bytes)
        # Cache of `count_passages`: by term, the number of passages that contain it.
        self._passage_counts: dict[str, int] = {}

    @classmethod
    def build(
        cls,
        texts: Sequence[str],
        document_ids: Sequence[str],
        settings: Bm25Settings = DEFAULT_SETTINGS,
    ) -> Bm25Index:
        """Index passages in one segment.

        Args:
            texts: The passages.
            document_ids: Document of each passage.
            settings: Parameters of the formula, and the language.
        """
        segment = Bm25Segment.build(texts, document_ids, settings.language)
        return cls([(segment, frozenset())], settings)

    @cached_property
    def _known_counts(self) -> KnownCounts | None:
        """How often known queries add each term to each passage; None if no known query counts."""
        if self.words is None or not self.words.weight:
            return None
        counts = KnownCounts(self.known, self.ids)
        return counts if counts.parts else None

    @cached_property
    def _lengths(self) -> np.ndarray:
        """Length of each passage (n,), with its known queries if they count towards it."""
        lengths = np.concatenate([segment.lengths for segment in self.segments])
        if self._known_counts is None or self.words is None or not self.words.in_length:
            return lengths
        return lengths + self.words.weight * self._known_counts.lengths()

    @cached_property
    def _statistics(self) -> _Statistics:
        """Statistics of the passages that are not removed, or those of the reference index."""
        lengths = self._lengths
        live_lengths = lengths
        is_live = None
        removed_rows = self.ids.removed_rows
        if len(removed_rows):
            is_live = np.ones(len(lengths), bool)
            is_live[removed_rows] = False
            live_lengths = lengths[is_live]

        total_length = float(live_lengths.sum(dtype=np.float64))
        if self.reference is None:
            mean_length = max(1.0, total_length) / max(1, len(live_lengths))
            passages = len(live_lengths)
        else:
            mean_length = self.reference._statistics.mean_length
            passages = self.reference._statistics.passages
        length_norms = self._length_norms(lengths, mean_length)
        return _Statistics(length_norms, mean_length, passages, is_live, total_length)

    def _length_norms(self, lengths: np.ndarray, mean_length: float) -> np.ndarray:
        """Return the summand of BM25's denominator that grows with the length, for lengths (n,)."""
        k1 = self.settings.k1
        b = self.settings.b
        return k1 * (1 - b + b * lengths / mean_length)

    def encode_queries(self, texts: Sequence[str]) -> list[Bm25Query]:
        """Return query texts as counts of their terms, which are stemmed words."""
        analyzer = get_analyzer(self.settings.language)
        return [Bm25Query(Counter(analyzer.analyze(text))) for text in texts]

    def encode_typed(self, queries: Sequence[TypedQuery]) -> list[Bm25Query]:
        """Count the terms of queries as people type them.

        A word that the index does not know is replaced by a known term that one edit makes of it,
        if there is one. An unfinished last word is completed.
        """
        return [self._encode_typed(query) for query in queries]

    def _encode_typed(self, query: TypedQuery) -> Bm25Query:
        """Complete the last word of one query, correct unknown words, and count its terms.

        See `encode_typed` for the rules.
        """
        analyzer = get_analyzer(self.settings.language)
        finished_text = query.words
        unfinished_word = ""
        completions: list[str] = []
        if query.is_unfinished:
            split = split_unfinished_word(query.words)
            completions = self.complete(split.word)
            if completions:
                # The index has words that begin with the last word. So it is looked up by them, and
                # only the words before it as they are.
                finished_text = split.finished_text
                unfinished_word = split.word

        terms = Counter(analyzer.analyze(finished_text))
        completion_weight = 1.0
        if completions:
            typed_terms = analyzer.analyze(unfinished_word)
            known_terms = [term for term in typed_terms if self.knows(term)]
            if known_terms:
                # The index knows the typed word, so the word is probably finished. It counts more
                # than longer words that begin with it.
                terms.update(known_terms)
                completion_weight = FINISHED_WORD_FACTOR
            completions = [term for term in completions if term not in terms]

        corrections: frozenset[str] = frozenset()
        if query.corrects_typos:
            corrections = self._correct_typos(terms, finished_text)
        return Bm25Query(terms, tuple(completions), completion_weight, corrections)

    def _correct_typos(self, terms: Counter[str], text: str) -> frozenset[str]:
        """Replace the terms of words that the index does not know by those of similar known words.

        Args:
            terms: How often each term occurs in the query. It is changed.
            text: The words of the query that are finished.

        Returns:
            The terms that replaced others.
        """
        analyzer = get_analyzer(self.settings.language)
        corrections = set()
        for word in split_search_words(text):
            word_terms = analyzer.analyze(word)
            if any(self.knows(term) for term in word_terms):
                continue
            correction = corrected_stem(word, analyzer, self.document_frequency)
            if correction is not None:
                for term in word_terms:
                    del terms[term]
                terms[correction] += 1
                corrections.add(correction)
        return frozenset(corrections)

    def added_terms(self, queries: list[Bm25Query]) -> frozenset[str]:
        """Return the terms that replaced mistyped or unfinished words of the queries."""
        terms: set[str] = set()
        for query in queries:
            terms.update(query.corrections)
            terms.update(query.completions)
        return frozenset(terms)

    def complete(self, word: str) -> list[str]:
        """Return the terms of words that begin with an unfinished word, most frequent first."""
        if not word:
            return []
        analyzer = get_analyzer(self.settings.language)
        return completed_stems(word, analyzer, self._terms_with_prefix, self.document_frequency)

    def knows(self, term: str) -> bool:
        """Return whether any passage contains a term, in its text or from a known query."""
        if self._known_counts is None:
            return self.document_frequency(term) > 0
        return len(self._live_postings(term).rows) > 0

    def document_frequency(self, term: str) -> int:
        """Return the number of passages, without removed ones, whose texts contain a term."""
        frequency = 0
        for segment, frequencies in zip(
            self.segments, self._live_document_frequencies, strict=True
        ):
            number = segment.term_numbers.get(term)
            if number is not None:
                frequency += int(frequencies[number])
        return frequency

    def _terms_with_prefix(self, prefix: str) -> dict[str, int]:
        """Return the terms that begin with a text, each with its number of passages."""
        frequencies: dict[str, int] = {}
        for segment, segment_frequencies in zip(
            self.segments, self._live_document_frequencies, strict=True
        ):
            # The vocabulary is sorted, so the terms with the prefix are adjacent.
            start = bisect_left(segment.vocabulary, prefix)
            end = bisect_left(segment.vocabulary, prefix + LAST_CHARACTER)
            for number in range(start, end):
                frequency = int(segment_frequencies[number])
                if frequency:
                    term = segment.vocabulary[number]
                    frequencies[term] = frequencies.get(term, 0) + frequency
        return frequencies

    @cached_property
    def _live_document_frequencies(self) -> list[np.ndarray]:
        """Per segment, the number of passages that contain each term, shape (T,).

        Removed passages are not counted.
        """
        is_live = self._statistics.is_live
        frequencies = []
        for segment, first_row in zip(self.segments, self.ids.first_rows, strict=False):
            if is_live is None:
                frequencies.append(np.diff(segment.starts))
                continue
            # Entry p is the number of live postings among the first p postings of the segment.
            live_before = np.zeros(len(segment.rows) + 1, np.int64)
            np.cumsum(is_live[segment.rows + first_row], out=live_before[1:])
            frequencies.append(np.diff(live_before[segment.starts]))
        return frequencies

    @property
    def keyword_index(self) -> Bm25Index:
        """This index itself: the interface of retrievers asks each for its BM25 index."""
        return self

    def first_document_with(self, term: str) -> str | None:
        """Return the first document that contains a term; None if there is none."""
        rows = self._live_postings(term).rows
        return self.ids.document_ids[int(rows[0])] if len(rows) else None

    def documents_with(self, terms: Collection[str]) -> AllowedDocuments:
        """Return the documents that contain all of the given terms, in any of their passages.

        Without terms there is no such document.
        """
        selections = [self.ids.documents_at(self._live_postings(term).rows) for term in terms]
        if not selections:
            return self.ids.documents_at(np.empty(0, np.intp))
        return reduce(AllowedDocuments.intersection, selections)

    def search_encoded(
        self, queries: list[Bm25Query], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Return the k best documents that share a term with each query, best first.

        Raises:
            FreshetError: If a document in `allowed` is not in the index.
        """
        allowed_rows = None if allowed is None else self.ids.allowed_rows(allowed)
        rankings = []
        for query in queries:
            scores = self._scores(query, len(queries))
            rows = None
            if allowed_rows is not None:
                if allowed_rows.count > MIN_COMMON_SHARE * len(scores):
                    # Documents with a score of 0 are not found. Among many allowed rows, setting
                    # the other scores to 0 is faster than copying the allowed ones.
                    scores = scores * allowed_rows.mask
                else:
                    rows = allowed_rows.rows
                    scores = scores[rows]
            rankings.append(self.ids.best_documents(scores, k, rows))
        return rankings

    def score_encoded(
        self, queries: list[Bm25Query], candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """Score the candidates of each query; 0 for those that share no term with it.

        Raises:
            FreshetError: If a candidate is not in the index.
        """
        scores = []
        for query, documents in zip(queries, candidates, strict=True):
            groups = self.ids.group_rows(documents)
            passage_scores = self._scores(query, len(queries))[groups.rows]
            scores.append(groups.max_scores(passage_scores).astype(np.float64))
        return scores

    def score_rows(self, query: Bm25Query) -> np.ndarray:
        """Return the score of every passage for a query, shape (n,), float32, by row."""
        return self._scores(query)

    def fits(
        self, queries: list[Bm25Query], candidates: Sequence[Sequence[str]]
    ) -> list[dict[str, np.ndarray]]:
        """Return each candidate's score as a share of the query's highest possible score.

        The term-frequency factor of BM25 is below 1, so no score exceeds the sum of the idf of the
        query's terms. A term that no document contains counts with the idf of 0 passages.
        """
        fits = []
        for query, scores in zip(queries, self.score_encoded(queries, candidates), strict=True):
            highest_score = max(self._highest_score(query), MIN_HIGHEST_SCORE)
            fits.append({"": scores / highest_score})
        return fits

    def _highest_score(self, query: Bm25Query) -> float:
        """Return an upper limit of all scores for a query: the sum of the idf of its terms."""
        passages = self._statistics.passages
        highest = 0.0
        for term, count in query.terms.items():
            containing = len(self._live_postings(term).rows)
            highest += count * inverse_document_frequency(containing, passages)
        if query.completions:
            containing = len(self._joint_postings(query.completions).rows)
            rarity = inverse_document_frequency(containing, passages)
            highest += query.completion_weight * rarity
        return highest

    def without_known_words(self) -> Bm25Index:
        """Return the same index without known queries; this index if no known query counts."""
        if self._known_counts is None:
            return self
        removed = [removed for _, removed in self.ids.maps]
        segments = list(zip(self.segments, removed, strict=True))
        return Bm25Index(segments, self.settings, self.reference)

    def best_passage_encoded(self, query: list[Bm25Query], document_id: str) -> int:
        """Return the number of the document's passage that scores best; the first if several do."""
        rows = self.ids.rows_of([document_id])
        return int(np.argmax(self._scores(query[0])[rows]))

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Return the contribution of each term to a document's score, the largest first.

        The score is that of the document's best passage.
        """
        return self.explain_all(text, self.encode_queries([text]), [document_id])[0]

    def explain_all(
        self, text: str, query: list[Bm25Query], document_ids: Sequence[str]
    ) -> list[list[TokenMatch]]:
        """Return for each document what every query term adds to its score; see `explain`."""
        (encoded,) = query
        # Find the row of each document's best passage, whose score is explained.
        best_rows = []
        for document_id in document_ids:
            best_passage = self.best_passage_encoded(query, document_id)
            best_rows.append(int(self.ids.rows_of([document_id])[best_passage]))

        # If a passage has a term in this index and not in the plain one, the term comes from a
        # known query.
        plain_index = self.without_known_words()
        explanations: list[list[TokenMatch]] = [[] for _ in document_ids]
        for term, count in encoded.terms.items():
            term_query = Bm25Query(Counter({term: count}))
            weights = self._sum_weights(term_query)
            plain_weights = weights
            if plain_index is not self:
                plain_weights = plain_index._sum_weights(term_query)
            is_corrected = term in encoded.corrections
            for matches, row in zip(explanations, best_rows, strict=True):
                if weights[row]:
                    is_known = not plain_weights[row]
                    weight = float(weights[row])
                    matches.append(TokenMatch(term, weight, is_corrected, is_known))

        if encoded.completions:
            # The words that may complete the last word count as one term, so they get one line.
            completions_only = replace(encoded, terms=Counter(), scores={})
            weights = self._sum_weights(completions_only)
            name = " or ".join(encoded.completions[:MAX_NAMED_COMPLETIONS])
            for matches, row in zip(explanations, best_rows, strict=True):
                if weights[row]:
                    matches.append(TokenMatch(name, float(weights[row]), expanded=True))

        for matches in explanations:
            matches.sort(key=lambda match: (-match.weight, match.token))
        return explanations

    def score_pairs_without(
        self, queries: Sequence[Bm25Query], document_ids: Sequence[str]
    ) -> np.ndarray:
        """Score one document for each query as if the query were not a known query of the document.

        Otherwise a document that is known to answer a query would match its own copy of the query,
        and an evaluation would be too optimistic. Known queries of the document that nearly equal
        the query are ignored as well. Known queries of other documents still count.

        Args:
            queries: The n encoded queries.
            document_ids: The document to score for each query.

        Returns:
            The score of each document's best passage, (n,), float64; 0 if no term is shared.

        Raises:
            FreshetError: If a document is not in the index.
        """
        scores = np.zeros(len(queries))
        pairs: list[PairWithout] = []
        for number, (query, document_id) in enumerate(zip(queries, document_ids, strict=True)):
            known_terms, ignored_terms = self._count_known_terms(query.terms, document_id)
            if ignored_terms:
                pairs.append(
                    PairWithout(number, query.terms, document_id, known_terms, ignored_terms)
                )
            else:
                # The document has no known query that nearly equals this query, so its usual score
                # is right.
                scores[number] = self.score_encoded([query], [[document_id]])[0][0]
        if pairs:
            numbers = [pair.number for pair in pairs]
            scores[numbers] = self._score_ignoring_queries(pairs)
        return scores

    def _count_known_terms(
        self, terms: Counter[str], document_id: str
    ) -> tuple[Counter[str], Counter[str]]:
        """Count the terms of a document's known queries, and of those that nearly equal a query.

        Two queries nearly equal if their Jaccard similarity is at least `MIN_DUPLICATE_JACCARD`.

        Args:
            terms: How often each term occurs in the query.
            document_id: Id of the document.

        Returns:
            The counts of all known queries, and the counts of those that nearly equal the query.
        """
        all_counts: Counter[str] = Counter()
        duplicate_counts: Counter[str] = Counter()
        if self._known_counts is None:
            return all_counts, duplicate_counts
        for known, rows in self._known_counts.queries_of(document_id):
            for row in rows.tolist():
                known_terms = known.count_terms(row)
                all_counts.update(known_terms)
                shared = len(known_terms.keys() & terms.keys())
                union = len(terms) + len(known_terms) - shared
                if shared >= MIN_DUPLICATE_JACCARD * max(union, 1):
                    duplicate_counts.update(known_terms)
        return all_counts, duplicate_counts

    def _score_ignoring_queries(self, pairs: Sequence[PairWithout]) -> np.ndarray:
        """Score documents as if some of their known queries did not exist.

        Each statistic of BM25 that these known queries change is computed without them. All n pairs
        are scored together, which is faster. Passages and terms are numbered through all pairs.

        Args:
            pairs: The queries and documents. Each query has a term.

        Returns:
            Scores (n,), float32.
        """
        # The passages of the first pair's document, then those of the second one's, and so on.
        rows_of_pairs = [self.ids.rows_of([pair.document_id]) for pair in pairs]
        passage_rows = np.concatenate(rows_of_pairs)
        passage_counts = np.array([len(rows) for rows in rows_of_pairs])
        length_norms = self._length_norms_ignoring(pairs, passage_rows, passage_counts)

        terms = PairTerms.collect(pairs)
        matches = match_terms(pairs, passage_counts)
        frequencies, is_lost = self._frequencies_ignoring(terms, matches, passage_rows)
        idf = self._idf_ignoring(terms, matches, is_lost)

        # Sum the formula of BM25 over the terms of each passage, in the order of the query.
        has_term = frequencies > 0
        remaining = frequencies[has_term]
        scored_passages = matches.passage_numbers[has_term]
        saturated = remaining / (remaining + length_norms[scored_passages])
        factors = (terms.query_counts * idf)[matches.term_numbers]
        weights = factors[has_term] * saturated
        scores = np.bincount(scored_passages, weights, len(passage_rows)).astype(np.float32)
        first_passages = np.cumsum(passage_counts) - passage_counts
        return np.maximum.reduceat(scores, first_passages)

    def _frequencies_ignoring(
        self, terms: PairTerms, matches: PairMatches, passage_rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how often passages have terms as if some known queries did not exist.

        Args:
            terms: The query terms of all pairs, with the counts of the known queries to ignore.
            matches: The m pairs of a term and a passage.
            passage_rows: Row of each passage that `matches` numbers.

        Returns:
            Frequencies (m,), float64. A mask (m,) of the matches whose passage has the term only
            from the known queries to ignore.
        """
        assert self.words is not None
        weight = self.words.weight
        matched_terms = [terms.terms[number] for number in matches.term_numbers.tolist()]
        rows = passage_rows[matches.passage_numbers]

        # Count with all known queries first, then without the ones to ignore.
        frequencies = self._text_frequencies(matched_terms, rows)
        frequencies += weight * terms.known_counts[matches.term_numbers]
        had_term = frequencies > 0
        ignored_frequencies = weight * terms.ignored_counts[matches.term_numbers]
        frequencies[had_term] -= ignored_frequencies[had_term]
        is_lost = had_term & ~(frequencies > 0)
        return frequencies, is_lost

    def _idf_ignoring(
        self, terms: PairTerms, matches: PairMatches, is_lost: np.ndarray
    ) -> np.ndarray:
        """Return the idf (t,) of each term as if some known queries did not exist.

        Args:
            terms: The t query terms of all pairs.
            matches: The m pairs of a term and a passage.
            is_lost: Mask (m,) of the matches whose passage has the term only from the known queries
                to ignore. So these passages do not contain the term any more.
        """
        if self.reference is None:
            lost = np.add.reduceat(is_lost.astype(np.int64), matches.first_matches)
            containing = np.array(self.count_passages(terms.terms)) - lost
        else:
            containing = np.array(self.reference.count_passages(terms.terms))
        passages = self._statistics.passages
        idf = [inverse_document_frequency(count, passages) for count in containing.tolist()]
        return np.array(idf)

    def _length_norms_ignoring(
        self, pairs: Sequence[PairWithout], rows: np.ndarray, passage_counts: np.ndarray
    ) -> np.ndarray:
        """Return the length norms (p,) of passages as if some known queries did not exist.

        Args:
            pairs: The n pairs, with the known queries to ignore.
            rows: Rows of the passages of the pairs' documents, one pair after the other, (p,).
            passage_counts: Number of passages of each pair's document, (n,).
        """
        assert self.words is not None
        statistics = self._statistics
        lengths = self._lengths[rows].astype(np.float64)
        total_lengths = np.full(len(pairs), statistics.total_length)
        if self.words.in_length:
            # A known query lengthens every passage of its document. Subtract the ignored ones
            # again.
            ignored_terms = np.array([pair.ignored_terms.total() for pair in pairs])
            ignored_lengths = self.words.weight * ignored_terms
            lengths -= np.repeat(ignored_lengths, passage_counts)
            total_lengths -= ignored_lengths * passage_counts

        if self.reference is None:
            mean_lengths = np.maximum(1.0, total_lengths) / max(1, statistics.passages)
        else:
            mean_lengths = np.full(len(pairs), statistics.mean_length)
        return self._length_norms(lengths, np.repeat(mean_lengths, passage_counts))

    def _text_frequencies(self, terms: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Return how often terms occur in the texts of passages, known queries left out.

        Args:
            terms: The k terms.
            rows: Row of the passage in which each term is counted, counted through all segments.

        Returns:
            Frequencies (k,), float64.
        """
        frequencies = np.zeros(len(rows))
        segment_numbers = np.searchsorted(self.ids.first_rows, rows, side="right") - 1
        for number, segment in enumerate(self.segments):
            selected = np.flatnonzero(segment_numbers == number)
            selected_terms = [terms[i] for i in selected.tolist()]
            local_rows = rows[selected] - self.ids.first_rows[number]
            frequencies[selected] = segment.term_frequencies(selected_terms, local_rows)
        return frequencies

    def scores(self, text: str) -> np.ndarray:
        """Score every passage for one query text.

        Returns:
            Scores of shape (n,), float32; 0 where no term is shared.
        """
        return self._scores(self.encode_queries([text])[0])

    def vocabulary(self) -> set[str]:
        """Return all terms of the passages and of the known queries that count as words."""
        terms: set[str] = set()
        for segment in self.segments:
            terms.update(segment.vocabulary)
        if self._known_counts is not None:
            for part in self._known_counts.parts:
                terms.update(part.known.queries.vocabulary)
        return terms

    def term_weights(self, terms: Sequence[str]) -> sparse.csr_matrix:
        """Return the contribution of each term to the score of each passage.

        Args:
            terms: T different terms.

        Returns:
            Contributions, shape (n, T), sparse.
        """
        from scipy import sparse

        columns, rows, weights = self._weights_of_postings(terms)
        shape = (len(self.ids), len(terms))
        return sparse.csr_matrix((weights, (rows, columns)), shape)

    def enlarge_cache(self, factor: int) -> None:
        """Make room for the cached weights of more terms, for searches of very many queries.

        Args:
            factor: Size of the new cache, as a multiple of the usual size.
        """
        self._cached_weights = WeightCache(factor * self._usual_cache_bytes)

    def load_terms(self, queries: Sequence[Bm25Query]) -> None:
        """Compute the weights of the terms of queries at once, and cache them.

        It does not change a score. Searches compute the weights of each term when it is needed,
        which takes longer for many queries with rare terms. Terms with many postings are left to
        the searches, because the postings of all terms are sorted here.
        """
        terms = {term for query in queries for term in query.terms}
        missing = sorted(term for term in terms if self._cached_weights.get(term) is None)
        if self.reference is not None:
            # The numbers of passages are cached, also for the terms that are not loaded here.
            self.reference.count_passages(missing)
        missing = [term for term in missing if self._count_postings(term) <= MAX_LOADED_POSTINGS]
        columns, rows, weights = self._weights_of_postings(missing)
        # Position of each term's first posting, then the number of postings.
        starts = np.searchsorted(columns, np.arange(len(missing) + 1)).tolist()
        for number, term in enumerate(missing):
            postings = slice(starts[number], starts[number + 1])
            self._cached_weights.put(term, self._pack_weights(rows[postings], weights[postings]))

    def _count_postings(self, term: str) -> int:
        """Return the number of passages whose texts contain a term, with removed passages."""
        count = 0
        for segment in self.segments:
            postings = segment.postings(term)
            count += postings.stop - postings.start
        return count

    def _weights_of_postings(
        self, terms: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the contributions of several different terms to the scores of passages.

        Returns:
            For each posting: the position of its term in `terms`, ascending, the row of its
            passage, ascending per term, and the contribution. Each has the shape (p,).
        """
        statistics = self._statistics
        keys, frequencies = self._postings_of_terms(terms)
        columns, rows = np.divmod(keys, max(1, len(self.ids)))
        if self.reference is None:
            containing = np.bincount(columns, minlength=len(terms)).tolist()
        else:
            containing = self.reference.count_passages(terms)
        idf = np.array([inverse_document_frequency(n, statistics.passages) for n in containing])
        weights = idf[columns] * (frequencies / (frequencies + statistics.length_norms[rows]))
        return columns, rows, weights

    def _postings_of_terms(self, terms: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the postings of several different terms, as `_live_postings` does for one.

        Returns:
            Key of each posting, ascending: (position of the term) * n + (row of the passage), for
            an index of n passages. Frequency of each posting, float64.
        """
        passages = max(1, len(self.ids))
        key_parts = [np.empty(0, np.int64)]
        frequency_parts = [np.empty(0)]
        is_live = self._statistics.is_live
        for segment, first_row in zip(self.segments, self.ids.first_rows, strict=False):
            postings, positions = segment.postings_of_terms(terms)
            rows = segment.rows[postings] + first_row
            is_counted = slice(None) if is_live is None else is_live[rows]
            key_parts.append((positions * passages + rows)[is_counted])
            frequency_parts.append(segment.frequencies[postings][is_counted])
        if self._known_counts is not None and self.words is not None:
            rows, positions, counts = self._known_counts.of_terms(terms)
            key_parts.append(positions * passages + rows)
            frequency_parts.append(self.words.weight * counts)

        # Add up equal keys: a passage may have a term in its text and in several known queries.
        keys, key_numbers = np.unique(np.concatenate(key_parts), return_inverse=True)
        frequencies = np.bincount(key_numbers, np.concatenate(frequency_parts), len(keys))
        return keys, frequencies

    def _scores(self, query: Bm25Query, query_count: int = 1) -> np.ndarray:
        """Return the score of every passage for a query, (n,).

        The query keeps the scores for the next call, unless all queries of the call would keep more
        than `MAX_KEPT_SCORES`.

        Args:
            query: The query.
            query_count: Number of queries of the call.
        """
        scores = query.scores.get(id(self))
        if scores is None:
            scores = self._sum_weights(query)
            if query_count * len(scores) <= MAX_KEPT_SCORES:
                query.scores[id(self)] = scores
        return scores

    def _sum_weights(self, query: Bm25Query) -> np.ndarray:
        """Sum the weights of a query's terms for every passage, shape (n,), float32.

        The sum is in float64. Common terms are added first, then rare terms, each in the order of
        the query. So rounding does not depend on how the passages are split into segments.
        """
        # Collect what each term adds to which passages; see `TermWeights`.
        weighted_terms = []
        for term, count in query.terms.items():
            rows, weights = self._term_weights(term)
            if count != 1:
                weights = count * weights
            weighted_terms.append((rows, weights))
        if query.completions:
            rows, weights = self._compute_weights(query.completions)
            weighted_terms.append((rows, query.completion_weight * weights))

        scores = np.zeros(len(self.ids))
        rare_rows = []
        rare_weights = []
        for rows, weights in weighted_terms:
            # A common term has a weight for every passage, and no rows.
            if rows is None:
                scores += weights
            else:
                rare_rows.append(rows)
                rare_weights.append(weights)

        if rare_rows:
            rows = np.concatenate(rare_rows)
            scores += np.bincount(rows, np.concatenate(rare_weights), len(self.ids))
        return scores.astype(np.float32)

    def _term_weights(self, term: str) -> TermWeights:
        """Return the weights of a term, from the cache if it has them."""
        weights = self._cached_weights.get(term)
        if weights is None:
            weights = self._compute_weights([term])
            self._cached_weights.put(term, weights)
        return weights

    def _compute_weights(self, terms: Sequence[str]) -> TermWeights:
        """Compute the weights of several terms that count as one term, like synonyms."""
        rows, frequencies = self._joint_postings(terms)
        statistics = self._statistics
        document_frequency = len(rows)
        if self.reference is not None and len(terms) == 1:
            (document_frequency,) = self.reference.count_passages(terms)
        elif self.reference is not None:
            document_frequency = len(self.reference._joint_postings(terms).rows)
        idf = inverse_document_frequency(document_frequency, statistics.passages)
        weights = idf * (frequencies / (frequencies + statistics.length_norms[rows]))
        return self._pack_weights(rows, weights)

    def _pack_weights(self, rows: np.ndarray, weights: np.ndarray) -> TermWeights:
        """Return the weights of a term in the form that is faster to add.

        Args:
            rows: Rows (p,) of the passages with the term.
            weights: Contribution (p,) of the term to the score of each of these passages.
        """
        is_common = len(rows) >= MIN_COMMON_SHARE * self._statistics.passages
        if is_common:
            weights_of_all_passages = np.bincount(rows, weights, len(self.ids))
            return TermWeights(None, weights_of_all_passages)
        return TermWeights(rows.astype(np.int32), weights)

    def _joint_postings(self, terms: Sequence[str]) -> _Postings:
        """Return the passages with at least one of some terms, and how often these occur in all."""
        if len(terms) == 1:
            return self._live_postings(terms[0])
        all_postings = [self._live_postings(term) for term in terms]
        all_rows = np.concatenate([postings.rows for postings in all_postings])
        all_frequencies = np.concatenate([postings.frequencies for postings in all_postings])
        rows, positions = np.unique(all_rows, return_inverse=True)
        frequencies = np.bincount(positions, all_frequencies, len(rows))
        return _Postings(rows, frequencies)

    def count_passages(self, terms: Sequence[str]) -> list[int]:
        """Return the number of passages that contain each term, in the text or a known query.

        Removed passages are not counted. The numbers are cached.
        """
        missing = sorted({term for term in terms if term not in self._passage_counts})
        counts = np.array([self.document_frequency(term) for term in missing], np.int64)
        if self._known_counts is not None:
            # Pairs of a term and a passage that has it in a known query, each once.
            rows, positions, _ = self._known_counts.of_terms(missing)
            keys = np.unique(positions * len(self.ids) + rows)
            positions, rows = np.divmod(keys, max(1, len(self.ids)))
            # A passage that has the term in its text as well is counted already.
            terms_of_pairs = [missing[i] for i in positions.tolist()]
            frequencies_in_text = self._text_frequencies(terms_of_pairs, rows)
            is_new = frequencies_in_text == 0
            counts += np.bincount(positions[is_new], minlength=len(missing))
        self._passage_counts.update(zip(missing, counts.tolist(), strict=True))
        return [self._passage_counts[term] for term in terms]

    def _live_postings(self, term: str) -> _Postings:
        """Return the postings of a term, without removed passages.

        If known queries count, passages that have the term from a known query are included.
        """
        row_parts = [np.empty(0, np.intp)]
        frequency_parts = [np.empty(0, np.int32)]
        for segment, first_row in zip(self.segments, self.ids.first_rows, strict=False):
            postings = segment.postings(term)
            if postings.start < postings.stop:
                row_parts.append(segment.rows[postings] + first_row)
                frequency_parts.append(segment.frequencies[postings])
        rows = np.concatenate(row_parts)
        frequencies = np.concatenate(frequency_parts)

        is_live = self._statistics.is_live
        if is_live is not None:
            is_kept = is_live[rows]
            rows = rows[is_kept]
            frequencies = frequencies[is_kept]
        if self._known_counts is None or self.words is None:
            return _Postings(rows, frequencies)

        known_rows, known_counts = self._known_counts.of_term(term)
        return _add_counts(rows, frequencies, known_rows, self.words.weight * known_counts)


def fingerprint_of(settings: Bm25Settings, words: KnownWords | None) -> str:
    """Return the SHA-256 of a BM25 retriever's format and of all settings that change scores."""
    facts: dict[str, Any] = settings.model_dump()
    if words is not None:
        facts["known_words"] = asdict(words)
    return hash_text(f"bm25 {FORMAT} {canonical_json(facts)}")


def _add_counts(
    rows: np.ndarray, frequencies: np.ndarray, more_rows: np.ndarray, counts: np.ndarray
) -> _Postings:
    """Add the counts of known queries to the postings of one term.

    Args:
        rows: Rows of the term's postings, ascending, shape (p,).
        frequencies: Frequency of the term in each of `rows`, shape (p,).
        more_rows: Rows whose frequency grows, ascending, shape (q,).
        counts: Number to add to the frequency of each of `more_rows`, shape (q,).

    Returns:
        Postings (rows and float64 frequencies). The rows of `rows` come first, then the rows that
        are only in `more_rows`.
    """
    # Find out which of `more_rows` are among `rows`. A row with the position len(rows) is greater
    # than all of them.
    positions = np.searchsorted(rows, more_rows)
    is_present = np.zeros(len(more_rows), bool)
    inside = positions < len(rows)
    is_present[inside] = rows[positions[inside]] == more_rows[inside]

    sums = frequencies.astype(np.float64)
    sums[positions[is_present]] += counts[is_present]
    all_rows = np.concatenate([rows, more_rows[~is_present]])
    return _Postings(all_rows, np.concatenate([sums, counts[~is_present]]))
