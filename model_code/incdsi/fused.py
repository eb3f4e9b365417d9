"""Solve the vectors of new documents for the fused score, so that their queries find them.

IncDSI (Kishore et al., 2023) solves the vector of a new document for the score of the encoder. Here
the score is the fused one, s(q, v) of `fused_scores`, since that is what users search. It is affine
in v, so the program stays convex. For a new document with queries q_k and encoding v0, and known
queries z_j of older documents, v minimises

    L(v) = l1 mean_k h(M_k + g1 - s(q_k, v)) + (1 - l1) sum_j h(s(z_j, v) - s_j + g2)
           + l2 |v - v0|^2                                        with h(x) = max(0, x)^2

    M_k  best fused score of another document for q_k
    s_j  fused score of the older document for its known query z_j
    l1, g1, g2, l2  the settings lambda1, gamma1, gamma2 and lambda2

Each query of the document has a hinge. The BM25 share of a document for its own query is computed
without that query among its words: otherwise its own words win every query, and nothing moves.
Only known queries that find their document among the first ten are constraints, and none whose text
the new document brings as well: both documents answer it.

Documents are solved one after the other, in the order of the ledger. The queries of a solved
document that find it among the first ten become constraints of the next. A document that a later
change of the same call overwrites or deletes does not take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_code.collection.segments.segment import LoadedSegment, SegmentView
from model_code.collection.segments.solved import Member, SolvedDocument, SolvedQuery
from model_code.drift.statuses import Status
from model_code.incdsi.constraints import (
    FOUND_RANK,
    Constraints,
    PreparedConstraints,
    document_constraints,
)
from model_code.incdsi.fused_scores import MIN_HIGHEST_BM25, FusedScore
from model_code.incdsi.rows import float32_error, row_dots, row_norms, vector_norm
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.solver import BOUND_ENLARGEMENT, HingeProblem, minimize_problem
from model_code.text.known_queries import normalize_query

# Documents whose queries are scored together. It bounds the memory of the scores.
CHUNK_DOCUMENTS = 128

# Smaller violations are rounding, in units of the fused score.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Arrival:
    """A document of the new segment.

    Attributes:
        document_id: Its id.
        queries: The queries that its vector is solved for; empty if it keeps its encoding.
    """

    document_id: str
    queries: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class OwnQueries:
    """The queries of a document that is solved, with the scores of all other documents.

    Attributes:
        texts: The K queries.
        vectors: Their vectors, shape (K, H), float64.
        means: Mean of each query's products with the build, shape (K,).
        deviations: Their standard deviation, shape (K,).
        best_rivals: Best fused score M_k of another document for each query, shape (K,).
        rival_scores: Fused scores of the competitors for each query.
        shares: BM25 share of the document for each query, times its weight, shape (K,).
        highest_bm25: Largest BM25 score of any document for each query, shape (K,).
        dense_weight: Weight of the dense component.
    """

    texts: Sequence[str]
    vectors: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    best_rivals: np.ndarray
    rival_scores: Sequence[np.ndarray]
    shares: np.ndarray
    highest_bm25: np.ndarray
    dense_weight: float


@dataclass(frozen=True, eq=False)
class KnownQueries:
    """Known queries of older documents as limits of a new document's vector.

    Attributes:
        document_ids: Document of each of the m queries.
        texts: The queries.
        vectors: Their vectors z_j, shape (m, H), float32.
        lengths: Their norms, shape (m,).
        scales: Inner product that equals one unit of the fused score, shape (m,).
        limits: Largest inner product z_j.v that does not outrank the older document, shape (m,).
            It is infinite for queries that the new document answers as well, and for queries of
            deleted documents.
        prior: Encoding v0 (H,) of the new document, float64.
        prior_products: Products z_j.v0, shape (m,), float32.
    """

    document_ids: Sequence[str]
    texts: Sequence[str]
    vectors: np.ndarray
    lengths: np.ndarray
    scales: np.ndarray
    limits: np.ndarray
    prior: np.ndarray
    prior_products: np.ndarray

    def violated(self, vector: np.ndarray, margin: float) -> np.ndarray:
        """Return the rows that a vector (H,) violates, ascending.

        As z.v <= z.v0 + |z| |v - v0|, few rows can be violated. These are computed exactly.

        Args:
            vector: The vector, float64.
            margin: Margin gamma2, by which limits are lower.
        """
        limits = self.limits - margin * self.scales
        distance = vector_norm(vector - self.prior)
        rounding = float32_error(len(vector)) * vector_norm(self.prior)
        highest = self.prior_products + self.lengths * (distance + rounding) * BOUND_ENLARGEMENT
        rows = np.flatnonzero(highest > limits)
        exact = row_dots(np.asarray(self.vectors[rows], np.float32), vector)
        return rows[exact > limits[rows] + TOLERANCE * self.scales[rows]]

    def sorted_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return rows (k,) in the order of their documents and texts."""

        def key(row: int) -> tuple[str, str]:
            return self.document_ids[row], self.texts[row]

        return np.array(sorted(rows.tolist(), key=key), np.intp)


class FusedSolver:
    """Solves the vectors of the documents of one new segment.

    Attributes:
        vectors: Vectors of the new segment's rows, shape (n, H), float32. Solved documents have
            their solved vectors, and all others their encodings.
    """

    def __init__(
        self,
        score: FusedScore,
        settings: IncDsiSettings,
        existing: Sequence[SegmentView],
        parts: Sequence[tuple[PreparedConstraints, np.ndarray]],
        segment: LoadedSegment,
    ) -> None:
        """Prepare to solve documents.

        Args:
            score: The fused score.
            settings: Margins and weights of the program.
            existing: Segments of the documents that are there.
            parts: Known queries of these documents, each with a mask (m,) of the queries whose
                documents can be found.
            segment: The new segment, whose vectors are encodings.
        """
        self.score = score
        self.settings = settings
        self.existing = existing
        self.parts = list(parts)
        self.view = SegmentView(segment)
        index = score.dense_of(segment).index
        self.ids = index.ids
        self.vectors = np.array(index.vectors, np.float32)
        self.bm25 = score.bm25_over([self.view])

    def solve(self, arrivals: Sequence[Arrival]) -> list[SolvedDocument]:
        """Solve the documents that bring queries, one after the other.

        Args:
            arrivals: All documents of the new segment, in the order of the ledger. Documents with
                queries have one vector each.
        """
        self.arrivals = arrivals
        self.first_rows, self.row_documents = self._arrange_rows()
        numbers = [number for number, arrival in enumerate(arrivals) if arrival.queries]
        solved: list[SolvedDocument] = []
        for start in range(0, len(numbers), CHUNK_DOCUMENTS):
            chunk = _Chunk(self, numbers[start : start + CHUNK_DOCUMENTS])
            for place in range(len(chunk.numbers)):
                solved.append(chunk.solve(place))
            self.parts.append(chunk.new_part())
        return solved

    def _arrange_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the segment in the order of `arrivals`, and the arrival of each."""
        groups = [self.ids.rows_of([arrival.document_id]) for arrival in self.arrivals]
        counts = [len(rows) for rows in groups]
        return np.concatenate(groups), np.repeat(np.arange(len(groups)), counts)


class _Chunk:
    """Documents whose queries are scored together.

    The constraints of a chunk are those of the documents before it, followed by the queries of the
    chunk itself. A query of the chunk has an infinite own score until its document is solved, and
    afterwards if it does not find the document: so it is no constraint.
    """

    def __init__(self, solver: FusedSolver, numbers: Sequence[int]) -> None:
        self.solver = solver
        self.score = solver.score
        self.numbers = numbers

        texts: list[str] = []
        self.first_queries = [0]
        for number in numbers:
            texts.extend(solver.arrivals[number].queries)
            self.first_queries.append(len(texts))
        self.queries = self.score.encode(texts)
        self.competitors = self.score.competitors(self.queries, solver.existing)
        self.solved: list[SolvedDocument] = []

        rows = [self._row_of(number) for number in numbers]
        self.rows = np.array(rows)
        self._stack_constraints()
        self._score_words()

    def _row_of(self, number: int) -> int:
        """Return the row of the vector of an arrival that has one."""
        (row,) = self.solver.ids.rows_of([self.solver.arrivals[number].document_id]).tolist()
        return int(row)

    def _stack_constraints(self) -> None:
        """Put the constraints of all parts, and the queries of the chunk, into common arrays."""
        queries = self.queries
        size = len(queries.texts)
        owners = np.repeat(self.numbers, np.diff(self.first_queries)).tolist()
        own = Constraints(
            [self.solver.arrivals[number].document_id for number in owners],
            list(queries.texts),
            queries.vectors,
            queries.means,
            queries.deviations,
            np.full(size, np.inf),
            np.zeros(size),
        )
        parts = [part.constraints for part, _ in self.solver.parts]
        self.constraints = Constraints.join([*parts, own])
        self.first_own = len(self.constraints) - size
        for number, (part, is_live) in enumerate(self.solver.parts):
            first = sum(len(other) for other in parts[:number])
            dead = first + np.flatnonzero(~is_live)
            self.constraints.own_scores[dead] = np.inf
            assert len(is_live) == len(part.constraints)

        self.rows_of_key: dict[str, list[int]] = {}
        keys = [key for part, _ in self.solver.parts for key in part.keys]
        keys.extend(normalize_query(text) for text in queries.texts)
        for row, key in enumerate(keys):
            self.rows_of_key.setdefault(key, []).append(row)

        self.lengths = row_norms(self.constraints.vectors)
        priors = self.solver.vectors[self.rows]
        self.prior_products = self.constraints.vectors @ priors.T

    def _score_words(self) -> None:
        """Compute the BM25 scores of the new documents for their queries and for constraints."""
        solver = self.solver
        self.bm25 = np.zeros((len(self.queries.texts), len(solver.arrivals)), np.float32)
        self.constraint_bm25 = np.zeros((len(self.constraints), len(self.numbers)), np.float32)
        if solver.bm25 is None or self.queries.terms is None:
            return

        counts = self.score.count_terms(self.queries.terms)
        by_row = counts.scores(solver.bm25)
        starts = np.flatnonzero(np.diff(solver.row_documents, prepend=-1))
        in_order = by_row.toarray()[:, solver.first_rows]
        self.bm25 = np.maximum.reduceat(in_order, starts, axis=1)

        scores: list[np.ndarray] = []
        for part, _ in solver.parts:
            assert part.counts is not None
            scores.append(part.counts.scores(solver.bm25)[:, self.rows].toarray())
        scores.append(by_row[:, self.rows].toarray())
        self.constraint_bm25 = np.concatenate(scores)

    def new_part(self) -> tuple[PreparedConstraints, np.ndarray]:
        """Return the constraints that the solved documents of the chunk add."""
        parts = [document_constraints(self.score, document) for document in self.solved]
        prepared = PreparedConstraints.prepare(self.score, Constraints.join(parts))
        return prepared, np.ones(len(prepared.constraints), bool)

    def solve(self, place: int) -> SolvedDocument:
        """Solve one document, and make its queries constraints of the next."""
        number = self.numbers[place]
        arrival = self.solver.arrivals[number]
        row = self.rows[place]
        prior = self.solver.vectors[row].astype(np.float64)

        own = self._own_queries(place)
        known = self._known_queries(place, prior)
        vector, chosen = minimize(own, known, prior, self.solver.settings)
        stored = vector.astype(np.float32)
        self.solver.vectors[row] = stored

        solved = self._describe(arrival, own, known, chosen, prior, stored)
        self._keep_queries(place, solved)
        self.solved.append(solved)
        return solved

    def _own_queries(self, place: int) -> OwnQueries:
        """Score all other documents for the queries of one document."""
        solver = self.solver
        number = self.numbers[place]
        first, last = self.first_queries[place], self.first_queries[place + 1]
        document_id = solver.arrivals[number].document_id

        earlier = solver.row_documents < number
        earlier_rows = solver.first_rows[earlier]
        earlier_documents = solver.row_documents[earlier]
        starts = np.flatnonzero(np.diff(earlier_documents, prepend=-1))

        best_rivals: list[float] = []
        rival_scores: list[np.ndarray] = []
        shares: list[float] = []
        highest_scores: list[float] = []
        for k in range(first, last):
            text = self.queries.texts[k]
            own_bm25 = self.score.bm25_without(solver.bm25, text, document_id)

            # Documents that are there, and documents of the new segment that came before.
            competitors = self.competitors[k]
            bm25 = np.concatenate([competitors.bm25, self.bm25[k, :number]])
            dense = competitors.dense
            if len(earlier_rows):
                products = row_dots(
                    solver.vectors[earlier_rows], self.queries.vectors[k].astype(np.float64)
                )
                # An index rounds products to float32, too.
                best_products = np.maximum.reduceat(products, starts).astype(np.float32)
                centred = best_products.astype(np.float64) - self.queries.means[k]
                standardised = self.score.dense_weight * centred / self.queries.deviations[k]
                dense = np.concatenate([dense, standardised])

            highest = float(max(bm25.max(initial=0.0), own_bm25))
            fused = self.score.fuse(dense, bm25, highest)
            best_rivals.append(float(fused.max(initial=0.0)))
            rival_scores.append(fused)
            share = self.score.fuse(np.zeros(1), np.array([own_bm25]), highest)
            shares.append(float(share[0]))
            highest_scores.append(highest)

        return OwnQueries(
            texts=self.queries.texts[first:last],
            vectors=self.queries.vectors[first:last].astype(np.float64),
            means=self.queries.means[first:last],
            deviations=self.queries.deviations[first:last],
            best_rivals=np.array(best_rivals),
            rival_scores=rival_scores,
            shares=np.array(shares),
            highest_bm25=np.array(highest_scores),
            dense_weight=self.score.dense_weight,
        )

    def _known_queries(self, place: int, prior: np.ndarray) -> KnownQueries:
        """Return the known queries of older documents, as limits of one document's vector."""
        constraints = self.constraints
        bm25 = self.constraint_bm25[:, place].astype(np.float64)
        highest = np.maximum(constraints.highest_bm25, bm25)
        shares = self.score.bm25_weight * bm25 / np.maximum(highest, MIN_HIGHEST_BM25)

        # w_d (z.v - m) / deviation + share <= own score, written as a limit of z.v.
        scales = constraints.deviations / self.score.dense_weight
        limits = constraints.means + (constraints.own_scores - shares) * scales
        number = self.numbers[place]
        for text in self.solver.arrivals[number].queries:
            limits[self.rows_of_key[normalize_query(text)]] = np.inf
        return KnownQueries(
            document_ids=constraints.document_ids,
            texts=constraints.texts,
            vectors=constraints.vectors,
            lengths=self.lengths,
            scales=scales,
            limits=limits,
            prior=prior,
            prior_products=self.prior_products[:, place],
        )

    def _describe(
        self,
        arrival: Arrival,
        own: OwnQueries,
        known: KnownQueries,
        chosen: np.ndarray,
        prior: np.ndarray,
        vector: np.ndarray,
    ) -> SolvedDocument:
        """Return how the document was solved."""
        before = self._own_scores(own, prior)
        after = self._own_scores(own, vector.astype(np.float64))
        queries: list[SolvedQuery] = []
        for k, text in enumerate(own.texts):
            rivals = own.rival_scores[k]
            query = SolvedQuery(
                text=text,
                own_score=float(after[k]),
                highest_bm25=float(own.highest_bm25[k]),
                rank_before=1 + int(np.count_nonzero(rivals > before[k])),
                rank_after=1 + int(np.count_nonzero(rivals > after[k])),
                limit=float(own.best_rivals[k] + self.solver.settings.gamma1),
            )
            queries.append(query)

        members: list[Member] = []
        for row in chosen.tolist():
            member = Member(
                known.document_ids[row],
                known.texts[row],
                float(known.limits[row]),
            )
            members.append(member)

        outranked_before = len(known.violated(prior, 0.0))
        outranked_after = len(known.violated(vector.astype(np.float64), 0.0))
        is_first = all(query.rank_after == 1 for query in queries)
        fits = is_first and outranked_after <= outranked_before
        status = Status.FITS if fits else Status.COMPROMISE
        return SolvedDocument(
            document_id=arrival.document_id,
            status=status.name,
            queries=tuple(queries),
            vectors=own.vectors.astype(np.float32),
            members=tuple(members),
            old_outranked_before=outranked_before,
            old_outranked_after=outranked_after,
        )

    def _own_scores(self, own: OwnQueries, vector: np.ndarray) -> np.ndarray:
        """Return the fused score (K,) of a vector (H,) for the document's own queries."""
        centred = row_dots(own.vectors, vector) - own.means
        return self.score.dense_weight * centred / own.deviations + own.shares

    def _keep_queries(self, place: int, solved: SolvedDocument) -> None:
        """Make the queries that find the document constraints of later documents."""
        first = self.first_own + self.first_queries[place]
        for offset, query in enumerate(solved.queries):
            if query.rank_after <= FOUND_RANK:
                self.constraints.own_scores[first + offset] = query.own_score
                self.constraints.highest_bm25[first + offset] = query.highest_bm25


def minimize(
    own: OwnQueries, known: KnownQueries, prior: np.ndarray, settings: IncDsiSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise L over all constraints.

    Violated constraints are added until no other one is violated. The result depends on the set of
    constraints alone, not on their order: they are solved in the order of documents and texts.

    Args:
        own: The document's queries.
        known: Known queries of older documents.
        prior: Encoding (H,) of the document, float64.
        settings: Margins and weights.

    Returns:
        The vector (H,) float64, and the rows of the constraints that were taken into account.
    """
    chosen = np.empty(0, np.intp)
    vector = prior
    while True:
        problem = make_problem(own, known, chosen, prior, settings)
        vector, _ = minimize_problem(problem)
        violated = known.violated(vector, settings.gamma2)
        missing = np.setdiff1d(violated, chosen)
        if not len(missing):
            return vector, chosen
        chosen = known.sorted_rows(np.union1d(chosen, missing))


def make_problem(
    own: OwnQueries,
    known: KnownQueries,
    chosen: np.ndarray,
    prior: np.ndarray,
    settings: IncDsiSettings,
) -> HingeProblem:
    """Return L with the constraints of some rows, in units of the fused score.

    Args:
        own: The document's queries.
        known: Known queries of older documents.
        chosen: Rows (k,) of `known` that are taken into account.
        prior: Encoding (H,) of the document, float64.
        settings: Margins and weights.
    """
    # h(M + g1 - s(q, v)), where s is affine in v.
    own_scales = own.deviations / own.dense_weight
    own_rows = -own.vectors / own_scales[:, None]
    own_limits = -(own.best_rivals + settings.gamma1) + own.shares - own.means / own_scales
    own_weights = np.full(len(own.texts), settings.lambda1 / len(own.texts))

    # h(s(z, v) - s_j + g2)
    scales = known.scales[chosen]
    known_rows = np.asarray(known.vectors[chosen], np.float64) / scales[:, None]
    known_limits = known.limits[chosen] / scales - settings.gamma2
    known_weights = np.full(len(chosen), 1 - settings.lambda1)
    return HingeProblem(
        rows=np.concatenate([own_rows, known_rows]),
        limits=np.concatenate([own_limits, known_limits]),
        weights=np.concatenate([own_weights, known_weights]),
        prior=prior,
        lambda2=settings.lambda2,
    )
