"""Solve the vectors of new documents for the fused score, so that their queries find them.

IncDSI (Kishore et al., 2023) solves the vector of a new document for the score of the encoder.
Users search a fusion, so here the vector is solved for the fused score; see `fused_scores`. The
vector v of a new document minimises

    L(v) = l1 mean_k h(M_k + g1 - s(q_k, v))
           + (1 - l1) sum_j h(s(z_j, v) - s_j + g2)
           + l2 |v - v0|^2                                        with h(x) = max(0, x)^2

    s(q, v)  fused score of the new document for a query q, if its vector is v
    q_k      the K queries of the new document, which should find it
    M_k      best fused score of another document for q_k
    z_j      known queries of older documents: queries that they are known to answer
    s_j      fused score of the older document for its known query z_j
    v0       encoding of the new document
    l1, g1, g2, l2  the settings lambda1, gamma1, gamma2 and lambda2

The fused score is affine in v: a constant plus an inner product with v. So L is convex.

The first sum pulls the document to the top for each of its queries. The second sum keeps it from
outranking older documents for their queries. Each z_j is called a constraint. A known query is a
constraint only if both conditions hold:

- It finds its document among the first ten.
- It is not also a query of the new document. Otherwise both documents answer it.

BM25 indexes known queries as words of their documents. When a new document is scored for one of its
own queries, BM25 leaves the words of this query out. Otherwise the document would win the query by
these words alone, and its vector would not move.

Documents are solved one after the other, in the order of the ledger, the log of changes. If a query
finds its solved document among the first ten, it becomes a constraint of the next documents. If a
later change of the same call overwrites or deletes a document, the document is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from model_code.collection.segments.segment import LoadedSegment, SegmentView
from model_code.collection.segments.solved import (
    MAX_FOUND_RANK,
    Member,
    SolvedDocument,
    SolvedQuery,
)
from model_code.drift.statuses import Status
from model_code.incdsi.constraints import (
    Constraints,
    PreparedConstraints,
    SegmentConstraints,
)
from model_code.incdsi.fused_scores import (
    FusedScore,
    PassageWeights,
    SharedTerms,
)
from model_code.incdsi.scanned_rows import (
    float32_error,
    rounded_row_dots,
    row_dots,
    row_norms,
    vector_norm,
)
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.solver import BOUND_ENLARGEMENT, HingeProblem, minimize_problem
from model_code.retrieval.bm25_index import MIN_HIGHEST_SCORE
from model_code.text.known_queries import normalize_query

# Number of documents whose queries are scored together. It bounds the memory of the scores.
CHUNK_DOCUMENTS = 128

# Number of documents whose queries are encoded together. Large batches of texts are faster.
ENCODED_DOCUMENTS = 2048

# Violations up to this size are rounding errors and count as 0, in units of the fused score.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Arrival:
    """A new document, in the order in which the ledger added it.

    Attributes:
        document_id: Id of the document.
        queries: Texts of the queries that its vector is solved for. Empty if the document is
            searched by its encoding.
    """

    document_id: str
    queries: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class OwnQueries:
    """The queries q_k of the document that is being solved, with the scores of its competitors.

    If the document's vector is v, its fused score for query k is

        s(q_k, v) = dense_weight * (q_k.v - means_k) / deviations_k + bm25_terms_k

    Attributes:
        texts: Texts of the K queries.
        vectors: Vectors of the queries, shape (K, H), float64.
        means: Mean inner product of each query with the vectors of the build, shape (K,).
        deviations: Standard deviation of these inner products, shape (K,).
        best_rivals: Best fused score M_k of another document for each query, shape (K,).
        rival_scores: For each query, the fused scores of the competing documents.
        bm25_terms: What BM25 adds to the document's fused score for each query, shape (K,). It does
            not depend on the vector.
        highest_bm25: Largest BM25 score of any document for each query, shape (K,).
        dense_weight: Weight of the encoder in the fused score.
    """

    texts: Sequence[str]
    vectors: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    best_rivals: np.ndarray
    rival_scores: Sequence[np.ndarray]
    bm25_terms: np.ndarray
    highest_bm25: np.ndarray
    dense_weight: float


@dataclass(frozen=True, eq=False)
class ConstraintLimits:
    """The limits that the constraints z_j set for the document that is being solved.

    Each constraint is a known query of an older document. It limits the inner product of the new
    vector v with the vector of the query.

    Attributes:
        document_ids: For each of the m queries, the older document that it should find.
        texts: Texts of the queries.
        vectors: Vectors z_j of the queries, shape (m, H), float32.
        lengths: Norms of these vectors, shape (m,).
        scales: Inner product that equals one unit of the fused score, shape (m,).
        max_products: Largest inner product z_j.v with which the new document does not outrank the
            older one, shape (m,). It is infinite for queries that the new document answers as well,
            and for queries of deleted documents.
        prior: Encoding v0 (H,) of the new document, float64.
        prior_products: Inner products z_j.v0, shape (m,), float32.
    """

    document_ids: Sequence[str]
    texts: Sequence[str]
    vectors: np.ndarray
    lengths: np.ndarray
    scales: np.ndarray
    max_products: np.ndarray
    prior: np.ndarray
    prior_products: np.ndarray

    def violated(self, vector: np.ndarray, margin: float) -> np.ndarray:
        """Return the rows of the constraints that a vector violates, ascending.

        The bound z.v <= z.v0 + |z| |v - v0| shows that most constraints are met. Only the inner
        products of the others are computed.

        Args:
            vector: Vector (H,) of the new document, float64.
            margin: Margin gamma2 in units of the fused score. It lowers the largest products.
        """
        distance = vector_norm(vector - self.prior)
        # Allow for the rounding error of `prior_products`, which were computed in float32.
        rounding = float32_error(len(vector)) * vector_norm(self.prior)
        possible_rises = self.lengths * ((distance + rounding) * BOUND_ENLARGEMENT)
        allowed_rises = self.allowed_rises
        # A margin of 0 would change nothing, and the subtraction takes time.
        if margin:
            allowed_rises = allowed_rises - margin * self.scales
        rows = np.flatnonzero(possible_rises > allowed_rises)

        # Only these constraints may be violated. Test them exactly.
        products = row_dots(np.asarray(self.vectors[rows], np.float32), vector)
        max_products = self.max_products[rows] - margin * self.scales[rows]
        return rows[products > max_products + TOLERANCE * self.scales[rows]]

    @cached_property
    def allowed_rises(self) -> np.ndarray:
        """How far each product z_j.v may rise above that of the encoding, shape (m,)."""
        return self.max_products - self.prior_products

    def sorted_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return rows (k,) of constraints, sorted by document id and query text."""

        def key(row: int) -> tuple[str, str]:
            return self.document_ids[row], self.texts[row]

        return np.array(sorted(rows.tolist(), key=key), np.intp)


class FusedSolver:
    """Solves the vectors of the new documents of one segment.

    Attributes:
        vectors: Vectors (n, H) float32 of the segment's rows. At first, all are encodings. Each
            solved vector replaces the encoding of its document.
        arrivals: All documents of the new segment, in the order of the ledger.
        ordered_rows: Rows (n,) of the segment, in the order of the arrivals.
        row_documents: Index in `arrivals` of the document of each of `ordered_rows`, shape (n,).
        document_starts: Index in `ordered_rows` at which the rows of each arrival begin.
    """

    def __init__(
        self,
        score: FusedScore,
        settings: IncDsiSettings,
        existing: Sequence[SegmentView],
        segment_constraints: Sequence[SegmentConstraints],
        segment: LoadedSegment,
        arrivals: Sequence[Arrival],
    ) -> None:
        """Prepare to solve documents.

        Args:
            score: Fused score of the retriever.
            settings: Margins and weights of the objective.
            existing: Segments of the older documents.
            segment_constraints: Constraints of each of these segments.
            segment: The new segment, whose vectors are encodings.
            arrivals: All documents of the new segment, in the order of the ledger. Documents with
                queries have one vector each.
        """
        self.score = score
        self.settings = settings
        self.search = score.search_over(existing)
        self.segment_constraints = list(segment_constraints)
        index = score.dense_of(segment).index
        self.ids = index.ids
        self.vectors = np.array(index.vectors, np.float32)
        self.bm25 = score.bm25_over([SegmentView(segment)])
        self.passage_weights = None if self.bm25 is None else PassageWeights(self.bm25)

        self.arrivals = arrivals
        self.ordered_rows, self.row_documents = self._arrange_rows()
        self.document_starts = np.flatnonzero(np.diff(self.row_documents, prepend=-1))
        # The vectors in the order of `ordered_rows`, and the index of each row of the segment in
        # this order.
        self._ordered_vectors = self.vectors[self.ordered_rows].astype(np.float64)
        self._ordered_index_of_row = np.argsort(self.ordered_rows)

    def solve(self) -> list[SolvedDocument]:
        """Solve the vectors of the documents that have queries, one after the other.

        Returns:
            A record of each solved document.
        """
        indices_to_solve: list[int] = []
        for arrival_index, arrival in enumerate(self.arrivals):
            if arrival.queries:
                indices_to_solve.append(arrival_index)

        solved: list[SolvedDocument] = []
        for first in range(0, len(indices_to_solve), ENCODED_DOCUMENTS):
            batch = _Batch(self, indices_to_solve[first : first + ENCODED_DOCUMENTS])
            for chunk in batch.chunks():
                for position in range(len(chunk.arrival_indices)):
                    solved.append(chunk.solve(position))
            self.segment_constraints.append(batch.batch_as_segment_constraints())
        return solved

    def _arrange_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Arrange the rows of the segment by document, in the order of `arrivals`.

        Returns:
            Rows (n,), and for each of them the index (n,) of its document in `arrivals`.
        """
        rows_by_arrival = [self.ids.rows_of([arrival.document_id]) for arrival in self.arrivals]
        row_counts = [len(rows) for rows in rows_by_arrival]
        arrival_indices = np.arange(len(self.arrivals))
        return np.concatenate(rows_by_arrival), np.repeat(arrival_indices, row_counts)

    def replace_vector(self, row: int, vector: np.ndarray) -> None:
        """Replace the encoding in a row of the segment by the solved vector (H,), float32."""
        self.vectors[row] = vector
        self._ordered_vectors[self._ordered_index_of_row[row]] = vector

    def vector_of_query(self, text: str) -> np.ndarray | None:
        """Return the vector (H,) float32 of a query that is a constraint, else None."""
        for prepared, _ in self.segment_constraints:
            vector = prepared.vector_of(text)
            if vector is not None:
                return vector
        return None

    def vectors_of(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of some new documents, one document after the other.

        Args:
            first: Index in `arrivals` of the first of these documents.
            end: Index of the first document after them.

        Returns:
            Vectors (r, H) float64, in the order of the arrivals, and the index (d,) in them at
            which each document begins.
        """
        first_row, end_row = np.searchsorted(self.row_documents, [first, end]).tolist()
        starts = self.document_starts[first:end] - first_row
        return self._ordered_vectors[first_row:end_row], starts


class _Batch:
    """Documents whose queries are encoded together, and all constraints for them.

    A constraint is a known query of an earlier document, which a new document must not win. The
    owner of a constraint is the earlier document. A new document may score up to the score of the
    owner.

    `constraints` holds the constraints of all documents before the batch, and then all queries of
    the batch itself. A query of the batch at first has an infinite owner score, so that it limits
    nothing. Once its document is solved and the query finds it, the query gets a finite owner
    score.

    Attributes:
        solver: The solver of all new documents, to which the batch belongs.
        arrival_indices: Index of each document of the batch in `FusedSolver.arrivals`.
        queries: The queries of all documents of the batch.
        first_queries: Index in `queries` of each document's first query, followed by the number of
            queries.
        owners: Document id of each query.
        batch_constraints: The queries of the batch as constraints. Their owner scores are set by
            `batch_as_segment_constraints`.
        constraints: All constraints, m in number, as described above.
        first_batch_constraint: Row of the first query of the batch in `constraints`.
        lengths: Norms of the constraints' vectors, shape (m,).
        prepared_constraints: The constraints of all documents before the batch, then those of the
            batch itself.
        shared_terms: Terms that the constraints share with the new segment, one item for each of
            `prepared_constraints`. Empty without BM25.
    """

    def __init__(self, solver: FusedSolver, arrival_indices: Sequence[int]) -> None:
        self.solver = solver
        self.score = solver.score
        self.arrival_indices = arrival_indices

        texts: list[str] = []
        self.owners: list[str] = []
        self.first_queries = [0]
        for arrival_index in arrival_indices:
            arrival = solver.arrivals[arrival_index]
            texts.extend(arrival.queries)
            self.owners.extend([arrival.document_id] * len(arrival.queries))
            self.first_queries.append(len(texts))
        self.queries = self.score.encode(texts, self._encode(texts))
        self._stack_constraints()

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors (q, H) of queries, and encode only those without a known vector.

        A changed document usually has the queries of its former version. These queries are
        constraints already, so their vectors are known. Encoding them again would take most of the
        time of an addition.
        """
        known: dict[str, np.ndarray] = {}
        missing: list[str] = []
        for text in dict.fromkeys(texts):
            vector = self.solver.vector_of_query(text)
            if vector is None:
                missing.append(text)
            else:
                known[text] = vector
        if missing:
            encoded = self.score.encoder_retriever.encoder.pytorch.encode_queries(missing)
            known.update(zip(missing, encoded, strict=True))
        return np.array([known[text] for text in texts], np.float32)

    def _stack_constraints(self) -> None:
        """Join all earlier constraints and the queries of the batch to common arrays.

        Until the documents of the batch are solved, their queries must limit nothing, so their
        owner scores are infinite. The owner scores of constraints that do not apply any more, such
        as those of deleted documents, are made infinite as well.
        """
        queries = self.queries
        query_count = len(queries.texts)
        constraints_of_batch = Constraints(
            document_ids=self.owners,
            texts=list(queries.texts),
            vectors=queries.vectors,
            means=queries.means,
            deviations=queries.deviations,
            owner_scores=np.full(query_count, np.inf),
            highest_bm25=np.zeros(query_count),
        )
        counts = None if queries.terms is None else self.score.count_terms(queries.terms)
        keys = [normalize_query(text) for text in queries.texts]
        self.batch_constraints = PreparedConstraints(
            constraints_of_batch, keys, counts, row_norms(queries.vectors)
        )

        # Join the constraints of earlier documents with those of the batch, and the masks that tell
        # which constraints still apply.
        earlier = self.solver.segment_constraints
        self.prepared_constraints = [prepared for prepared, _ in earlier]
        self.prepared_constraints.append(self.batch_constraints)
        masks = [applies for _, applies in earlier]
        masks.append(np.ones(query_count, bool))
        self.constraints = Constraints.join(
            [prepared.constraints for prepared in self.prepared_constraints]
        )
        self.first_batch_constraint = len(self.constraints) - query_count
        applies = np.concatenate(masks)
        self.constraints.owner_scores[~applies] = np.inf
        self.lengths = np.concatenate([prepared.lengths for prepared in self.prepared_constraints])

        self.shared_terms: list[SharedTerms] = []
        weights = self.solver.passage_weights
        if weights is not None:
            for prepared in self.prepared_constraints:
                assert prepared.counts is not None
                self.shared_terms.append(prepared.counts.match(weights))

    def rows_of_query(self, text: str) -> list[int]:
        """Return the rows of the constraints whose queries equal a text, when normalised."""
        key = normalize_query(text)
        rows: list[int] = []
        start = 0
        for prepared in self.prepared_constraints:
            rows.extend(start + row for row in prepared.rows_by_key.get(key, ()))
            start += len(prepared.keys)
        return rows

    def chunks(self) -> Iterator[_Chunk]:
        """Yield the documents in chunks.

        A chunk must be solved before the next one is requested, which scores its documents against
        the solved vectors.
        """
        document_count = len(self.arrival_indices)
        for start in range(0, document_count, CHUNK_DOCUMENTS):
            yield _Chunk(self, start, min(start + CHUNK_DOCUMENTS, document_count))

    def batch_as_segment_constraints(self) -> SegmentConstraints:
        """Return the constraints that the solved batch adds for later batches.

        These are the queries that find their document. All other queries of the batch still have
        an infinite owner score. All returned constraints apply.
        """
        constraints = self.batch_constraints.constraints
        first = self.first_batch_constraint
        constraints.owner_scores[:] = self.constraints.owner_scores[first:]
        constraints.highest_bm25[:] = self.constraints.highest_bm25[first:]
        finding = np.flatnonzero(np.isfinite(constraints.owner_scores))
        prepared = self.batch_constraints.select(finding)
        return SegmentConstraints(prepared, applies=np.ones(len(finding), bool))


class _Chunk:
    """Documents of a batch whose queries are scored together, which is faster than one by one."""

    def __init__(self, batch: _Batch, start: int, stop: int) -> None:
        """Score the queries of the documents from `start` to before `stop` of the batch.

        Args:
            batch: The batch, with all constraints.
            start: Index in the batch of the chunk's first document.
            stop: Index in the batch of the first document after the chunk.
        """
        self.solver = batch.solver
        self.score = batch.score
        self.constraints = batch.constraints
        self.batch = batch
        # `arrival_indices[position]` is the document at a position of the chunk.
        self.arrival_indices = batch.arrival_indices[start:stop]

        # The queries of the chunk's documents, and the index of each document's first query.
        first = batch.first_queries[start]
        end = batch.first_queries[stop]
        self.queries = batch.queries.select(first, end)
        self.first_queries = [index - first for index in batch.first_queries[start : stop + 1]]
        # Row of the chunk's first query among all constraints.
        self.first_constraint = batch.first_batch_constraint + first

        # The best older documents for each query, and the BM25 score of the query's own document.
        self.competitors = self.score.competitors(self.queries, self.solver.search)
        self.own_bm25 = self.score.bm25_without(
            self.solver.bm25, self.queries, batch.owners[first:end]
        )

        # The row of each document in the segment. A solved document has only one.
        self.rows = np.array(
            [self._row_of(arrival_index) for arrival_index in self.arrival_indices]
        )
        # Documents before the chunk have their final vectors. So their products with all queries of
        # the chunk are computed together. `earlier_products` (q, d) has the best one of each.
        vectors, starts = self.solver.vectors_of(0, self.arrival_indices[0])
        products = rounded_row_dots(vectors, self.queries.vectors.astype(np.float64))
        self.earlier_products = _best_of_documents(products, starts)
        # Inner products (c, m) of the encodings of c documents with the queries of m constraints.
        self.prior_products = self.solver.vectors[self.rows] @ self.constraints.vectors.T
        self._score_words(first, end)

    def _row_of(self, arrival_index: int) -> int:
        """Return the segment's row with the vector of a new document, which has only one vector."""
        arrival = self.solver.arrivals[arrival_index]
        (row,) = self.solver.ids.rows_of([arrival.document_id]).tolist()
        return int(row)

    def _score_words(self, first: int, end: int) -> None:
        """Compute the BM25 scores that the solver needs, for all documents of the chunk at once.

        `bm25` (q, a) has the scores of all a arrivals for the q queries of the chunk.
        `constraint_bm25` (c, m) has the scores of the chunk's c documents for the m constraints.
        Without a BM25 component, all scores are 0.

        Args:
            first: Index in `batch.queries` of the chunk's first query.
            end: Index in `batch.queries` of the first query after the chunk.
        """
        solver = self.solver
        shared_terms = self.batch.shared_terms
        self.bm25 = np.zeros((end - first, len(solver.arrivals)), np.float32)
        self.constraint_bm25 = np.zeros(
            (len(self.arrival_indices), len(self.constraints)), np.float32
        )
        if not shared_terms:
            return

        # The last item of `shared_terms` belongs to the queries of the batch itself. A document
        # with several rows scores as its best row.
        chunk_terms = shared_terms[-1].select(first, end)
        row_scores = chunk_terms.scores(solver.ordered_rows)
        self.bm25 = np.maximum.reduceat(row_scores, solver.document_starts, axis=1)
        constraint_scores = [terms.scores(self.rows).T for terms in shared_terms]
        self.constraint_bm25 = np.concatenate(constraint_scores, axis=1)

    def solve(self, position: int) -> SolvedDocument:
        """Solve the vector of one document, and make its queries constraints of later documents.

        Args:
            position: Position of the document in the chunk.
        """
        arrival = self.solver.arrivals[self.arrival_indices[position]]
        row = self.rows[position]
        prior = self.solver.vectors[row].astype(np.float64)

        own = self._own_queries(position)
        limits = self._constraint_limits(position, prior)
        vector, members = minimize(own, limits, prior, self.solver.settings)
        stored = vector.astype(np.float32)
        self.solver.replace_vector(row, stored)

        solved = self._describe(arrival, own, limits, members, prior, stored)
        self._keep_queries(position, solved)
        return solved

    def _own_queries(self, position: int) -> OwnQueries:
        """Return the queries of one document, with the fused scores of its competitors.

        Two kinds of documents compete for a query: the best older documents, and all documents of
        the new segment that were added before this one.

        Args:
            position: Position of the document in the chunk.
        """
        arrival_index = self.arrival_indices[position]
        first = self.first_queries[position]
        end = self.first_queries[position + 1]

        best_rivals: list[float] = []
        rival_scores: list[np.ndarray] = []
        own_bm25_terms: list[float] = []
        highest_bm25: list[float] = []
        for query_index in range(first, end):
            older = self.competitors[query_index]
            new_dense_terms = self._dense_terms(query_index, arrival_index)
            dense_terms = np.concatenate([older.dense, new_dense_terms])
            bm25 = np.concatenate([older.bm25, self.bm25[query_index, :arrival_index]])

            # BM25 indexes the query as words of the new document. This score leaves them out, since
            # the document would win by them alone. The fusion divides BM25 scores by the query's
            # largest one.
            own_bm25 = float(self.own_bm25[query_index])
            highest = float(max(bm25.max(initial=0.0), own_bm25))
            fused_scores = self.score.fuse(dense_terms, bm25, highest)
            (own_bm25_term,) = self.score.fuse(np.zeros(1), np.array([own_bm25]), highest)

            best_rivals.append(float(fused_scores.max(initial=0.0)))
            rival_scores.append(fused_scores)
            own_bm25_terms.append(float(own_bm25_term))
            highest_bm25.append(highest)

        return OwnQueries(
            texts=self.queries.texts[first:end],
            vectors=self.queries.vectors[first:end].astype(np.float64),
            means=self.queries.means[first:end],
            deviations=self.queries.deviations[first:end],
            best_rivals=np.array(best_rivals),
            rival_scores=rival_scores,
            bm25_terms=np.array(own_bm25_terms),
            highest_bm25=np.array(highest_bm25),
            dense_weight=self.score.dense_weight,
        )

    def _dense_terms(self, query_index: int, arrival_index: int) -> np.ndarray:
        """Return what the encoder adds to the fused scores of the earlier new documents.

        A document may have several vectors. Only its best vector counts.

        Args:
            query_index: Index of the query among the queries of the chunk.
            arrival_index: Index in `arrivals` of the document that is solved. The documents before
                it are scored.

        Returns:
            The encoder's term of each fused score, shape (arrival_index,), float64.
        """
        # Only the vectors of documents in the chunk may have changed since the chunk was scored.
        vectors, starts = self.solver.vectors_of(self.arrival_indices[0], arrival_index)
        query = self.queries.vectors[query_index].astype(np.float64)
        # Products are rounded to float32, because an index computes scores in float32.
        products = row_dots(vectors, query).astype(np.float32)
        best_products = np.concatenate(
            [self.earlier_products[query_index], _best_of_documents(products, starts)]
        )
        centred = best_products.astype(np.float64) - self.queries.means[query_index]
        return self.score.dense_weight * centred / self.queries.deviations[query_index]

    def _constraint_limits(self, position: int, prior: np.ndarray) -> ConstraintLimits:
        """Compute the limits that all constraints set for the vector of one document.

        Args:
            position: Position of the document in the chunk.
            prior: Encoding (H,) of the document, float64.
        """
        constraints = self.constraints
        bm25 = self.constraint_bm25[position].astype(np.float64)
        highest = np.maximum(constraints.highest_bm25, bm25)
        bm25_terms = self.score.bm25_weight * bm25 / np.maximum(highest, MIN_HIGHEST_SCORE)

        # The fused score of the new document for the query z of a constraint must not exceed the
        # owner score of the constraint:
        #     dense_weight * (z.v - mean) / deviation + bm25_term <= owner_score
        # Solved for the inner product z.v, this is z.v <= mean + (owner_score - bm25_term) * scale.
        scales = constraints.deviations / self.score.dense_weight
        max_products = constraints.means + (constraints.owner_scores - bm25_terms) * scales
        arrival = self.solver.arrivals[self.arrival_indices[position]]
        # The new document may win queries that it answers itself, so these get no limit.
        for text in arrival.queries:
            max_products[self.batch.rows_of_query(text)] = np.inf
        return ConstraintLimits(
            document_ids=constraints.document_ids,
            texts=constraints.texts,
            vectors=constraints.vectors,
            lengths=self.batch.lengths,
            scales=scales,
            max_products=max_products,
            prior=prior,
            prior_products=self.prior_products[position],
        )

    def _describe(
        self,
        arrival: Arrival,
        own: OwnQueries,
        limits: ConstraintLimits,
        members: np.ndarray,
        prior: np.ndarray,
        vector: np.ndarray,
    ) -> SolvedDocument:
        """Return the record of a solved document: ranks before and after, limits and status.

        An older document is outranked if the new document scores above it for its known query. The
        new document has the status FITS if its vector outranks no more older documents than its
        encoding does. Otherwise it has the status COMPROMISE. The document's own queries do not
        count for the status: if it is not first for one of them, its encoding mostly is not either.

        Args:
            arrival: The document.
            own: Queries of the document.
            limits: Limits of all constraints.
            members: Rows (k,) of the constraints that the solver took into account; see `minimize`.
            prior: Encoding (H,) of the document, float64.
            vector: Solved vector (H,), float32.
        """
        solved_vector = vector.astype(np.float64)
        scores_before = self._own_scores(own, prior)
        scores_after = self._own_scores(own, solved_vector)
        queries: list[SolvedQuery] = []
        for query_index, text in enumerate(own.texts):
            rival_scores = own.rival_scores[query_index]
            score_before = scores_before[query_index]
            score_after = scores_after[query_index]
            query = SolvedQuery(
                text=text,
                own_score=float(score_after),
                highest_bm25=float(own.highest_bm25[query_index]),
                rank_before=1 + int(np.count_nonzero(rival_scores > score_before)),
                rank_after=1 + int(np.count_nonzero(rival_scores > score_after)),
                limit=float(own.best_rivals[query_index] + self.solver.settings.gamma1),
            )
            queries.append(query)

        member_records: list[Member] = []
        for row in members.tolist():
            limit = float(limits.max_products[row])
            member_records.append(Member(limits.document_ids[row], limits.texts[row], limit))

        # Count the older documents that the new one outranks. These are the constraints that are
        # violated without a margin.
        outranked_before = len(limits.violated(prior, margin=0.0))
        outranked_after = len(limits.violated(solved_vector, margin=0.0))
        fits = outranked_after <= outranked_before
        status = Status.FITS if fits else Status.COMPROMISE
        return SolvedDocument(
            document_id=arrival.document_id,
            status=status.name,
            queries=tuple(queries),
            vectors=own.vectors.astype(np.float32),
            members=tuple(member_records),
            old_outranked_before=outranked_before,
            old_outranked_after=outranked_after,
        )

    def _own_scores(self, own: OwnQueries, vector: np.ndarray) -> np.ndarray:
        """Return the fused scores (K,) that a vector (H,) gives the document for its queries."""
        centred = row_dots(own.vectors, vector) - own.means
        return self.score.dense_weight * centred / own.deviations + own.bm25_terms

    def _keep_queries(self, position: int, solved: SolvedDocument) -> None:
        """Make the queries that find a solved document constraints of the documents after it."""
        first = self.first_constraint + self.first_queries[position]
        for offset, query in enumerate(solved.queries):
            if query.rank_after <= MAX_FOUND_RANK:
                self.constraints.owner_scores[first + offset] = query.own_score
                self.constraints.highest_bm25[first + offset] = query.highest_bm25


def _best_of_documents(products: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the largest product of each document.

    Args:
        products: Products of the vectors of d documents, one document after the other, shape
            (..., r).
        starts: Index of the product at which each document begins, shape (d,).

    Returns:
        The largest products, shape (..., d).
    """
    if not len(starts):
        return products[..., :0]
    return np.maximum.reduceat(products, starts, axis=-1)


def minimize(
    own: OwnQueries, limits: ConstraintLimits, prior: np.ndarray, settings: IncDsiSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the vector v that minimises L(v); see the module docstring.

    The problem is first solved without constraints. Each round then adds the constraints that the
    solution violates, and solves again, until the solution violates no other constraint. The added
    constraints are sorted by document and text, so that the result does not depend on their order
    in `limits`.

    Args:
        own: Queries of the new document.
        limits: Limits of all constraints.
        prior: Encoding (H,) of the document, float64.
        settings: Margins and weights.

    Returns:
        The vector (H,) float64, and the rows (k,) of the constraints that were added.
    """
    members = np.empty(0, np.intp)
    vector = prior
    while True:
        problem = make_problem(own, limits, members, prior, settings)
        vector, _ = minimize_problem(problem)
        violated = limits.violated(vector, settings.gamma2)
        missing = np.setdiff1d(violated, members)
        if not len(missing):
            return vector, members
        members = limits.sorted_rows(np.union1d(members, missing))


def make_problem(
    own: OwnQueries,
    limits: ConstraintLimits,
    members: np.ndarray,
    prior: np.ndarray,
    settings: IncDsiSettings,
) -> HingeProblem:
    """Write L(v) of the module docstring as a `HingeProblem`, with some of the constraints.

    L is a sum of terms h(x) = max(0, x)^2. A `HingeProblem` needs each of them in the form
    h(row.v - limit).

    Args:
        own: The K queries of the new document.
        limits: Limits of all constraints.
        members: Rows (k,) of the constraints to take into account.
        prior: Encoding (H,) of the document, float64.
        settings: Margins and weights.

    Returns:
        A problem with K + k hinges, first those of the document's own queries. All limits are in
        units of the fused score.
    """
    # The document should win each of its own queries q by the margin gamma1. The term of q is
    #     h(best_rival + gamma1 - s(q, v))    with s(q, v) = (q.v - mean) / scale + bm25_term
    # This is h(row.v - limit) with
    #     row   = -q / scale
    #     limit = -(best_rival + gamma1) + bm25_term - mean / scale
    own_scales = own.deviations / own.dense_weight
    own_rows = -own.vectors / own_scales[:, None]
    own_limits = -(own.best_rivals + settings.gamma1) + own.bm25_terms - own.means / own_scales
    own_weights = np.full(len(own.texts), settings.lambda1 / len(own.texts))

    # An older document should keep its known query z by the margin gamma2. `limits.max_products`
    # bounds z.v without the margin. Divided by the scale, it is in units of the fused score:
    #     h(z.v / scale - (max_product / scale - gamma2))
    scales = limits.scales[members]
    member_rows = np.asarray(limits.vectors[members], np.float64) / scales[:, None]
    member_limits = limits.max_products[members] / scales - settings.gamma2
    member_weights = np.full(len(members), 1 - settings.lambda1)
    return HingeProblem(
        rows=np.concatenate([own_rows, member_rows]),
        limits=np.concatenate([own_limits, member_limits]),
        weights=np.concatenate([own_weights, member_weights]),
        prior=prior,
        lambda2=settings.lambda2,
    )
