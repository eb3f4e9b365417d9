"""The score that IncDSI solves for, and the documents that a new one competes with.

Users search a fusion, so a vector is solved for the fused score, not for the encoder's score alone.
For a query with vector q, whose inner products with the build have mean m and deviation v,

    s(q, d) = w_d (q.v_d - m) / v  +  w_b bm25(q, d) / max bm25(q)

The score is affine in the vector v_d of the document. w_d and w_b are the weights of the fusion's
first dense component and of BM25. Late interaction, feedback and further components are left out: a
vector does not change them, or only through other vectors. For a dense retriever alone, w_b is 0.

BM25 takes its statistics from the build. So the score of a document does not depend on documents
that are added later, or together with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from model_code.collection.segments.segment import BaseSegment, LoadedSegment, SegmentView
from model_code.retrieval.bm25 import Bm25Retriever
from model_code.retrieval.bm25_index import Bm25Index, Bm25Query
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.fused import MIN_VARIANCE, FusedRetriever, ScoreNormalizer
from model_code.retrieval.indexed import RetrieverSegment

if TYPE_CHECKING:
    from scipy import sparse

# Best documents of each component that are compared with a new document. The best fused score is
# among them in practice, and more of them make additions slower.
CANDIDATES = 30

# Smaller BM25 scores are no matches. It keeps divisions defined.
MIN_HIGHEST_BM25 = 1e-9


@dataclass(frozen=True, eq=False)
class EncodedQueries:
    """Queries as both components take them.

    Attributes:
        texts: The queries.
        vectors: Their vectors, shape (q, H), float32.
        terms: Their terms for BM25; None without BM25.
        means: Mean m of each query's inner products with the build, shape (q,).
        deviations: Their standard deviation v, shape (q,).
    """

    texts: Sequence[str]
    vectors: np.ndarray
    terms: list[Bm25Query] | None
    means: np.ndarray
    deviations: np.ndarray


@dataclass(frozen=True, eq=False)
class Competitors:
    """The documents that compete for one query.

    Attributes:
        document_ids: The n documents.
        dense: Standardised dense score of each, times its weight, shape (n,).
        bm25: BM25 score of each, shape (n,).
    """

    document_ids: Sequence[str]
    dense: np.ndarray
    bm25: np.ndarray


class FusedScore:
    """The score s(q, d) of a retriever, with the encoder, statistics and weights of its build."""

    def __init__(self, base: BaseSegment) -> None:
        """Take components and weights from a base segment.

        Args:
            base: Base segment, whose retriever is dense or a fusion with a dense component.
        """
        self.base = base
        self.dense_name: str | None = None
        self.bm25_name: str | None = None
        self.dense_weight = 1.0
        self.bm25_weight = 0.0

        retriever = base.retriever
        if isinstance(retriever, FusedRetriever):
            weights = retriever.fusion.weights
            for name, component in retriever.components.items():
                is_dense = isinstance(component, DenseRetriever) and component.dense is not None
                if self.dense_name is None and is_dense:
                    self.dense_name = name
                    self.dense_weight = weights[name]
                if self.bm25_name is None and isinstance(component, Bm25Retriever):
                    self.bm25_name = name
                    self.bm25_weight = weights[name]

    @property
    def encoder_retriever(self) -> DenseRetriever:
        """The dense component of the base segment."""
        return self.dense_of(self.base)

    def dense_of(self, segment: LoadedSegment) -> DenseRetriever:
        """Return the dense component of a segment."""
        return self._component(segment, self.dense_name)

    def bm25_of(self, segment: LoadedSegment) -> Bm25Retriever:
        """Return the BM25 component of a segment."""
        return self._component(segment, self.bm25_name)

    def _component(self, segment: LoadedSegment, name: str | None) -> Any:
        retriever: Any = segment.retriever
        return retriever if name is None else retriever.components[name]

    @cached_property
    def normalizer(self) -> ScoreNormalizer:
        """Mean and covariance of the vectors of the build."""
        retriever: Any = self.base.retriever
        if self.dense_name is not None:
            normalizer: ScoreNormalizer = retriever.fusion.normalizers[self.dense_name]
            return normalizer
        return ScoreNormalizer.fit(self.encoder_retriever.index.vectors)

    @cached_property
    def base_bm25(self) -> Bm25Index | None:
        """BM25 over the build with all its documents, whose statistics every score uses."""
        if self.bm25_name is None:
            return None
        segment = RetrieverSegment(self.bm25_of(self.base), self.base.rows)
        index: Any = Bm25Retriever.join_segments([segment])
        return index

    def encode(self, texts: Sequence[str], vectors: np.ndarray | None = None) -> EncodedQueries:
        """Encode queries.

        Args:
            texts: The queries.
            vectors: Their vectors (q, H), if they are known.
        """
        if vectors is None:
            vectors = self.encoder_retriever.encode_queries(list(texts))
        terms = None
        if self.base_bm25 is not None:
            terms = self.base_bm25.encode_queries(texts)
        means, deviations = self.moments(vectors)
        return EncodedQueries(texts, vectors, terms, means, deviations)

    def moments(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation (q,) of the inner products of vectors (q, H) with the build.

        Each query is computed alone, so that the result does not depend on its neighbours.
        """
        means = np.empty(len(vectors))
        deviations = np.empty(len(vectors))
        for row, vector in enumerate(vectors):
            wide = vector.astype(np.float64)
            means[row] = self.normalizer.mean @ wide
            variance = float(wide @ (self.normalizer.covariance @ wide))
            deviations[row] = max(variance, MIN_VARIANCE) ** 0.5
        return means, deviations

    def bm25_over(self, views: Sequence[SegmentView]) -> Bm25Index | None:
        """Return BM25 over segments with the statistics of the build; None without BM25."""
        if self.bm25_name is None:
            return None
        segments = [view.searchable.of(self.bm25_of(view.segment)) for view in views]
        index: Any = Bm25Retriever.join_segments(segments, reference=self.base_bm25)
        return index

    def dense_over(self, views: Sequence[SegmentView]) -> DenseRetriever:
        """Return dense retrieval over segments."""
        segments = [view.searchable.of(self.dense_of(view.segment)) for view in views]
        retriever: Any = DenseRetriever.join_segments(segments)
        return retriever

    def competitors(
        self, queries: EncodedQueries, views: Sequence[SegmentView], also: Sequence[str] = ()
    ) -> list[Competitors]:
        """Return the documents that compete for each query.

        These are the best documents by either component, as in a search.

        Args:
            queries: The queries.
            views: Segments that are searched.
            also: One document per query that is returned in any case; empty for none.
        """
        dense = self.dense_over(views)
        bm25 = self.bm25_over(views)
        rankings = [dense.search_and_rerank(queries.vectors, CANDIDATES)]
        if bm25 is not None and queries.terms is not None:
            rankings.append(bm25.search_encoded(queries.terms, CANDIDATES))

        unions: list[list[str]] = []
        for i in range(len(queries.texts)):
            documents = {document for ranking in rankings for document, _ in ranking[i]}
            if also:
                documents.add(also[i])
            unions.append(sorted(documents))

        dense_scores = dense.score_encoded(queries.vectors, unions)
        bm25_scores = [np.zeros(len(documents)) for documents in unions]
        if bm25 is not None and queries.terms is not None:
            bm25_scores = bm25.score_encoded(queries.terms, unions)

        found: list[Competitors] = []
        for i, documents in enumerate(unions):
            centred = dense_scores[i].astype(np.float64) - queries.means[i]
            standardised = self.dense_weight * centred / queries.deviations[i]
            found.append(Competitors(documents, standardised, bm25_scores[i]))
        return found

    def fuse(self, dense: np.ndarray, bm25: np.ndarray, highest: float) -> np.ndarray:
        """Return the fused scores of documents (n,) for one query.

        Args:
            dense: Standardised dense scores times their weight, (n,).
            bm25: BM25 scores, (n,).
            highest: Largest BM25 score of any document for the query.
        """
        return dense + self.bm25_weight * bm25 / max(highest, MIN_HIGHEST_BM25)

    def bm25_without(self, index: Bm25Index | None, text: str, document_id: str) -> float:
        """Return the BM25 score of a document for a query that is left out of its own words.

        Args:
            index: Index that holds the document; None without BM25, which gives 0.
            text: The query.
            document_id: The document.
        """
        if index is None:
            return 0.0
        return index.score_without(text, document_id)

    def count_terms(self, queries: Sequence[Bm25Query]) -> TermCounts:
        """Count the terms of queries."""
        from scipy import sparse

        # Numbers ascend with the terms, so that sums do not depend on the other queries.
        terms = sorted({term for query in queries for term in query.terms})
        numbers = {term: number for number, term in enumerate(terms)}

        rows: list[int] = []
        columns: list[int] = []
        counts: list[int] = []
        for row, query in enumerate(queries):
            for term, count in query.terms.items():
                rows.append(row)
                columns.append(numbers[term])
                counts.append(count)
        shape = (len(queries), len(terms))
        return TermCounts(terms, sparse.csc_matrix((counts, (rows, columns)), shape, np.float64))


@dataclass(frozen=True, eq=False)
class TermCounts:
    """How often queries contain terms.

    Attributes:
        terms: The T terms, ascending.
        counts: Counts, shape (q, T), sparse.
    """

    terms: Sequence[str]
    counts: sparse.csc_matrix

    def scores(self, index: Bm25Index) -> sparse.csc_matrix:
        """Return the BM25 scores of all passages of an index, shape (q, n), sparse.

        They are rounded to float32, as the index rounds them.
        """
        vocabulary = index.vocabulary()
        columns = [number for number, term in enumerate(self.terms) if term in vocabulary]
        shared_terms = [self.terms[number] for number in columns]
        shared_counts = self.counts[:, columns].tocsr()
        shared_counts.sort_indices()
        scores = shared_counts @ index.term_weights(shared_terms).T
        return scores.tocsc().astype(np.float32)
