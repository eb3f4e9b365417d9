"""Measure the effect of known queries and IncDSI on new documents that arrive with queries.

A known query is a query that a document is known to answer. It can be used in two ways: its words
count as words of the document in BM25, and IncDSI solves the vector of the document for it.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from experiments.asked.known import KnownPair
from experiments.asked.memory import Collection
from experiments.asked.search import (
    CUTOFF,
    FusionSearch,
    Normalizer,
    Weights,
    WordSettings,
    bm25_weights,
    evaluate,
)
from model_code.incdsi.settings import AdditionSettings
from model_code.incdsi.solver import HingeProblem, minimize_problem

# Largest number of problems that are solved for one document.
MAX_ROUNDS = 30
# A constraint counts as violated if its limit is exceeded by more than this.
VIOLATION_TOLERANCE = 1e-9
# Bound on the rounding error of a score in single precision.
ROUNDING_ERROR = 1e-3
# Smallest BM25 score that scores are divided by.
MIN_HIGHEST_BM25 = 1e-9
# Smaller counts of terms are rounding errors.
ZERO_COUNT = 1e-9


@dataclass(frozen=True)
class Arrival:
    """A division of a collection: old documents, new documents that arrive, and queries for both.

    Attributes:
        old: Numbers of the documents that the collection has before.
        new: Numbers of the documents that arrive, in the order of their arrival.
        old_known: Ids of known queries of old documents.
        row_queries: Ids of the known queries that a new document arrives with, by its number.
        old_queries: Ids of the queries that are evaluated for old documents.
        new_queries: Ids of the queries that are evaluated for new documents.
        qrels: Relevant document numbers of each query id.
        in_place: Whether the new documents are in the collection from the start, and only their
            queries arrive, as with thumbs up.
    """

    old: np.ndarray
    new: np.ndarray
    old_known: Sequence[str]
    row_queries: Mapping[int, Sequence[str]]
    old_queries: Sequence[str]
    new_queries: Sequence[str]
    qrels: Mapping[str, set[int]]
    in_place: bool = False


@dataclass(frozen=True)
class IncDsi:
    """Settings of IncDSI's objective; see `FusedSolver`.

    Attributes:
        gamma1: Margin by which a new document must score above its best rival, in units of the
            fused score.
        gamma2: Margin by which it must score below the documents of known queries.
        lambda2: Weight of the distance from the plain encoding.
        lambda1: Weight of the new document's queries; known queries weigh 1 - lambda1.
        guard: Whether a known query that the plain encoding violates limits the document to the
            score of its encoding, instead of pushing it further down.
    """

    gamma1: float
    gamma2: float
    lambda2: float
    lambda1: float = 0.5
    guard: bool = False

    @classmethod
    def shipped(cls) -> IncDsi:
        """Return the settings of the product."""
        shipped = AdditionSettings()
        return cls(shipped.gamma1, shipped.gamma2, shipped.lambda2, shipped.lambda1)


@dataclass(frozen=True)
class IndexingMethod:
    """A method of indexing arriving documents.

    Attributes:
        name: Name of the row in the table.
        words: Whose known queries count as words of their documents: "none", those of "arrivals"
            (new documents), or "all".
        incdsi: Settings of IncDSI. None: vectors are plain encodings.
        nearest: A document also scores by the vector of its nearest known query, with this
            penalty. None: only by its own vector.
    """

    name: str
    words: str = "none"
    incdsi: IncDsi | None = None
    nearest: float | None = None


def make_arrivals(collection: Collection, options: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the divisions of a collection for tuning and for testing, by name.

    Args:
        collection: The collection.
        options: Settings of the collection. With `cutoffs`, documents arrive by their dates;
            otherwise, random documents arrive.
        seed: Random seed.
    """
    if "cutoffs" in options:
        return dated_arrivals(collection, options, seed)
    return random_arrivals(collection, options, seed)


def random_arrivals(
    collection: Collection, options: Mapping[str, Any], seed: int
) -> dict[str, Arrival]:
    """Return two divisions in which random documents arrive.

    In the division "tuning" the documents have dev queries, and in "test" test queries. The two
    have no new document in common.
    """
    qrels = collection.dataset.qrels
    judged = sorted(set().union(*qrels["test"].values()))
    random = np.random.default_rng(seed)
    shuffled = random.permutation(judged)
    # The tuning division has a third as many new documents as the test division.
    number = options["new"]
    tuning = shuffled[: number // 3]
    tested = shuffled[number // 3 : number // 3 + number]
    return {
        "tuning": make_arrival(collection, tuning, "dev", options, random),
        "test": make_arrival(collection, tested, "test", options, random),
    }


def dated_arrivals(
    collection: Collection, options: Mapping[str, Any], seed: int
) -> dict[str, Arrival]:
    """Return a dev and a test division for each cut-off date.

    The new documents are those of the first months after the date.
    """
    random = np.random.default_rng(seed)
    dates = np.array(collection.dataset.dates)
    arrivals: dict[str, Arrival] = {}
    for cutoff in options["cutoffs"]:
        end = add_months(cutoff, options["months"])
        present = np.flatnonzero(dates < cutoff)
        new = np.flatnonzero((dates >= cutoff) & (dates < end))
        for split in ("dev", "test"):
            name = f"{split} {cutoff}"
            arrivals[name] = make_arrival(collection, new, split, options, random, present)
    return arrivals


def add_months(day: str, months: int) -> str:
    """Return the day that is a number of months later, in ISO format."""
    start = date.fromisoformat(day)
    total = start.month - 1 + months
    return start.replace(year=start.year + total // 12, month=total % 12 + 1).isoformat()


def make_arrival(
    collection: Collection,
    new: np.ndarray,
    split: str,
    options: Mapping[str, Any],
    random: np.random.Generator,
    old: np.ndarray | None = None,
) -> Arrival:
    """Divide the queries of a collection between old and new documents.

    Args:
        collection: The collection.
        new: Numbers of the documents that arrive.
        split: Split of the queries that are evaluated: "dev" or "test".
        options: Settings of the collection.
        random: Generator of random draws.
        old: Numbers of the old documents. None: all other documents.
    """
    qrels = collection.dataset.qrels
    new_set = set(new.tolist())
    if old is None:
        old = np.array([i for i in range(len(collection.dataset.ids)) if i not in new_set])
    old_set = set(old.tolist())

    # A train query is known for old documents if none of its documents arrives later. A query with
    # the text of a dev or test query is never known.
    old_known = []
    queries_of: dict[int, list[str]] = defaultdict(list)
    train = collection.texts.drop_held_out(sorted(qrels["train"]), [*qrels["dev"], *qrels["test"]])
    for query in train:
        relevant = qrels["train"][query]
        if relevant <= old_set:
            old_known.append(query)
        for document in relevant & new_set:
            queries_of[document].append(query)

    # A new document arrives with a share of its train queries, but with at least one.
    share = options.get("row_share", 1.0)
    row_queries = {}
    for document, queries in queries_of.items():
        row_queries[document] = queries[: max(1, round(share * len(queries)))]

    evaluated = sorted(qrels[split].items())
    new_queries = [query for query, relevant in evaluated if relevant & new_set]
    old_queries = [query for query, relevant in evaluated if relevant <= old_set]
    old_queries = random.permutation(old_queries)[: options["old_queries"]].tolist()

    all_qrels: dict[str, set[int]] = {}
    for split_qrels in qrels.values():
        all_qrels.update(split_qrels)
    return Arrival(old, new, old_known, row_queries, old_queries, new_queries, all_qrels)


class Experiment:
    """A collection with new documents, which are indexed by several methods and evaluated.

    Attributes:
        rows: Numbers of the documents in the matrices (n,): first the old ones, then the new ones.
        position: Row of each document in the matrices, by its number.
        old_count: Number of old documents.
        vectors: Encodings of the documents, (n, H).
        text_counts: Term counts of the documents' texts, (n, terms).
        normalizer: Distribution of the dense scores of the documents that are there at the start.
        present_count: Number of documents that are there at the start.
        old_constraints: Known queries of old documents that find their documents; see
            `FusedSolver.add_old_queries`. The key tells whose known queries count as words.
    """

    def __init__(
        self,
        collection: Collection,
        arrival: Arrival,
        words: WordSettings,
        weights: Mapping[str, Weights],
    ) -> None:
        """Prepare the matrices.

        Args:
            collection: Documents and queries with their encodings.
            arrival: Old and new documents, and their queries.
            words: How known queries count as words of their documents, if they do.
            weights: Weights of the fusion: "words" with known queries as words, "plain" without.
        """
        self.collection = collection
        self.arrival = arrival
        self.words = words
        self.weights = weights
        self.rows = np.concatenate([arrival.old, arrival.new])
        self.position = {int(document): i for i, document in enumerate(self.rows)}
        self.old_count = len(arrival.old)
        self.vectors = collection.documents.vectors[self.rows]
        self.tokens = collection.documents.tokens[self.rows]
        self.text_counts = collection.text_counts[self.rows]
        self.present_count = len(self.rows) if arrival.in_place else self.old_count
        self.normalizer = Normalizer.fit(self.vectors[: self.present_count])
        self.old_constraints: dict[str, Constraints] = {}
        self._selected: dict[str, list[KnownPair]] = {}

    def known_queries(self, which: str) -> list[KnownPair]:
        """Return the known queries of the old documents, the new ones, or both.

        Args:
            which: "none", "arrivals" or "all"; see `IndexingMethod.words`.

        Returns:
            Pairs of a document's row in the matrices and a query's row number.
        """
        pairs = []
        if which in ("arrivals", "all"):
            for document, queries in self.arrival.row_queries.items():
                for row in self.query_rows(queries):
                    pairs.append((self.position[document], row))
        if which == "all":
            pairs.extend(self.old_known_queries())
        return pairs

    def old_known_queries(self) -> list[KnownPair]:
        """Return the known queries of old documents, in the form of `known_queries`."""
        pairs = []
        for query in self.arrival.old_known:
            row = self.collection.query_rows[query]
            for document in self.arrival.qrels[query]:
                pairs.append((self.position[document], row))
        return pairs

    def selected_queries(self, which: str) -> list[KnownPair]:
        """Return the known queries that count as words, within the limits of the product.

        Args:
            which: "none", "arrivals" or "all"; see `IndexingMethod.words`.

        Returns:
            Pairs as by `known_queries`.
        """
        if which not in self._selected:
            self._selected[which] = self._in_product(
                self.collection.texts.select, self.known_queries(which)
            )
        return self._selected[which]

    @cached_property
    def protected_queries(self) -> list[KnownPair]:
        """Known queries of old documents that IncDSI protects, in the form of `known_queries`."""
        return self._in_product(self.collection.texts.limit, self.old_known_queries())

    def _in_product(
        self, choose: Callable[[Sequence[KnownPair]], list[KnownPair]], pairs: Sequence[KnownPair]
    ) -> list[KnownPair]:
        """Choose among pairs by a rule of the product, which counts documents in the collection."""
        numbered = [(int(self.rows[position]), row) for position, row in pairs]
        return [(self.position[document], row) for document, row in choose(numbered)]

    def known_counts(self, which: str) -> sparse.csr_matrix:
        """Return the term counts (n, terms) of the known queries of each document.

        Args:
            which: See `selected_queries`.
        """
        return self.collection.count_pairs(self.selected_queries(which), len(self.rows))

    def known_vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors (m, H) of all known queries, and the row (m,) of each document."""
        pairs = self.known_queries("all")
        positions = np.array([position for position, _ in pairs])
        queries = np.array([query for _, query in pairs])
        return self.collection.queries.vectors[queries], positions

    def query_rows(self, queries: Sequence[str]) -> list[int]:
        """Return the row numbers of queries."""
        return [self.collection.query_rows[query] for query in queries]

    def bm25(self, which: str) -> sparse.csr_matrix:
        """Return the BM25 weights (n, terms); for `which` see `IndexingMethod.words`."""
        known_counts = self.known_counts(which)
        words = self.words if known_counts.nnz else WordSettings()
        return bm25_weights(self.text_counts, known_counts, words)

    def evaluate(self, method: IndexingMethod) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Index the new documents by one method, and evaluate the search.

        Returns:
            nDCG@10 of the queries for old documents, nDCG@10 of the queries for new documents, and
            facts about the solver.
        """
        bm25 = self.bm25(method.words)
        kind = "plain" if method.words == "none" else "words"
        weights = self.weights[kind]
        vectors = self.vectors
        facts: dict[str, Any] = {}
        if method.incdsi is not None:
            vectors, facts = self.refine(method, bm25, weights)

        alternatives = None
        if method.nearest is not None:
            alternatives = (*self.known_vectors(), method.nearest)
        search = FusionSearch(vectors, self.tokens, bm25, self.normalizer, alternatives)
        old_scores = self._evaluate_queries(search, self.arrival.old_queries, weights)
        new_scores = self._evaluate_queries(search, self.arrival.new_queries, weights)
        return old_scores, new_scores, facts

    def queries_with_known(self, queries: Sequence[str]) -> np.ndarray:
        """Return whether a relevant document of each query (q,) has a known query."""
        known = {int(self.rows[position]) for position, _ in self.known_queries("all")}
        return np.array([not known.isdisjoint(self.arrival.qrels[query]) for query in queries])

    def _evaluate_queries(
        self, search: FusionSearch, queries: Sequence[str], weights: Weights
    ) -> np.ndarray:
        """Return nDCG@10 (q,) of queries, by their ids."""
        rows = np.array(self.query_rows(queries))
        vectors = self.collection.queries.vectors[rows]
        tokens = self.collection.queries.tokens[rows]
        candidates = search.candidates(vectors, tokens, self.collection.query_counts[rows])

        # Documents that are neither old nor new here cannot be found, so they do not count.
        relevant = []
        for query in queries:
            documents = self.arrival.qrels[query] & self.position.keys()
            relevant.append({self.position[document] for document in documents})
        return evaluate(search, candidates, vectors, relevant, weights)

    def refine(
        self, method: IndexingMethod, bm25: sparse.csr_matrix, weights: Weights
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Solve the vector of each arriving document that brings queries, one after the other.

        Returns:
            The vectors of all documents (n, H), and facts about the solver: the number of
            constraints, and the time.
        """
        assert method.incdsi is not None
        solver = FusedSolver(self, method, bm25, weights)
        # The constraints of old documents depend on the words, and not on the settings of IncDSI.
        if method.words not in self.old_constraints:
            solver.add_old_queries()
            self.old_constraints[method.words] = solver.constraints.copy()
        solver.constraints = self.old_constraints[method.words].copy()
        started = time.perf_counter()
        solved = 0
        for document in self.arrival.new:
            queries = self.arrival.row_queries.get(int(document), ())
            if queries:
                solver.solve(self.position[int(document)], self.query_rows(queries))
                solved += 1
            else:
                solver.add_plain(self.position[int(document)])
        milliseconds = 1000 * (time.perf_counter() - started)
        facts = {
            "constraints": len(solver.constraints),
            "milliseconds_per_document": round(milliseconds / max(1, solved), 1),
        }
        return solver.vectors, facts


class Constraints:
    """Known queries that must still find their documents when a new document is added.

    The arrays are allocated once, for the known queries of all old and new documents.
    """

    def __init__(self, experiment: Experiment) -> None:
        arrival = experiment.arrival
        self._queries = experiment.collection.queries.vectors
        self._normalizer = experiment.normalizer
        capacity = len(experiment.protected_queries)
        for queries in arrival.row_queries.values():
            capacity += len(queries)
        self._rows = np.empty(capacity, np.int64)
        self._vectors = np.empty((capacity, self._queries.shape[1]), np.float32)
        # Rows: mean, deviation, own score, highest BM25 score; see the properties below.
        self._numbers = np.empty((4, capacity))
        # Number of constraints so far. Later entries of the arrays are not used yet.
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def copy(self) -> Constraints:
        """Return a copy with the same constraints, to which others can be added."""
        other = copy.copy(self)
        other._rows = self._rows.copy()
        other._vectors = self._vectors.copy()
        other._numbers = self._numbers.copy()
        return other

    def add(self, query: int, own_score: float, highest_bm25: float) -> None:
        """Add a known query as a constraint.

        Args:
            query: Row number of the query.
            own_score: Fused score of the query's own document.
            highest_bm25: Highest BM25 score of any document for the query.
        """
        mean, deviation = self._normalizer.moments(self._queries[query : query + 1])
        self._rows[self._size] = query
        self._vectors[self._size] = self._queries[query]
        self._numbers[:, self._size] = (mean[0], deviation[0], own_score, highest_bm25)
        self._size += 1

    @property
    def rows(self) -> np.ndarray:
        """Row numbers (m,) of the queries."""
        return self._rows[: self._size]

    @property
    def vectors(self) -> np.ndarray:
        """Vectors (m, H) of the queries."""
        return self._vectors[: self._size]

    @property
    def means(self) -> np.ndarray:
        """Mean (m,) of each query's inner products with the old documents."""
        return self._numbers[0, : self._size]

    @property
    def deviations(self) -> np.ndarray:
        """Standard deviation (m,) of each query's inner products with the old documents."""
        return self._numbers[1, : self._size]

    @property
    def scores(self) -> np.ndarray:
        """Fused score (m,) of each query's own document."""
        return self._numbers[2, : self._size]

    @property
    def highest(self) -> np.ndarray:
        """Highest BM25 score (m,) of each query."""
        return self._numbers[3, : self._size]


class Hinges(NamedTuple):
    """Hinges of queries; see `HingeProblem`.

    Attributes:
        rows: Vectors of the hinges, (m, H).
        limits: Scores above which a hinge is positive, (m,).
        weights: Weights of the hinges, (m,).
    """

    rows: np.ndarray
    limits: np.ndarray
    weights: np.ndarray


class FusedSolver:
    """Solve IncDSI on the fused score.

        s(q, v) = (q.v - mean_q) / deviation_q + w bm25(q, d) / max bm25(q)

    s is the fused score of a document d with vector v for a query q. w is the weight of BM25. For a
    new document with queries q_k, plain encoding v0, and known queries z_j of documents that are in
    the collection, the solver minimises

        L(v) = l1 mean_k h(M_k + g1 - s(q_k, v)) + (1 - l1) sum_j h(s(z_j, v) - s_j + g2)
               + l2 |v - v0|^2,        h(x) = max(0, x)^2

    M_k is the best fused score of another document for q_k, and s_j the fused score of z_j's own
    document. Only known queries that find their document among the first ten are constraints, and
    only if the new document does not bring the same query.

    A known query of a document would match its own words in the document exactly. Its words are
    therefore left out of the document's words when the query itself is scored.
    """

    def __init__(
        self,
        experiment: Experiment,
        method: IndexingMethod,
        bm25: sparse.csr_matrix,
        weights: Weights,
    ) -> None:
        assert method.incdsi is not None
        self.experiment = experiment
        self.settings = method.incdsi
        self.words = experiment.words if method.words != "none" else WordSettings()
        self.known_as_words = method.words
        self.bm25 = bm25.tocsr()
        self.by_term = bm25.T.tocsr()
        self.weight = weights.bm25
        self.vectors = experiment.vectors.copy()
        # Whether each document (n,) is in the collection already.
        self.present = np.zeros(len(self.vectors), bool)
        self.present[: experiment.present_count] = True
        self.constraints = Constraints(experiment)
        self.query_vectors = experiment.collection.queries.vectors
        self.query_counts = experiment.collection.query_counts
        self.known = experiment.known_counts(self.known_as_words)
        # Row of the known query that counts as words, by document and number of its text.
        self.text_numbers = experiment.collection.texts.numbers
        self.word_rows: dict[tuple[int, int], int] = {}
        for position, row in experiment.selected_queries(self.known_as_words):
            self.word_rows[position, int(self.text_numbers[row])] = row

        # Number of documents that contain each term, (terms,), and BM25's idf.
        frequency = np.bincount(self.bm25.indices, minlength=self.bm25.shape[1])
        documents = self.bm25.shape[0]
        self.idf = np.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))

    def score_without_query(self, position: int, query: int) -> float:
        """Return a document's BM25 score for a known query, without the query's own words.

        The weight of a term in a document is idf c / (c + norm), where c counts the term in the
        text and the known queries. The norm is computed from the present weight and count. With it,
        the smaller count without this query gives the weight without this query.

        Args:
            position: Row of the document in the matrices.
            query: Row number of the query.
        """
        weight_of = _row_values(self.bm25, position)
        text_count_of = _row_values(self.experiment.text_counts, position)
        known_count_of = _row_values(self.known, position)
        # The query counts as words unless it is beyond a limit, or a near-duplicate of another one.
        counted_of: dict[int, float] = {}
        word_row = self.word_rows.get((position, int(self.text_numbers[query])))
        if word_row is not None and self.words.weight:
            counted_of = _row_values(self.query_counts, word_row)

        total = 0.0
        for term, count_in_query in _row_values(self.query_counts, query).items():
            weight = weight_of.get(term, 0.0)
            if weight and term in counted_of:
                count = text_count_of.get(term, 0.0)
                count += self.words.weight * known_count_of[term]
                norm = count * (self.idf[term] / weight - 1)
                count_without = count - self.words.weight * counted_of[term]
                weight = 0.0
                if count_without > ZERO_COUNT:
                    weight = self.idf[term] * count_without / (count_without + norm)
            total += count_in_query * weight
        return total

    def add_old_queries(self, chunk: int = 128) -> None:
        """Add known queries of old documents as constraints, at most as many as the product.

        Only queries that find their document among the first ten become constraints.
        """
        pairs = self.experiment.protected_queries
        old = slice(0, self.experiment.present_count)
        for start in range(0, len(pairs), chunk):
            part = pairs[start : start + chunk]
            # Document and query of each pair, (p,). The matrices below have the shape (p, n).
            own_documents = np.array([position for position, _ in part])
            rows = np.array([row for _, row in part])
            dense, bm25 = self.scores(rows)
            pair_numbers = np.arange(len(part))
            bm25[pair_numbers, own_documents] = [
                self.score_without_query(position, row) for position, row in part
            ]
            highest = np.maximum(bm25[:, old].max(axis=1), MIN_HIGHEST_BM25)
            fused = dense[:, old] + self.weight * bm25[:, old] / highest[:, None]
            own_scores = fused[pair_numbers, own_documents]
            ranks = (fused > own_scores[:, None]).sum(axis=1)
            for i in np.flatnonzero(ranks < CUTOFF):
                self.constraints.add(int(rows[i]), float(own_scores[i]), float(highest[i]))

    def scores(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the normalised dense scores (q, n) and the BM25 scores (q, n) of queries.

        Args:
            rows: Row numbers of the queries (q,).
        """
        vectors = self.query_vectors[rows]
        mean, deviation = self.experiment.normalizer.moments(vectors)
        dense = (vectors @ self.vectors.T - mean[:, None]) / deviation[:, None]
        bm25 = np.asarray((self.query_counts[rows] @ self.by_term).todense())
        return dense, bm25

    def add_plain(self, position: int) -> None:
        """Add a new document that has no queries, with its plain encoding."""
        self.present[position] = True

    def solve(self, position: int, queries: Sequence[int]) -> None:
        """Solve the vector of a new document, and add the document.

        Its queries become constraints of the documents that are added later.

        Args:
            position: Row of the document in the matrices.
            queries: Row numbers of its queries.
        """
        settings = self.settings
        prior = self.vectors[position].astype(np.float64)
        rows = np.array(queries)
        dense, bm25 = self.scores(rows)
        own_bm25 = np.array([self.score_without_query(position, query) for query in queries])
        bm25[:, position] = own_bm25

        # Best fused score of another document for each of the q queries, (q,).
        others = self.present.copy()
        others[position] = False
        highest = np.maximum(bm25[:, others].max(axis=1), own_bm25)
        highest = np.maximum(highest, MIN_HIGHEST_BM25)
        fused = dense + self.weight * bm25 / highest[:, None]
        best_rival = fused[:, others].max(axis=1)

        # The fused score of the document with vector v is query v / deviation + shift. It has to
        # be at least `best_rival` plus the margin, so rows and limits are negated.
        vectors = self.query_vectors[rows].astype(np.float64)
        mean, deviation = self.experiment.normalizer.moments(vectors)
        shift = -mean / deviation + self.weight * own_bm25 / highest
        own_hinges = Hinges(
            rows=-vectors / deviation[:, None],
            limits=-(best_rival + settings.gamma1) + shift,
            weights=np.full(len(queries), settings.lambda1 / len(queries)),
        )
        vector = self._minimise(prior, own_hinges, self._known_limits(position, rows))

        self.vectors[position] = vector
        self.present[position] = True
        final_scores = (vectors @ vector) / deviation + shift
        ranks = (fused[:, others] > final_scores[:, None]).sum(axis=1)
        for i in np.flatnonzero(ranks < CUTOFF):
            self.constraints.add(int(rows[i]), float(final_scores[i]), float(highest[i]))

    def _known_limits(self, position: int, own_queries: np.ndarray) -> np.ndarray:
        """Return the limits of the constraints (m,) for a new document.

        If z.v / deviation of a constraint is above its limit, the document comes too near to the
        constraint's own document.

        Args:
            position: Row of the new document in the matrices.
            own_queries: Row numbers of its queries. A query that both documents answer has no
                limit.
        """
        constraints = self.constraints
        # BM25 scores of the document for all queries, and for those of the constraints.
        weights = self.bm25[position].toarray().ravel()
        bm25 = (self.query_counts @ weights)[constraints.rows]
        bm25_parts = self.weight * bm25 / np.maximum(constraints.highest, bm25)
        max_scores = constraints.scores - self.settings.gamma2
        limits = max_scores + constraints.means / constraints.deviations - bm25_parts
        if self.settings.guard:
            prior = self.vectors[position]
            limits = np.maximum(limits, constraints.vectors @ prior / constraints.deviations)
        own_texts = self.text_numbers[own_queries]
        limits[np.isin(self.text_numbers[constraints.rows], own_texts)] = np.inf
        return limits

    def _minimise(self, prior: np.ndarray, own: Hinges, known_limits: np.ndarray) -> np.ndarray:
        """Return the vector (H,) that minimises the objective of a new document.

        The problem begins with the hinges of the document's own queries. In each round, the
        constraints that the last vector violates are added.

        Args:
            prior: The plain encoding of the document, (H,).
            own: Hinges of the document's own queries.
            known_limits: Limits of the constraints (m,).
        """
        known_vectors = self.constraints.vectors
        known_deviations = self.constraints.deviations
        vector = prior
        # Whether each constraint (m,) is in the problem.
        members = np.zeros(len(known_limits), bool)
        for round_number in range(MAX_ROUNDS):
            violated = self._find_violated(vector, known_limits) & ~members
            # The first vector is only the prior, which does not minimise anything yet.
            is_first_round = round_number == 0
            if not is_first_round and not violated.any():
                break
            members |= violated
            chosen = np.flatnonzero(members)
            chosen_rows = known_vectors[chosen].astype(np.float64)
            chosen_rows = chosen_rows / known_deviations[chosen, None]
            known_weights = np.full(len(chosen), 1 - self.settings.lambda1)
            problem = HingeProblem(
                np.concatenate([own.rows, chosen_rows]),
                np.concatenate([own.limits, known_limits[chosen]]),
                np.concatenate([own.weights, known_weights]),
                prior,
                self.settings.lambda2,
            )
            vector, _ = minimize_problem(problem)
            if not violated.any():
                break
        return vector

    def _find_violated(self, vector: np.ndarray, known_limits: np.ndarray) -> np.ndarray:
        """Return which constraints (m,) a vector (H,) violates.

        Products in single precision find the constraints that may be violated, which are tested in
        double precision.
        """
        vectors = self.constraints.vectors
        deviations = self.constraints.deviations
        products = (vectors @ vector.astype(np.float32)) / deviations
        violated = products > known_limits - ROUNDING_ERROR
        rows = np.flatnonzero(violated)
        scores = (vectors[rows].astype(np.float64) @ vector) / deviations[rows]
        violated[rows] = scores > known_limits[rows] + VIOLATION_TOLERANCE
        return violated


def _row_values(matrix: sparse.csr_matrix, row: int) -> dict[int, float]:
    """Return the stored values of a row, by column."""
    values = slice(matrix.indptr[row], matrix.indptr[row + 1])
    return dict(zip(matrix.indices[values].tolist(), matrix.data[values].tolist(), strict=True))
