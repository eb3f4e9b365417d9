"""Measure the effect of known queries and IncDSI on new documents that arrive with queries.

A known query is a query that a document is known to answer. It can be used in two ways: its words
count as words of the document in BM25, and IncDSI solves the vector of the document for it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from experiments.asked.memory import Collection
from experiments.asked.search import (
    FusionSearch,
    Normalizer,
    Weights,
    Words,
    bm25_weights,
    evaluate,
)
from model_code.incdsi.solver import HingeProblem, minimize_problem

MAX_ROUNDS = 30


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
    """

    old: np.ndarray
    new: np.ndarray
    old_known: Sequence[str]
    row_queries: Mapping[int, Sequence[str]]
    old_queries: Sequence[str]
    new_queries: Sequence[str]
    qrels: Mapping[str, set[int]]


@dataclass(frozen=True)
class IncDsi:
    """Settings of IncDSI's objective; see `FusedSolver`.

    Attributes:
        gamma1: Margin by which a new document must score above its best rival, in units of the
            fused score.
        gamma2: Margin by which it must score below the documents of known queries.
        lambda2: Weight of the distance from the plain encoding.
        lambda1: Weight of the new document's queries; known queries weigh 1 - lambda1.
    """

    gamma1: float
    gamma2: float
    lambda2: float
    lambda1: float = 0.5


@dataclass(frozen=True)
class Way:
    """A way to index arriving documents.

    Attributes:
        name: Name of the row in the table.
        words: Whose known queries count as words of their documents: "none", those of "arrivals"
            (new documents), or "all".
        incdsi: Settings of IncDSI. None: vectors are plain encodings.
    """

    name: str
    words: str = "none"
    incdsi: IncDsi | None = None


def arrivals_of(collection: Collection, options: Mapping[str, Any], seed: int) -> dict[str, Any]:
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
    judged = sorted({document for rows in qrels["test"].values() for document in rows})
    random = np.random.default_rng(seed)
    shuffled = random.permutation(judged)
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

    old_known = [query for query, rows in sorted(qrels["train"].items()) if rows <= old_set]
    queries_of: dict[int, list[str]] = defaultdict(list)
    for query, rows in sorted(qrels["train"].items()):
        for document in rows & new_set:
            queries_of[document].append(query)
    share = options.get("row_share", 1.0)
    row_queries = {
        document: queries[: max(1, round(share * len(queries)))]
        for document, queries in queries_of.items()
    }

    judging = {query: rows for query, rows in sorted(qrels[split].items())}
    new_queries = [query for query, rows in judging.items() if rows & new_set]
    old_queries = [query for query, rows in judging.items() if rows <= old_set]
    old_queries = random.permutation(old_queries)[: options["old_queries"]].tolist()
    all_qrels = {query: rows for part in qrels.values() for query, rows in part.items()}
    return Arrival(old, new, old_known, row_queries, old_queries, new_queries, all_qrels)


class Experiment:
    """A collection with new documents, which are indexed in several ways and evaluated."""

    def __init__(
        self, collection: Collection, arrival: Arrival, words: Words, weights: Mapping[str, Weights]
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
        self.place = {int(document): i for i, document in enumerate(self.rows)}
        self.old_count = len(arrival.old)
        self.vectors = collection.documents.vectors[self.rows]
        self.tokens = collection.documents.tokens[self.rows]
        self.text_counts = collection.text_counts[self.rows]
        self.normalizer = Normalizer.fit(self.vectors[: self.old_count])

    def known_queries(self, which: str) -> list[tuple[int, int]]:
        """Return the known queries that count as words.

        Args:
            which: "none", "arrivals" or "all"; see `Way.words`.

        Returns:
            Pairs of a document's row in the matrices and a query's row number.
        """
        pairs = []
        if which in ("arrivals", "all"):
            for document, queries in self.arrival.row_queries.items():
                pairs.extend((self.place[document], row) for row in self.query_rows(queries))
        if which == "all":
            for query in self.arrival.old_known:
                row = self.collection.query_rows[query]
                pairs.extend((self.place[d], row) for d in self.arrival.qrels[query])
        return pairs

    def query_rows(self, queries: Sequence[str]) -> list[int]:
        """Return the row numbers of queries."""
        return [self.collection.query_rows[query] for query in queries]

    def bm25(self, which: str) -> sparse.csr_matrix:
        """Return the BM25 weights (n, terms); for `which` see `Way.words`."""
        pairs = self.known_queries(which)
        places = [place for place, _ in pairs]
        queries = [query for _, query in pairs]
        shape = (len(self.rows), len(self.collection.dataset.queries))
        answers = sparse.csr_matrix((np.ones(len(pairs)), (places, queries)), shape)
        known = (answers @ self.collection.query_counts).tocsr()
        words = self.words if pairs else Words()
        return bm25_weights(self.text_counts, known, words)

    def evaluate(self, way: Way) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Index the new documents in one way, and evaluate the search.

        Returns:
            nDCG@10 of the queries for old documents, nDCG@10 of the queries for new documents, and
            facts about the solver.
        """
        bm25 = self.bm25(way.words)
        kind = "plain" if way.words == "none" else "words"
        weights = self.weights[kind]
        vectors = self.vectors
        facts: dict[str, Any] = {}
        if way.incdsi is not None:
            vectors, facts = self.refine(way, bm25, weights)

        search = FusionSearch(vectors, self.tokens, bm25, self.normalizer)
        values = []
        for queries in (self.arrival.old_queries, self.arrival.new_queries):
            rows = np.array(self.query_rows(queries))
            relevant = []
            for query in queries:
                documents = self.arrival.qrels[query]
                relevant.append({self.place[d] for d in documents if d in self.place})
            found = search.candidates(
                self.collection.queries.vectors[rows],
                self.collection.queries.tokens[rows],
                self.collection.query_counts[rows],
            )
            values.append(
                evaluate(search, found, self.collection.queries.vectors[rows], relevant, weights)
            )
        return values[0], values[1], facts

    def refine(
        self, way: Way, bm25: sparse.csr_matrix, weights: Weights
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Solve the vector of each arriving document that brings queries, one after the other."""
        assert way.incdsi is not None
        solver = FusedSolver(self, way, bm25, weights)
        started = time.perf_counter()
        solver.add_old_queries()
        prepared = time.perf_counter()
        solved = 0
        for document in self.arrival.new:
            queries = self.arrival.row_queries.get(int(document), ())
            if queries:
                solver.solve(self.place[int(document)], self.query_rows(queries))
                solved += 1
            else:
                solver.keep(self.place[int(document)])
        facts = {
            "constraints": len(solver.constraints),
            "prepare_seconds": round(prepared - started, 1),
            "milliseconds_per_document": round(
                1000 * (time.perf_counter() - prepared) / max(1, solved), 1
            ),
        }
        return solver.vectors, facts


class Constraints:
    """Known queries that must still find their documents when a new document is added.

    The arrays are allocated once, for the known queries of all old and new documents.
    """

    def __init__(self, experiment: Experiment) -> None:
        collection = experiment.collection
        self._queries = collection.queries.vectors
        self._normalizer = experiment.normalizer
        arriving = sum(map(len, experiment.arrival.row_queries.values()))
        old = sum(len(experiment.arrival.qrels[query]) for query in experiment.arrival.old_known)
        capacity = old + arriving
        self._rows = np.empty(capacity, np.int64)
        self._vectors = np.empty((capacity, self._queries.shape[1]), np.float32)
        self._numbers = np.empty((4, capacity))
        self._size = 0

    def __len__(self) -> int:
        return self._size

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
    document. Only known queries that find their document among the first ten are constraints.

    A known query of a document would match its own words in the document exactly. Its words are
    therefore left out of the document's words when the query itself is scored.
    """

    def __init__(
        self, experiment: Experiment, way: Way, bm25: sparse.csr_matrix, weights: Weights
    ) -> None:
        assert way.incdsi is not None
        self.experiment = experiment
        self.settings = way.incdsi
        self.words = experiment.words if way.words != "none" else Words()
        self.known_places = way.words
        self.bm25 = bm25.tocsr()
        self.by_term = bm25.T.tocsr()
        self.weight = weights.bm25
        self.vectors = experiment.vectors.copy()
        self.present = np.zeros(len(self.vectors), bool)
        self.present[: experiment.old_count] = True
        self.constraints = Constraints(experiment)
        self.query_vectors = experiment.collection.queries.vectors
        self.query_counts = experiment.collection.query_counts
        counts = bm25.copy()
        counts.data[:] = 1
        frequency = np.bincount(counts.indices, minlength=counts.shape[1])
        documents = counts.shape[0]
        self.idf = np.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))

    def share_without(self, place: int, query: int) -> float:
        """Return a document's BM25 score for a known query, without the query's own words.

        The weight of a term in a document is idf c / (c + norm), where c counts the term in the
        text and the known queries. The norm is computed from the present weight and count. With it,
        the smaller count without this query gives the weight without this query.

        Args:
            place: Row of the document in the matrices.
            query: Row number of the query.
        """
        terms = self.query_counts[query]
        row = self.bm25[place]
        weight_of = dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))
        text_row = self.experiment.text_counts[place]
        text_of = dict(zip(text_row.indices.tolist(), text_row.data.tolist(), strict=True))
        is_word = self.known_places == "all" or (
            self.known_places == "arrivals" and place >= self.experiment.old_count
        )
        total = 0.0
        for term, times in zip(terms.indices.tolist(), terms.data.tolist(), strict=True):
            weight = weight_of.get(term, 0.0)
            if weight and is_word and self.words.weight:
                known = self._known_count(place, term)
                count = text_of.get(term, 0.0) + self.words.weight * known
                norm = count * (self.idf[term] / weight - 1)
                without = count - self.words.weight * times
                weight = self.idf[term] * without / (without + norm) if without > 1e-9 else 0.0
            total += times * weight
        return total

    def _known_count(self, place: int, term: int) -> float:
        return float(self.known[place, term])

    def add_old_queries(self, chunk: int = 128) -> None:
        """Add known queries of old documents as constraints.

        Only queries that find their document among the first ten become constraints.
        """
        experiment = self.experiment
        pairs = []
        for query in experiment.arrival.old_known:
            row = experiment.collection.query_rows[query]
            for document in experiment.arrival.qrels[query]:
                pairs.append((experiment.place[document], row))
        known_pairs = experiment.known_queries(self.known_places)
        shape = (len(experiment.rows), len(experiment.collection.dataset.queries))
        places = [place for place, _ in known_pairs]
        queries = [query for _, query in known_pairs]
        answers = sparse.csr_matrix((np.ones(len(known_pairs)), (places, queries)), shape)
        self.known = (answers @ self.query_counts).tocsr()

        old = slice(0, experiment.old_count)
        for start in range(0, len(pairs), chunk):
            part = pairs[start : start + chunk]
            rows = np.array([row for _, row in part])
            own = np.array([place for place, _ in part])
            dense, bm25 = self.scores(rows)
            numbers = np.arange(len(part))
            bm25[numbers, own] = [self.share_without(place, row) for place, row in part]
            highest = np.maximum(bm25[:, old].max(axis=1), 1e-9)
            fused = dense[:, old] + self.weight * bm25[:, old] / highest[:, None]
            own_scores = fused[numbers, own]
            ranks = (fused > own_scores[:, None]).sum(axis=1)
            for i in np.flatnonzero(ranks < 10):
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

    def keep(self, place: int) -> None:
        """Add a new document that has no queries, with its plain encoding."""
        self.present[place] = True

    def solve(self, place: int, queries: Sequence[int]) -> None:
        """Solve the vector of a new document, and add the document.

        Its queries become constraints of the documents that are added later.

        Args:
            place: Row of the document in the matrices.
            queries: Row numbers of its queries.
        """
        settings = self.settings
        prior = self.vectors[place].astype(np.float64)
        rows = np.array(queries)
        dense, bm25 = self.scores(rows)
        own = np.array([self.share_without(place, query) for query in queries])
        bm25[:, place] = own
        others = self.present.copy()
        others[place] = False
        highest = np.maximum(bm25[:, others].max(axis=1), own)
        highest = np.maximum(highest, 1e-9)
        fused = dense + self.weight * bm25 / highest[:, None]
        best = fused[:, others].max(axis=1)

        vectors = self.query_vectors[rows].astype(np.float64)
        mean, deviation = self.experiment.normalizer.moments(vectors)
        own_shift = -mean / deviation + self.weight * own / highest
        own_rows = -vectors / deviation[:, None]
        own_limits = -(best + settings.gamma1) + own_shift
        own_weights = np.full(len(queries), settings.lambda1 / len(queries))

        own_hinges = Hinges(own_rows, own_limits, own_weights)
        vector = self._minimise(prior, own_hinges, self._known_limits(place))

        self.vectors[place] = vector
        self.present[place] = True
        final = (vectors @ vector) / deviation + own_shift
        fused[:, place] = final
        ranks = (fused[:, others] > final[:, None]).sum(axis=1)
        for i in np.flatnonzero(ranks < 10):
            self.constraints.add(int(rows[i]), float(final[i]), float(highest[i]))

    def _known_limits(self, place: int) -> np.ndarray:
        """Return the limits of the constraints (m,) for a new document.

        If z.v / deviation of a constraint is above its limit, the document comes too near to the
        constraint's own document.
        """
        known = self.constraints
        all_bm25 = np.asarray((self.query_counts @ self.bm25[place].T).todense()).ravel()
        bm25 = all_bm25[known.rows]
        shares = self.weight * bm25 / np.maximum(known.highest, bm25)
        return known.scores - self.settings.gamma2 + known.means / known.deviations - shares

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
        members = np.zeros(len(known_limits), bool)
        for _ in range(MAX_ROUNDS):
            scores = (known_vectors @ vector) / known_deviations
            violated = (scores > known_limits + 1e-9) & ~members
            if not violated.any() and members.any():
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
