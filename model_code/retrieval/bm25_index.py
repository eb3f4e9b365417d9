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

import math
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from model_code.files import (
    canonical_json,
    hash_text,
    read_json,
    read_manifest,
    verify_checksums,
    write_json,
    write_manifest,
)
from model_code.mapped_tensors import map_tensors, write_tensors
from model_code.retrieval.id_map import (
    AllowedDocuments,
    IdMap,
    IdMaps,
    number_on_lookup,
    read_id_map,
)
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.protocol import Ranking, Retriever, TokenMatch, TypedQuery
from model_code.retrieval.typed_words import (
    completed_stems,
    corrected_stem,
    split_unfinished_word,
)
from model_code.settings import require
from model_code.text.known_queries import (
    MIN_DUPLICATE_JACCARD,
    KnownQuery,
    KnownQueryLimits,
    select_queries,
)
from model_code.text.terms import get_analyzer
from model_code.text.words import split_search_words

if TYPE_CHECKING:
    from scipy import sparse

FORMAT = 3
"""Version of the format on disk. It changes also if texts are split into terms differently."""

OTHER_FORMAT_REMEDY = (
    "build it again: freshet run, then freshet promote. Documents that were added since the build: "
    "freshet export --all with the version of Freshet that indexed them, then freshet import"
)
KIND = "bm25"
VOCABULARY = "vocabulary.json"
DOCUMENT_IDS = "document_ids.json"
POSTINGS = "postings.safetensors"
DEFAULT_SETTINGS = Bm25Settings()

# Unicode's last character: all terms that begin with a prefix sort before prefix + LAST_CHARACTER.
LAST_CHARACTER = "\U0010ffff"
# Number of completions of an unfinished word that an explanation names.
MAX_NAMED_COMPLETIONS = 3
# Lower limit of a query's highest possible score. It avoids a division by 0.
MIN_HIGHEST_SCORE = 1e-9

FINISHED_WORD_FACTOR = 0.5
"""Weight of the completions of a typed last word that is itself a term of the index."""

MIN_COMMON_SHARE = 1 / 8
"""Share of all passages that contain a term, from which the term is common.

The weights of a common term are stored for all passages, since adding a whole array is faster.
"""

MAX_CACHED_BYTES_PER_PASSAGE = 256
"""Size of the cached weights of terms, in bytes per passage of the index.

The weights of a common term take 8 bytes per passage, and those of other terms 12 for each passage
that contains the term. So there is room for the common terms and for hundreds of others.
"""

MAX_KEPT_SCORES = 2**27
"""Number of scores, over all queries of a call, up to which queries keep them (512 MiB).

A search, the scores of candidates and the best passage need the same scores. An evaluation of
thousands of queries over a large index would fill the memory with them, so it computes them again.
"""

MIN_CACHED_BYTES = 2**24
"""Size in bytes up to which a small index caches the weights of the terms that were searched.

A quarter of it did not suffice for the terms of 400 queries over 21,000 passages, so that a search
took 1.6 times as long.
"""


MAX_BLOCK_PASSAGES = 2**15
"""Number of passages that are indexed at a time, which bounds the memory of a build.

It is at most 65,536, so that rows of a block fit into 16 bits.
"""


class _PostingBlock(NamedTuple):
    """The postings of some consecutive passages, in compact types.

    terms: Numbers of the terms that occur, ascending, shape (t,), int32.
    counts: Number of passages that contain each of them, shape (t,), int64.
    rows: Passage of each posting within the block, ascending per term, shape (p,), uint16.
    frequencies: Occurrences of the term in that passage, shape (p,), as few bytes as possible.
    lengths: Number of terms of each passage, shape (n,), int32.
    """

    terms: np.ndarray
    counts: np.ndarray
    rows: np.ndarray
    frequencies: np.ndarray
    lengths: np.ndarray

    @classmethod
    def build(cls, passages: Sequence[Sequence[int]]) -> _PostingBlock:
        """Count how often each term occurs in each passage.

        Args:
            passages: Numbers of the terms of each of n passages, n at most 65,536.
        """
        lengths = np.fromiter(map(len, passages), np.int32, len(passages))
        terms = np.fromiter(chain.from_iterable(passages), np.int64, int(lengths.sum()))

        # Occurrences of a term in a passage have equal keys.
        occurrence_keys = terms * len(passages)
        occurrence_keys += np.repeat(np.arange(len(passages)), lengths)
        keys, frequencies = np.unique(occurrence_keys, return_counts=True)
        posting_terms, rows = np.divmod(keys, max(1, len(passages)))
        present_terms, counts = np.unique(posting_terms, return_counts=True)
        largest_frequency = int(frequencies.max(initial=0))
        return cls(
            present_terms.astype(np.int32),
            counts,
            rows.astype(np.uint16),
            frequencies.astype(np.min_scalar_type(largest_frequency)),
            lengths,
        )


@dataclass(frozen=True, eq=False)
class Bm25Segment:
    """An immutable index of the terms of some documents' passages.

    Equal passages in equal order give equal segments. A posting is a pair of a term and a passage
    that contains it. The postings of term t are the entries `starts[t]` to `starts[t + 1]` of
    `rows` and `frequencies`.

    Attributes:
        vocabulary: The T terms in ascending order.
        starts: Start of each term's postings, then the number of postings, shape (T + 1,), int64.
        rows: Passage of each posting, ascending per term, shape (P,), int32.
        frequencies: Occurrences of the term in that passage, shape (P,), int32.
        lengths: Number of terms of each passage, shape (n,), int32.
        ids: Document id of each of the n passages.
    """

    vocabulary: list[str]
    starts: np.ndarray
    rows: np.ndarray
    frequencies: np.ndarray
    lengths: np.ndarray
    ids: IdMap

    @classmethod
    def build(
        cls,
        texts: Sequence[str],
        document_ids: Sequence[str],
        language: str | None,
        block_passages: int = MAX_BLOCK_PASSAGES,
    ) -> Bm25Segment:
        """Index passages, block by block.

        The postings of a finished block take about 3 bytes each, and those of the segment 8. So
        the memory for all occurrences of terms is only needed for one block at a time.

        Args:
            texts: The passages.
            document_ids: Document of each passage.
            language: Language of the stemmer, see `TermAnalyzer`.
            block_passages: Number of passages of a block, at most `MAX_BLOCK_PASSAGES`. The result
                does not depend on it.
        """
        analyzer = get_analyzer(language)
        # A new term gets the next number. So terms are numbered in the order of their first
        # occurrence.
        numbers = number_on_lookup()
        blocks = []
        for start in range(0, len(texts), block_passages):
            passages = []
            for text in texts[start : start + block_passages]:
                passages.append(list(map(numbers.__getitem__, analyzer.analyze(text))))
            blocks.append(_PostingBlock.build(passages))

        # Postings need the terms sorted.
        vocabulary = sorted(numbers)
        sorted_number = np.empty(len(vocabulary), np.int64)
        sorted_number[[numbers[term] for term in vocabulary]] = np.arange(len(vocabulary))
        return cls._join_blocks(vocabulary, sorted_number, blocks, IdMap(document_ids))

    @classmethod
    def _join_blocks(
        cls,
        vocabulary: list[str],
        sorted_number: np.ndarray,
        blocks: list[_PostingBlock],
        ids: IdMap,
    ) -> Bm25Segment:
        """Join the postings of consecutive blocks of passages. The blocks are used up.

        Args:
            vocabulary: Terms in ascending order.
            sorted_number: Position in the vocabulary of each term number of the blocks, (T,).
            blocks: Postings of the blocks, in the order of their passages.
            ids: Document id of each passage.
        """
        lengths = [np.empty(0, np.int32)]
        posting_counts = np.zeros(len(vocabulary), np.int64)
        for block in blocks:
            lengths.append(block.lengths)
            posting_counts[sorted_number[block.terms]] += block.counts
        starts = np.concatenate([[0], np.cumsum(posting_counts)])

        rows = np.empty(int(starts[-1]), np.int32)
        frequencies = np.empty(int(starts[-1]), np.int32)
        # Where the next postings of each term go. The blocks ascend, and so do the rows of a term.
        next_positions = starts[:-1].copy()
        first_row = 0
        blocks.reverse()
        while blocks:
            block = blocks.pop()
            terms = sorted_number[block.terms]
            positions = join_ranges(next_positions[terms], block.counts)
            rows[positions] = block.rows
            rows[positions] += first_row
            frequencies[positions] = block.frequencies
            next_positions[terms] += block.counts
            first_row += len(block.lengths)
        return cls(vocabulary, starts, rows, frequencies, np.concatenate(lengths), ids)

    @classmethod
    def merge(cls, sources: Sequence[tuple[Bm25Segment, Sequence[str]]]) -> Bm25Segment:
        """Merge selected documents of several segments without reading their texts.

        The result equals the segment that `build` makes of the same passages in the same order.

        Args:
            sources: Segments, each with the ids of the documents to take from it.
        """
        # Collect, for each segment, the rows of the passages to take from it.
        selections = []
        merged_document_ids: list[str] = []
        terms: set[str] = set()
        for segment, document_ids in sources:
            rows = segment.ids.rows_of(document_ids)
            selections.append((segment, rows))
            merged_document_ids.extend(segment.ids.document_ids[row] for row in rows.tolist())
            terms.update(segment.vocabulary)
        vocabulary = sorted(terms)
        number_of = {term: number for number, term in enumerate(vocabulary)}

        key_parts = []
        frequency_parts = []
        first_row = 0
        for segment, rows in selections:
            # The row in the merged segment of each passage; -1 for a passage that is not selected.
            new_row = np.full(len(segment.ids), -1, np.int64)
            new_row[rows] = np.arange(first_row, first_row + len(rows))
            new_term = np.array([number_of[term] for term in segment.vocabulary], np.int64)

            posting_terms = np.repeat(new_term, np.diff(segment.starts))
            posting_rows = new_row[segment.rows]
            is_selected = posting_rows >= 0
            keys = posting_terms * len(merged_document_ids) + posting_rows
            key_parts.append(keys[is_selected])
            frequency_parts.append(segment.frequencies[is_selected])
            first_row += len(rows)

        keys = np.concatenate(key_parts)
        order = np.argsort(keys)
        frequencies = np.concatenate(frequency_parts)[order]
        lengths = np.concatenate([segment.lengths[rows] for segment, rows in selections])
        ids = IdMap(merged_document_ids)
        return cls._from_keys(vocabulary, keys[order], frequencies, lengths, ids)

    @classmethod
    def _from_keys(
        cls,
        vocabulary: list[str],
        keys: np.ndarray,
        frequencies: np.ndarray,
        lengths: np.ndarray,
        ids: IdMap,
    ) -> Bm25Segment:
        """Build a segment of n passages from postings that are encoded as integers.

        Terms without postings are left out of the vocabulary.

        Args:
            vocabulary: Terms in ascending order.
            keys: Key of each posting, ascending: (number of the term) * n + (row of the passage).
            frequencies: Occurrences of the term in the passage, for each key.
            lengths: Number of terms of each passage.
            ids: Document id of each passage.
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
    def term_numbers(self) -> dict[str, int]:
        """Position of each term in the vocabulary."""
        return {term: number for number, term in enumerate(self.vocabulary)}

    def postings(self, term: str) -> slice:
        """Return the slice of a term's postings. It is empty if no passage has the term."""
        number = self.term_numbers.get(term)
        if number is None:
            return slice(0, 0)
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def term_frequencies(self, terms: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Return how often each of some terms occurs in the passage at the same position.

        Args:
            terms: The k terms, which may repeat.
            rows: Row of the passage in which each term is counted, shape (k,).

        Returns:
            Frequencies (k,), int32; 0 for a term that is not in the passage.
        """
        numbers = np.array([self.term_numbers.get(term, -1) for term in terms], np.int64)
        frequencies = np.zeros(len(numbers), np.int32)
        # Look at the terms that occur in the segment only, each with the range of its postings.
        known = np.flatnonzero(numbers >= 0)
        wanted_rows = rows[known]
        starts = self.starts[numbers[known]]
        ends = self.starts[numbers[known] + 1]

        # A binary search in the postings of all terms at once. The rows of a term ascend. In the
        # end, `lows` is the first posting of each term whose row is at least the wanted one.
        lows = starts
        highs = ends
        while (lows < highs).any():
            middles = (lows + highs) // 2
            is_before = np.zeros(len(lows), bool)
            is_open = lows < highs
            is_before[is_open] = self.rows[middles[is_open]] < wanted_rows[is_open]
            lows = np.where(is_before, middles + 1, lows)
            highs = np.where(is_before, highs, middles)

        # The row of this posting may be greater than the wanted one, or there may be none.
        inside = np.flatnonzero(lows < ends)
        found = inside[self.rows[lows[inside]] == wanted_rows[inside]]
        frequencies[known[found]] = self.frequencies[lows[found]]
        return frequencies

    def postings_of_terms(self, terms: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the postings of several different terms, one term after the other.

        Returns:
            Positions (p,) of the postings in `rows` and `frequencies`, and the position in `terms`
            of the term of each posting, (p,).
        """
        numbers = np.array([self.term_numbers.get(term, -1) for term in terms], np.int64)
        known = np.flatnonzero(numbers >= 0)
        first = self.starts[numbers[known]]
        sizes = self.starts[numbers[known] + 1] - first
        return join_ranges(first, sizes), np.repeat(known, sizes)

    def save(self, folder: Path, facts: dict[str, object]) -> None:
        """Write the segment to a folder. Equal segments give equal bytes.

        Args:
            folder: Folder to write to.
            facts: Entries to add to the manifest, such as the fingerprint.
        """
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {
            "starts": self.starts,
            "rows": self.rows,
            "frequencies": self.frequencies,
            "lengths": self.lengths,
        }
        write_tensors(arrays, folder / POSTINGS)
        write_json(folder / VOCABULARY, self.vocabulary, lines=False)
        write_json(folder / DOCUMENT_IDS, list(self.ids.document_ids), lines=False)

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
        ids = read_id_map(folder / DOCUMENT_IDS)
        return cls(read_json(folder / VOCABULARY), **map_tensors(folder / POSTINGS), ids=ids)


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

    length_norms: k1 * (1 - b + b * |d| / mean_length) of each passage, shape (n,).
    mean_length: Mean number of terms of a passage.
    passages: Number of passages that are not removed.
    is_live: Mask of the passages that are not removed, shape (n,). None if no passage is removed.
    total_length: Sum of the lengths of the passages that are not removed.
    """

    length_norms: np.ndarray
    mean_length: float
    passages: int
    is_live: np.ndarray | None
    total_length: float


class _Postings(NamedTuple):
    """The passages that contain a term.

    rows: Passages, counted through all segments, shape (p,).
    frequencies: Occurrences of the term in each of them, shape (p,).
    """

    rows: np.ndarray
    frequencies: np.ndarray


class _PairWithout(NamedTuple):
    """A document that is scored for a query, without some of its known queries.

    number: Position of the pair among all pairs.
    query: The encoded query.
    document_id: Id of the document.
    known_terms: How often each term occurs in the document's known queries.
    left_out: How often each term occurs in the known queries to ignore.
    """

    number: int
    query: Bm25Query
    document_id: str
    known_terms: Counter[str]
    left_out: Counter[str]


class _PairTerms(NamedTuple):
    """The query terms of several pairs: those of the first pair, then of the second, and so on.

    terms: The t terms.
    query_counts: How often the query has each term, shape (t,).
    known_counts: How often all known queries of the document have it, shape (t,).
    ignored_counts: How often the known queries to ignore have it, shape (t,).
    """

    terms: list[str]
    query_counts: np.ndarray
    known_counts: np.ndarray
    ignored_counts: np.ndarray

    @classmethod
    def collect(cls, pairs: Sequence[_PairWithout]) -> _PairTerms:
        """Return the query terms of all pairs in flat arrays, one pair after the other."""
        terms: list[str] = []
        query_counts: list[int] = []
        known_counts: list[int] = []
        ignored_counts: list[int] = []
        for pair in pairs:
            for term, count in pair.query.terms.items():
                terms.append(term)
                query_counts.append(count)
                known_counts.append(pair.known_terms[term])
                ignored_counts.append(pair.left_out[term])
        return cls(terms, np.array(query_counts), np.array(known_counts), np.array(ignored_counts))


class TermWeights(NamedTuple):
    """The contribution of a term to the score of each passage that contains it.

    rows: Passages, counted through all segments, shape (p,), int32. None for a common term; see
        `MIN_COMMON_SHARE`.
    weights: Contribution for each of `rows`, shape (p,). For a common term, the contribution for
        every passage, shape (n,), because adding a whole array is faster.
    """

    rows: np.ndarray | None
    weights: np.ndarray

    @property
    def size(self) -> int:
        """Size of the arrays in bytes, by which the cache of weights is limited."""
        if self.rows is None:
            return self.weights.nbytes
        return self.weights.nbytes + self.rows.nbytes


class WeightCache:
    """The weights of the terms that were searched last, up to a size in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._weights_of_term: OrderedDict[str, TermWeights] = OrderedDict()
        # Threads share the cache. The lock keeps them from counting the size of an entry twice.
        self._lock = Lock()

    def get(self, term: str) -> TermWeights | None:
        """Return the weights of a term, or None if they are not cached."""
        with self._lock:
            weights = self._weights_of_term.get(term)
            if weights is not None:
                self._weights_of_term.move_to_end(term)
            return weights

    def put(self, term: str, weights: TermWeights) -> None:
        """Keep the weights of a term, and forget those that were not used for longest."""
        with self._lock:
            if term in self._weights_of_term:
                return
            self._weights_of_term[term] = weights
            self._bytes += weights.size
            while self._bytes > self._max_bytes:
                _, oldest = self._weights_of_term.popitem(last=False)
                self._bytes -= oldest.size


@dataclass(frozen=True)
class KnownWords:
    """How the words of known queries count as words of their documents.

    Attributes:
        weight: Weight u of one occurrence, a multiple of 1/4.
        in_length: Whether the words count towards the length of a passage.
        limits: Largest numbers of known queries and of their words that count for one document.
    """

    weight: float
    in_length: bool
    limits: KnownQueryLimits = KnownQueryLimits()

    def __post_init__(self) -> None:
        """Check that the weight is a multiple of 1/4, so that weighted sums of counts are exact.

        Raises:
            SettingsError: If the weight is negative or no multiple of 1/4.
        """
        require(
            self.weight >= 0 and (4 * self.weight).is_integer(),
            f"the weight of known queries is {self.weight}, but must be a multiple of 0.25",
        )

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> KnownWords:
        """Restore an instance from the mapping that `dataclasses.asdict` made of it."""
        limits = KnownQueryLimits(**facts["limits"])
        return cls(facts["weight"], facts["in_length"], limits)


class KnownSegment:
    """The indexed known queries of the documents of one passage segment.

    A known query counts for all passages of its document.

    Attributes:
        queries: The known queries, indexed like passages.
        ids: Document id of each passage of the passage segment.
    """

    def __init__(self, queries: Bm25Segment, ids: IdMap) -> None:
        self.queries = queries
        self.ids = ids

    @classmethod
    def build(
        cls,
        known: Mapping[str, Sequence[KnownQuery]],
        ids: IdMap,
        limits: KnownQueryLimits,
        language: str | None,
    ) -> KnownSegment:
        """Index the known queries of documents.

        Args:
            known: Known queries by document id.
            ids: Document id of each passage of the passage segment.
            limits: Largest numbers of known queries and of their words that count for one document.
            language: Language of the stemmer, see `TermAnalyzer`.
        """
        queries = select_queries(chain.from_iterable(known.values()), limits)
        texts = [query.text for query in queries]
        document_ids = [query.document_id for query in queries]
        return cls(Bm25Segment.build(texts, document_ids, language), ids)

    @cached_property
    def starts(self) -> np.ndarray:
        """Start of each query's rows in `passages`, followed by their number, shape (q + 1,)."""
        sizes = [len(rows) for rows in self._rows_of_queries]
        return np.cumsum([0, *sizes])

    @cached_property
    def passages(self) -> np.ndarray:
        """Rows of the passages of each query's document, one query after the other, int64.

        A row is a position in the passage segment.
        """
        return np.fromiter(chain.from_iterable(self._rows_of_queries), np.int64)

    @property
    def _rows_of_queries(self) -> list[list[int]]:
        rows = self.ids.rows_by_document
        return [rows[document] for document in self.queries.ids.document_ids]

    @cached_property
    def _postings_by_query(self) -> np.ndarray:
        """Positions of all postings of `queries`, one query after the other, shape (P,)."""
        return np.argsort(self.queries.rows, kind="stable")

    @cached_property
    def _first_postings(self) -> np.ndarray:
        """Start of each query in `_postings_by_query`, followed by their number, (q + 1,)."""
        sizes = np.bincount(self.queries.rows, minlength=len(self.queries.ids))
        return np.concatenate([[0], np.cumsum(sizes)])

    def count_terms(self, query: int) -> Counter[str]:
        """Return how often each term occurs in a query.

        Args:
            query: Row of the query.
        """
        start, stop = self._first_postings[query : query + 2].tolist()
        postings = self._postings_by_query[start:stop]
        # A posting belongs to the last term whose postings start at or before it.
        term_numbers = np.searchsorted(self.queries.starts, postings, side="right") - 1
        terms = [self.queries.vocabulary[number] for number in term_numbers.tolist()]
        frequencies = self.queries.frequencies[postings].tolist()
        return Counter(dict(zip(terms, frequencies, strict=True)))


class KnownPart(NamedTuple):
    """The known queries of one segment in an index of several segments.

    A segment may have two parts: its indexed known queries, and those that replaced some of them.

    segment: Number of the segment that contains the documents of the queries.
    known: The known queries.
    excluded: Documents whose queries do not count, because they are removed or replaced.
    """

    segment: int
    known: KnownSegment
    excluded: frozenset[str] = frozenset()


class _KnownCounts:
    """Counts of terms in known queries, for each passage of an index of several segments.

    A known query is a query that a document is known to answer. It counts for all passages of its
    document.
    """

    def __init__(self, parts: Sequence[KnownPart], ids: IdMaps) -> None:
        # Leave out parts without queries. `first_rows` has the first passage of each part's
        # segment.
        self.parts = [part for part in parts if len(part.known.queries.ids)]
        self.first_rows = [ids.first_rows[part.segment] for part in self.parts]
        self.passages = len(ids)
        # For each part, a mask of the queries that count; None if all queries count.
        self.is_counted: list[np.ndarray | None] = []
        for part in self.parts:
            query_ids = part.known.queries.ids
            excluded = query_ids.intersection(part.excluded)
            mask = None
            if excluded:
                mask = np.ones(len(query_ids), bool)
                mask[query_ids.rows_of(excluded)] = False
            self.is_counted.append(mask)

    def of_term(self, term: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the passages whose documents have a term in a known query, with its counts.

        Returns:
            Ascending passage rows, shape (p,), and the term's total occurrences in the counted
            known queries of each passage's document, shape (p,).
        """
        # For each query with the term: the passages it counts for, and the term's occurrences.
        row_parts = [np.empty(0, np.int64)]
        count_parts = [np.empty(0, np.int32)]
        for number, part in enumerate(self.parts):
            segment = part.known.queries
            postings = segment.postings(term)
            if postings.start < postings.stop:
                queries = segment.rows[postings]
                passages, sizes = self._passages_of(number, queries)
                row_parts.append(passages)
                count_parts.append(np.repeat(segment.frequencies[postings], sizes))

        # Several known queries may count for one passage, so their occurrences are added up.
        rows, positions = np.unique(np.concatenate(row_parts), return_inverse=True)
        counts = np.bincount(positions, np.concatenate(count_parts), len(rows))
        return rows, counts

    def lengths(self) -> np.ndarray:
        """Return the number of known-query terms of each passage, shape (n,), float64."""
        lengths = np.zeros(self.passages)
        for number, part in enumerate(self.parts):
            query_lengths = part.known.queries.lengths
            all_queries = np.arange(len(query_lengths))
            passages, sizes = self._passages_of(number, all_queries)
            # A query counts for every passage of its document, so each gets the query's length.
            lengths += np.bincount(passages, np.repeat(query_lengths, sizes), self.passages)
        return lengths

    def queries_of(self, document_id: str) -> Iterator[tuple[KnownSegment, np.ndarray]]:
        """Yield each segment of known queries with the rows of a document's counted queries."""
        for part, is_counted in zip(self.parts, self.is_counted, strict=True):
            query_ids = part.known.queries.ids
            if document_id in query_ids:
                rows = query_ids.rows_of([document_id])
                if is_counted is not None:
                    rows = rows[is_counted[rows]]
                yield part.known, rows

    def _passages_of(self, number: int, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the passages of the documents that some known queries belong to.

        Args:
            number: Number of the part.
            queries: Rows of the known queries, shape (q,).

        Returns:
            Rows of the passages in all segments, one query after the other. The number of passages
            of each query, shape (q,); 0 for a query that does not count.
        """
        known = self.parts[number].known
        # Where the passages of each query start in `known.passages`, and how many there are.
        first = known.starts[queries]
        sizes = known.starts[queries + 1] - first
        is_counted = self.is_counted[number]
        if is_counted is not None:
            sizes = np.where(is_counted[queries], sizes, 0)
        passages = known.passages[join_ranges(first, sizes)]
        return passages + self.first_rows[number], sizes

    def of_terms(self, terms: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the passages whose documents have one of several terms in a known query.

        Args:
            terms: The different terms.

        Returns:
            For each occurrence, in no particular order: the row of a passage (p,), the position of
            the term in `terms` (p,), and how often one known query has the term (p,). A passage is
            repeated for each known query of its document that has the term.
        """
        passages = [np.empty(0, np.int64)]
        term_positions = [np.empty(0, np.int64)]
        counts = [np.empty(0, np.int32)]
        for number, part in enumerate(self.parts):
            segment = part.known.queries
            postings, positions = segment.postings_of_terms(terms)
            rows, sizes = self._passages_of(number, segment.rows[postings])
            passages.append(rows)
            term_positions.append(np.repeat(positions, sizes))
            counts.append(np.repeat(segment.frequencies[postings], sizes))
        return np.concatenate(passages), np.concatenate(term_positions), np.concatenate(counts)


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
    def _known_counts(self) -> _KnownCounts | None:
        """How often known queries add each term to each passage; None if no known query counts."""
        if self.words is None or not self.words.weight:
            return None
        counts = _KnownCounts(self.known, self.ids)
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

    def score_without(self, query_text: str, document_id: str) -> float:
        """Score a document for a query as if the query were not a known query of this document.

        Otherwise a document that is known to answer a query would match its own copy of the query,
        and an evaluation would be too optimistic. Known queries of the document that nearly equal
        the query are ignored as well. Known queries of other documents still count.

        Args:
            query_text: Text of the query.
            document_id: Id of the document.

        Returns:
            The score of the document's best passage; 0 if no term is shared.

        Raises:
            FreshetError: If the document is not in the index.
        """
        queries = self.encode_queries([query_text])
        return float(self.score_pairs_without(queries, [document_id])[0])

    def score_pairs_without(
        self, queries: Sequence[Bm25Query], document_ids: Sequence[str]
    ) -> np.ndarray:
        """Score one document for each encoded query; see `score_without`.

        Args:
            queries: The n encoded queries.
            document_ids: The document to score for each query.

        Returns:
            Scores (n,), float64.
        """
        scores = np.zeros(len(queries))
        pairs: list[_PairWithout] = []
        for number, (query, document_id) in enumerate(zip(queries, document_ids, strict=True)):
            known_terms, left_out = self._known_terms(query.terms, document_id)
            if left_out:
                pairs.append(_PairWithout(number, query, document_id, known_terms, left_out))
            else:
                # The document has no known query that nearly equals this query, so its usual score
                # is right.
                scores[number] = self.score_encoded([query], [[document_id]])[0][0]
        if pairs:
            numbers = [pair.number for pair in pairs]
            scores[numbers] = self._score_ignoring_queries(pairs)
        return scores

    def known_queries_of(self, document_id: str) -> Iterator[tuple[KnownSegment, np.ndarray]]:
        """Yield segments with the rows of a document's known queries that count as words."""
        if self._known_counts is not None:
            yield from self._known_counts.queries_of(document_id)

    def _known_terms(
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
        for known, rows in self.known_queries_of(document_id):
            for row in rows.tolist():
                known_terms = known.count_terms(row)
                all_counts.update(known_terms)
                shared = len(known_terms.keys() & terms.keys())
                union = len(terms) + len(known_terms) - shared
                if shared >= MIN_DUPLICATE_JACCARD * max(union, 1):
                    duplicate_counts.update(known_terms)
        return all_counts, duplicate_counts

    def _score_ignoring_queries(self, pairs: Sequence[_PairWithout]) -> np.ndarray:
        """Score documents as if some of their known queries did not exist; see `score_without`.

        Each statistic of BM25 that these known queries change is computed without them. All n pairs
        are scored together, which is faster. Passages and terms are numbered through all pairs.

        Args:
            pairs: The queries and documents. Each query has a term.

        Returns:
            Scores (n,), float32.
        """
        assert self.words is not None
        weight = self.words.weight
        # The passages of the first pair's document, then those of the second one's, and so on.
        rows_of_pairs = [self.ids.rows_of([pair.document_id]) for pair in pairs]
        passage_rows = np.concatenate(rows_of_pairs)
        passage_counts = np.array([len(rows) for rows in rows_of_pairs])
        first_passages = np.cumsum(passage_counts) - passage_counts
        length_norms = self._length_norms_ignoring(pairs, passage_rows, passage_counts)

        # A match is a query term with a passage of its pair's document. `term_numbers` and
        # `passage_numbers` have the numbers of the term and of the passage of each match, (m,).
        terms, query_counts, known_counts, ignored_counts = _PairTerms.collect(pairs)
        term_counts = np.array([len(pair.query.terms) for pair in pairs])
        matches_of_terms = np.repeat(passage_counts, term_counts)
        term_numbers = np.repeat(np.arange(len(terms)), matches_of_terms)
        passage_numbers = join_ranges(np.repeat(first_passages, term_counts), matches_of_terms)

        # Compute how often each term occurs in each passage: first with all known queries, then
        # without the ones to ignore.
        matched_terms = [terms[number] for number in term_numbers.tolist()]
        frequencies = self._text_frequencies(matched_terms, passage_rows[passage_numbers])
        frequencies += weight * known_counts[term_numbers]
        had_term = frequencies > 0
        ignored_frequencies = weight * ignored_counts[term_numbers]
        frequencies[had_term] -= ignored_frequencies[had_term]
        has_term = frequencies > 0

        # The number of passages that contain each term. Without the known queries to ignore, some
        # passages of the document do not contain it any more.
        if self.reference is None:
            first_matches = np.cumsum(matches_of_terms) - matches_of_terms
            is_lost = had_term & ~has_term
            lost = np.add.reduceat(is_lost.astype(np.int64), first_matches)
            containing = np.array(self.count_passages(terms)) - lost
        else:
            containing = np.array(self.reference.count_passages(terms))
        passages = self._statistics.passages
        idf = [inverse_document_frequency(count, passages) for count in containing.tolist()]

        # Sum the formula of BM25 over the terms of each passage, in the order of the query.
        remaining = frequencies[has_term]
        scored_passages = passage_numbers[has_term]
        saturated = remaining / (remaining + length_norms[scored_passages])
        factors = (query_counts * np.array(idf))[term_numbers]
        weights = factors[has_term] * saturated
        scores = np.bincount(scored_passages, weights, len(passage_rows)).astype(np.float32)
        return np.maximum.reduceat(scores, first_passages)

    def _length_norms_ignoring(
        self, pairs: Sequence[_PairWithout], rows: np.ndarray, passage_counts: np.ndarray
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
            ignored_terms = np.array([pair.left_out.total() for pair in pairs])
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
        which takes longer for many queries with rare terms.
        """
        terms = {term for query in queries for term in query.terms}
        missing = sorted(term for term in terms if self._cached_weights.get(term) is None)
        columns, rows, weights = self._weights_of_postings(missing)
        # Position of each term's first posting, then the number of postings.
        starts = np.searchsorted(columns, np.arange(len(missing) + 1)).tolist()
        for number, term in enumerate(missing):
            postings = slice(starts[number], starts[number + 1])
            self._cached_weights.put(term, self._pack_weights(rows[postings], weights[postings]))

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


def inverse_document_frequency(containing: int, passages: int) -> float:
    """Return idf(t) for a term that occurs in `containing` of `passages` passages."""
    return math.log(1 + (passages - containing + 0.5) / (containing + 0.5))


def join_ranges(first: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the numbers of several ranges, one range after the other.

    >>> join_ranges(np.array([7, 3]), np.array([2, 3])).tolist()
    [7, 8, 3, 4, 5]

    Args:
        first: First number of each range, shape (r,).
        sizes: Number of numbers in each range, shape (r,).
    """
    offsets = np.cumsum(sizes) - sizes
    within = np.arange(sizes.sum()) - np.repeat(offsets, sizes)
    return np.repeat(first, sizes) + within


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
