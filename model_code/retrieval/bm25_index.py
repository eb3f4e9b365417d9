"""BM25 over passages, in segments that can be added, removed and merged.

A passage d scores for a query the sum over the query's terms t of

    idf(t) * f(t, d) / (f(t, d) + k1 * (1 - b + b * |d| / mean_length)),
    idf(t) = log(1 + (N - n_t + 0.5) / (n_t + 0.5)),

where f(t, d) is how often t occurs in d, |d| is the number of terms of d, and n_t of the N passages
contain t. k1 saturates repeated terms, and b normalises by length. The formula is that of Robertson
and Zaragoza (2009), The Probabilistic Relevance Framework, with the idf of Lucene.

Segments store integers only. N, n_t and the mean length are taken over the passages that are not
removed, at query time. So any sequence of additions and removals gives the scores of one rebuild,
bit for bit.

This is our own code because bm25s builds one index from all texts: it cannot add, remove or merge
documents. Posting lists in numpy do that and search as fast.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from model_code.files import (
    atomic_write,
    canonical_json,
    hash_text,
    read_json,
    read_manifest,
    verify_checksums,
    write_json,
    write_manifest,
)
from model_code.retrieval.id_map import IdMap, IdMaps, number_on_lookup
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.protocol import Ranking, Retriever, TokenMatch
from model_code.text.terms import get_analyzer

FORMAT = 2
"""Number of the format, which includes the rules by which texts become terms."""

OTHER_FORMAT_REMEDY = (
    "build it again: freshet run, then freshet promote. Documents that were added since the build: "
    "freshet export --all with the version of Freshet that indexed them, then freshet import"
)
KIND = "bm25"
VOCABULARY = "vocabulary.json"
DOCUMENT_IDS = "document_ids.json"
POSTINGS = "postings.safetensors"
DEFAULT_SETTINGS = Bm25Settings()

MIN_COMMON_SHARE = 1 / 8
"""Share of passages with a term from which its weights are added to all scores at once."""


@dataclass(frozen=True, eq=False)
class Bm25Segment:
    """The terms of some documents' passages. Equal passages in equal order give equal segments.

    The postings of term t are the entries `starts[t]` to `starts[t + 1]` of `rows` and
    `frequencies`.

    Attributes:
        vocabulary: The T terms in ascending order.
        starts: Start of each term's postings, then the number of postings, shape (T + 1,), int64.
        rows: Passage of each posting, ascending per term, shape (P,), int32.
        frequencies: Occurrences of the term in that passage, shape (P,), int32.
        lengths: Number of terms of each passage, shape (n,), int32.
        ids: Document of each passage.
    """

    vocabulary: list[str]
    starts: np.ndarray
    rows: np.ndarray
    frequencies: np.ndarray
    lengths: np.ndarray
    ids: IdMap

    @classmethod
    def build(
        cls, texts: Sequence[str], document_ids: Sequence[str], language: str | None
    ) -> Bm25Segment:
        """Index passages.

        Args:
            texts: The passages.
            document_ids: Document of each passage.
            language: Language of the stemmer, see `TermAnalyzer`.
        """
        analyzer = get_analyzer(language)
        numbers = number_on_lookup()
        passages = [list(map(numbers.__getitem__, analyzer.analyze(text))) for text in texts]
        lengths = np.fromiter(map(len, passages), np.int32, len(passages))
        terms = np.fromiter(chain.from_iterable(passages), np.int64, int(lengths.sum()))

        # Terms were numbered in the order of their first occurrence. Postings need them sorted.
        vocabulary = sorted(numbers)
        sorted_number = np.empty(len(vocabulary), np.int64)
        sorted_number[[numbers[term] for term in vocabulary]] = np.arange(len(vocabulary))

        rows = np.repeat(np.arange(len(passages)), lengths)
        keys, frequencies = np.unique(
            sorted_number[terms] * len(passages) + rows, return_counts=True
        )
        return cls._from_keys(vocabulary, keys, frequencies, lengths, IdMap(document_ids))

    @classmethod
    def merge(cls, sources: Sequence[tuple[Bm25Segment, Sequence[str]]]) -> Bm25Segment:
        """Merge selected documents of several segments into the segment that `build` would make.

        Args:
            sources: Segments, each with the ids of the documents to take from it.
        """
        selections = [
            (segment, segment.ids.rows_of(document_ids)) for segment, document_ids in sources
        ]
        document_ids = [
            segment.ids.document_ids[row] for segment, rows in selections for row in rows.tolist()
        ]
        vocabulary = sorted({term for segment, _ in selections for term in segment.vocabulary})
        number_of = {term: number for number, term in enumerate(vocabulary)}

        key_parts = []
        frequency_parts = []
        first_row = 0
        for segment, rows in selections:
            new_row = np.full(len(segment.ids), -1, np.int64)
            new_row[rows] = np.arange(first_row, first_row + len(rows))
            new_term = np.array([number_of[term] for term in segment.vocabulary], np.int64)

            posting_terms = np.repeat(new_term, np.diff(segment.starts))
            posting_rows = new_row[segment.rows]
            is_selected = posting_rows >= 0
            keys = posting_terms * len(document_ids) + posting_rows
            key_parts.append(keys[is_selected])
            frequency_parts.append(segment.frequencies[is_selected])
            first_row += len(rows)

        keys = np.concatenate(key_parts)
        order = np.argsort(keys)
        frequencies = np.concatenate(frequency_parts)[order]
        lengths = np.concatenate([segment.lengths[rows] for segment, rows in selections])
        return cls._from_keys(vocabulary, keys[order], frequencies, lengths, IdMap(document_ids))

    @classmethod
    def _from_keys(
        cls,
        vocabulary: list[str],
        keys: np.ndarray,
        frequencies: np.ndarray,
        lengths: np.ndarray,
        ids: IdMap,
    ) -> Bm25Segment:
        """Build from one key per posting: term number * n + row, ascending.

        Terms without postings are left out of the vocabulary.
        """
        terms, rows = np.divmod(keys, max(1, len(ids)))
        used_terms, posting_counts = np.unique(terms, return_counts=True)
        starts = np.concatenate([[0], np.cumsum(posting_counts)]).astype(np.int64)
        return cls(
            vocabulary=[vocabulary[term] for term in used_terms.tolist()],
            starts=starts,
            rows=rows.astype(np.int32),
            frequencies=frequencies.astype(np.int32),
            lengths=lengths.astype(np.int32),
            ids=ids,
        )

    @cached_property
    def _term_numbers(self) -> dict[str, int]:
        return {term: number for number, term in enumerate(self.vocabulary)}

    def postings(self, term: str) -> slice:
        """Return the slice of a term's postings. It is empty if no passage has the term."""
        number = self._term_numbers.get(term)
        if number is None:
            return slice(0, 0)
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def save(self, folder: Path, facts: dict[str, object]) -> None:
        """Write the segment to a folder. Equal segments give equal bytes.

        Args:
            folder: Folder to write to.
            facts: Further entries of the manifest.
        """
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {
            "starts": self.starts,
            "rows": self.rows,
            "frequencies": self.frequencies,
            "lengths": self.lengths,
        }
        with atomic_write(folder / POSTINGS) as temporary:
            save_file(arrays, temporary)
        write_json(folder / VOCABULARY, self.vocabulary, lines=False)
        write_json(folder / DOCUMENT_IDS, self.ids.document_ids, lines=False)

        manifest = {
            "kind": KIND,
            "passages": len(self.ids),
            "documents": self.ids.documents,
            **facts,
        }
        write_manifest(folder, FORMAT, manifest)

    @classmethod
    def load(cls, folder: Path) -> Bm25Segment:
        """Read a segment that `save` wrote.

        Raises:
            FreshetError: If a file does not match the manifest.
        """
        manifest = read_manifest(folder, FORMAT, other_format_remedy=OTHER_FORMAT_REMEDY)
        verify_checksums(folder, manifest)
        ids = IdMap(read_json(folder / DOCUMENT_IDS))
        return cls(read_json(folder / VOCABULARY), **load_file(folder / POSTINGS), ids=ids)


@dataclass(frozen=True, eq=False)
class Bm25Query:
    """An encoded query: its terms, and the scores that indexes have computed for it.

    Attributes:
        terms: How often each term occurs in the query.
        scores: Passage scores by `id()` of the index, so that no index computes them twice.
    """

    terms: Counter[str]
    scores: dict[int, np.ndarray] = field(default_factory=dict)


class _Statistics(NamedTuple):
    """Statistics of the passages that are not removed, over all segments.

    length_norms: k1 * (1 - b + b * |d| / mean_length) of each passage, shape (n,).
    mean_length: Mean number of terms of a passage.
    passages: Number of passages that are not removed.
    is_live: Which passages are not removed, shape (n,). None if no passage is removed.
    """

    length_norms: np.ndarray
    mean_length: float
    passages: int
    is_live: np.ndarray | None


class _Postings(NamedTuple):
    """The passages that contain a term.

    rows: Passages, counted through all segments, shape (p,).
    frequencies: Occurrences of the term in each of them, shape (p,).
    """

    rows: np.ndarray
    frequencies: np.ndarray


class _TermWeights(NamedTuple):
    """What a term adds to the scores of the passages that contain it.

    rows: Passages, counted through all segments, shape (p,). None for a common term.
    weights: Weight of each of `rows`, shape (p,). For a common term the weight of every passage,
        shape (n,), because adding a whole array is faster.
    """

    rows: np.ndarray | None
    weights: np.ndarray


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
    ) -> None:
        """Search segments together.

        Args:
            segments: Segments, each with the ids of its removed documents. A document that is not
                removed may be in one segment only.
            settings: Parameters of the formula, and the language.
            reference: Index whose statistics (N, n_t and mean length) are used instead of those of
                the segments. With it, the score of a document does not depend on the documents that
                were added with it or after it.
        """
        self.segments = [segment for segment, _ in segments]
        self.ids = IdMaps([(segment.ids, removed) for segment, removed in segments])
        self.settings = settings
        self.language = settings.language
        self.fingerprint = hash_text(f"bm25 {FORMAT} {canonical_json(settings.model_dump())}")
        self.reference = reference
        self._weights_of_term: dict[str, _TermWeights] = {}

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
    def _statistics(self) -> _Statistics:
        lengths = np.concatenate([segment.lengths for segment in self.segments])
        live_lengths = lengths
        is_live = None
        removed_rows = self.ids.removed_rows
        if len(removed_rows):
            is_live = np.ones(len(lengths), bool)
            is_live[removed_rows] = False
            live_lengths = lengths[is_live]

        if self.reference is None:
            total_length = int(live_lengths.sum(dtype=np.int64))
            mean_length = max(1, total_length) / max(1, len(live_lengths))
            passages = len(live_lengths)
        else:
            mean_length = self.reference._statistics.mean_length
            passages = self.reference._statistics.passages

        k1 = self.settings.k1
        b = self.settings.b
        length_norms = k1 * (1 - b + b * lengths / mean_length)
        return _Statistics(length_norms, mean_length, passages, is_live)

    def encode_queries(self, texts: Sequence[str]) -> list[Bm25Query]:
        """Count the terms of query texts."""
        analyzer = get_analyzer(self.settings.language)
        return [Bm25Query(Counter(analyzer.analyze(text))) for text in texts]

    def search_encoded(
        self, queries: list[Bm25Query], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Return the k best documents that share a term with each query, best first.

        Raises:
            FreshetError: If a document in `allowed` is not in the index.
        """
        rows = None if allowed is None else self.ids.rows_of(allowed)
        rankings = []
        for query in queries:
            scores = self._scores(query)
            if rows is not None:
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
            passage_scores = self._scores(query)[groups.rows]
            scores.append(groups.max_scores(passage_scores).astype(np.float64))
        return scores

    def best_passage_encoded(self, query: list[Bm25Query], document_id: str) -> int:
        """Return the number of the document's best passage, the first of equals."""
        rows = self.ids.rows_of([document_id])
        return int(np.argmax(self._scores(query[0])[rows]))

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Return what each term adds to the score of a document's best passage, heaviest first."""
        query = self.encode_queries([text])
        best_passage = self.best_passage_encoded(query, document_id)
        row = int(self.ids.rows_of([document_id])[best_passage])

        matches = []
        for term, count in query[0].terms.items():
            weight = float(self._sum_weights(Counter({term: count}))[row])
            if weight:
                matches.append(TokenMatch(term, weight))
        return sorted(matches, key=lambda match: (-match.weight, match.token))

    def scores(self, text: str) -> np.ndarray:
        """Score every passage for one query text.

        Returns:
            Scores of shape (n,), float32; 0 where no term is shared.
        """
        return self._scores(self.encode_queries([text])[0])

    def _scores(self, query: Bm25Query) -> np.ndarray:
        if id(self) not in query.scores:
            query.scores[id(self)] = self._sum_weights(query.terms)
        return query.scores[id(self)]

    def _sum_weights(self, terms: Counter[str]) -> np.ndarray:
        """Sum the weights of terms for every passage, shape (n,), float32.

        The sum is in float64, over common terms first and both groups in the query's order. So it
        rounds alike, however the passages are split into segments.
        """
        scores = np.zeros(len(self.ids))
        rare_rows = []
        rare_weights = []
        for term, count in terms.items():
            rows, weights = self._term_weights(term)
            if count != 1:
                weights = count * weights
            if rows is None:
                scores += weights
            else:
                rare_rows.append(rows)
                rare_weights.append(weights)

        if rare_rows:
            rows = np.concatenate(rare_rows)
            scores += np.bincount(rows, np.concatenate(rare_weights), len(self.ids))
        return scores.astype(np.float32)

    def _term_weights(self, term: str) -> _TermWeights:
        """Return the weights of a term. They are computed when it is first asked for."""
        if term not in self._weights_of_term:
            self._weights_of_term[term] = self._compute_term_weights(term)
        return self._weights_of_term[term]

    def _compute_term_weights(self, term: str) -> _TermWeights:
        rows, frequencies = self._live_postings(term)
        statistics = self._statistics
        document_frequency = len(rows)
        if self.reference is not None:
            document_frequency = len(self.reference._live_postings(term).rows)

        rarity = (statistics.passages - document_frequency + 0.5) / (document_frequency + 0.5)
        weights = math.log(1 + rarity) * (
            frequencies / (frequencies + statistics.length_norms[rows])
        )
        if len(rows) < MIN_COMMON_SHARE * statistics.passages:
            return _TermWeights(rows, weights)
        return _TermWeights(None, np.bincount(rows, weights, len(self.ids)))

    def _live_postings(self, term: str) -> _Postings:
        row_parts = [np.empty(0, np.intp)]
        frequency_parts = [np.empty(0, np.int32)]
        for segment, first_row in zip(self.segments, self.ids.first_rows, strict=False):
            slice_ = segment.postings(term)
            if slice_.start < slice_.stop:
                row_parts.append(segment.rows[slice_] + first_row)
                frequency_parts.append(segment.frequencies[slice_])
        rows = np.concatenate(row_parts)
        frequencies = np.concatenate(frequency_parts)

        is_live = self._statistics.is_live
        if is_live is not None:
            live_postings = is_live[rows]
            rows = rows[live_postings]
            frequencies = frequencies[live_postings]
        return _Postings(rows, frequencies)
