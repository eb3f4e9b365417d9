"""The fused score by which IncDSI ranks documents, and the documents that compete for a query.

Users usually search a fusion, a weighted sum of the scores of BM25 and an encoder. A new vector is
therefore solved for the fused score, not for the score of the encoder alone. For a query with
vector q and a document with vector v_d, it is

    s(q, d) = w_d (q.v_d - m) / sd  +  w_b bm25(q, d) / max bm25(q)

    m, sd     mean and standard deviation of the inner products of q with all vectors of the build
    w_d, w_b  weights of the first dense component and of BM25; w_b is 0 without BM25

The build is the set of documents that the retriever was built from. The score is affine in v_d.
Other parts of the fusion are left out, such as late interaction and further components, because
v_d changes them not at all or only indirectly.

BM25 takes its statistics, such as document frequencies, from the build. So the score of a document
does not depend on documents that are added later or together with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from model_code.collection.segments.segment import BaseSegment, LoadedSegment, SegmentView
from model_code.retrieval.bm25 import Bm25Retriever
from model_code.retrieval.bm25_index import MIN_HIGHEST_SCORE, Bm25Index, Bm25Query
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.fused import MIN_VARIANCE, FusedRetriever, ScoreNormalizer
from model_code.retrieval.id_map import IdMaps
from model_code.retrieval.indexed import RetrieverSegment

if TYPE_CHECKING:
    from scipy import sparse

# Number of best documents of each component that are scored as competitors for a query. In
# practice, they include the document with the best fused score. More make additions slower.
CANDIDATES = 30

# Number of queries whose terms BM25 loads at once, and the size of its cache as a multiple of the
# usual one. The cache must hold the common terms and those of the loaded queries.
LOADED_QUERIES = 64
CACHE_FACTOR = 2


@dataclass(frozen=True, eq=False)
class EncodedQueries:
    """Queries in the forms that the encoder and BM25 need.

    Attributes:
        texts: Texts of the q queries.
        vectors: Vectors of the queries, shape (q, H), float32.
        terms: Terms of the queries for BM25. None if the retriever has no BM25 component.
        means: Mean inner product m of each query with the vectors of the build, shape (q,).
        deviations: Standard deviation sd of these inner products, shape (q,).
    """

    texts: Sequence[str]
    vectors: np.ndarray
    terms: list[Bm25Query] | None
    means: np.ndarray
    deviations: np.ndarray

    def select(self, start: int, stop: int) -> EncodedQueries:
        """Return the queries from `start` to before `stop`."""
        terms = None if self.terms is None else self.terms[start:stop]
        return EncodedQueries(
            self.texts[start:stop],
            self.vectors[start:stop],
            terms,
            self.means[start:stop],
            self.deviations[start:stop],
        )


@dataclass(frozen=True, eq=False)
class Competitors:
    """The best documents for one query, which a new document has to outrank.

    Attributes:
        dense: First term of the fused score of each of n documents, w_d (q.v_d - m) / sd, shape
            (n,).
        bm25: BM25 score of each document, shape (n,).
        included_row: Position among the n of the document that the caller asked to include; see
            `included_ids` in `FusedScore.competitors`. None if the caller named no document.
    """

    dense: np.ndarray
    bm25: np.ndarray
    included_row: int | None = None


@dataclass(frozen=True, eq=False)
class ComponentSearch:
    """The two searches whose scores are fused, over the same segments.

    Attributes:
        dense: Search by vectors.
        bm25: BM25 with the statistics of the build. None if the retriever has no BM25.
    """

    dense: DenseRetriever
    bm25: Bm25Index | None

    @cached_property
    def shared_rows(self) -> IdMaps | None:
        """The document of each row, if both searches have the same one row per document.

        Otherwise None: the documents of the two searches must then be compared by their ids.
        """
        ids: Any = self.dense.index.ids
        is_shared = self.bm25 is None or ids.has_equal_rows(self.bm25.ids)
        if is_shared and ids.has_one_row_per_document:
            return ids
        return None


class FusedScore:
    """The fused score s(q, d) of a retriever: a weighted sum of the scores of encoder and BM25.

    The module states the formula. The encoder, the statistics and the weights come from the build.
    So equal texts and vectors get equal scores at any time.
    """

    def __init__(self, base: BaseSegment) -> None:
        """Find the first dense component and the BM25 component, and read their weights.

        Args:
            base: Base segment, which holds the documents of the build. Its retriever is dense, or
                a fusion with a dense component.
        """
        self.base = base
        self.dense_name: str | None = None
        self.bm25_name: str | None = None
        self.dense_weight = 1.0
        self.bm25_weight = 0.0

        # The weights are those of the build, even if others were chosen later on new judgements. So
        # all vectors are solved for the same score, whenever they are solved.
        retriever = base.built
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
        """The retriever of the build whose encoder makes the vectors."""
        return self.dense_of(self.base)

    def dense_of(self, segment: LoadedSegment) -> DenseRetriever:
        """Return the retriever of a segment that is searched by vectors, alone or in a fusion."""
        return self._component(segment, self.dense_name)

    def bm25_of(self, segment: LoadedSegment) -> Bm25Retriever:
        """Return the BM25 retriever of a segment's fusion."""
        return self._component(segment, self.bm25_name)

    def _component(self, segment: LoadedSegment, name: str | None) -> Any:
        retriever: Any = segment.retriever
        return retriever if name is None else retriever.components[name]

    @cached_property
    def normalizer(self) -> ScoreNormalizer:
        """Mean and covariance of the vectors of the build, from which m and sd follow."""
        retriever: Any = self.base.retriever
        if self.dense_name is not None:
            normalizer: ScoreNormalizer = retriever.fusion.normalizers[self.dense_name]
            return normalizer
        return ScoreNormalizer.fit(self.encoder_retriever.index.vectors)

    @cached_property
    def base_bm25(self) -> Bm25Index | None:
        """BM25 index of all documents of the build. Every BM25 score uses its statistics.

        None if the retriever has no BM25 component.
        """
        if self.bm25_name is None:
            return None
        segment = RetrieverSegment(self.bm25_of(self.base), self.base.rows)
        index: Any = Bm25Retriever.join_segments([segment])
        return index

    def encode(self, texts: Sequence[str], vectors: np.ndarray | None = None) -> EncodedQueries:
        """Encode queries for both components.

        Args:
            texts: Texts of the q queries.
            vectors: Vectors (q, H) of the queries. None computes them.
        """
        if vectors is None:
            vectors = self.encoder_retriever.encoder.pytorch.encode_queries(list(texts))
        terms = None
        if self.base_bm25 is not None:
            terms = self.base_bm25.encode_queries(texts)
        means, deviations = self.moments(vectors)
        return EncodedQueries(texts, vectors, terms, means, deviations)

    def moments(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean m and the deviation sd of each query's inner products with the build.

        Each query is computed separately, so that its rounding does not depend on other queries.

        Args:
            vectors: Vectors (q, H) of the queries.

        Returns:
            Means (q,) and standard deviations (q,), float64.
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
        """Return a BM25 index over the live documents of segments.

        It uses the statistics of the build. None if the retriever has no BM25 component.
        """
        if self.bm25_name is None:
            return None
        segments = [view.searchable.of(self.bm25_of(view.segment)) for view in views]
        index: Any = Bm25Retriever.join_segments(segments, reference=self.base_bm25)
        return index

    def search_over(self, views: Sequence[SegmentView]) -> ComponentSearch:
        """Return the search of segments by both components, which is made once for many queries."""
        segments = [view.searchable.of(self.dense_of(view.segment)) for view in views]
        dense: Any = DenseRetriever.join_segments(segments)
        bm25 = self.bm25_over(views)
        if bm25 is not None:
            bm25.enlarge_cache(CACHE_FACTOR)
        return ComponentSearch(dense, bm25)

    def competitors(
        self,
        queries: EncodedQueries,
        search: ComponentSearch,
        included_ids: Sequence[str] = (),
    ) -> list[Competitors]:
        """Search the documents that compete for each query.

        These are the best `CANDIDATES` documents of each component.

        Args:
            queries: The q queries.
            search: Search of the segments; see `search_over`.
            included_ids: One document id for each query, which is always among its competitors.
                Empty if no document has to be.

        Returns:
            The competitors of each query.
        """
        if search.shared_rows is not None:
            return self._find_by_row(queries, search, search.shared_rows, included_ids)
        return self._find_by_id(queries, search, included_ids)

    def _find_by_row(
        self,
        queries: EncodedQueries,
        search: ComponentSearch,
        ids: IdMaps,
        included_ids: Sequence[str],
    ) -> list[Competitors]:
        """Find the best documents for each query by comparing row numbers; see `competitors`.

        This is twice as fast as `_find_by_id`. It requires that each document has one row, which is
        the same for both components.

        Args:
            queries: The q queries.
            search: Search of the segments, whose documents have one row each.
            ids: The document of each row.
            included_ids: One document id for each query, or none; see `competitors`.
        """
        index: Any = search.dense.index
        dense_rows = index.best_rows(queries.vectors, CANDIDATES, search.dense.fingerprint)

        found: list[Competitors] = []
        for start in range(0, len(queries.texts), LOADED_QUERIES):
            part = queries.select(start, start + LOADED_QUERIES)
            unions: list[np.ndarray] = []
            bm25_scores: list[np.ndarray] = []
            for i, query in enumerate(_bm25_queries(part, search.bm25)):
                rows = dense_rows[start + i]
                if included_ids:
                    rows = np.append(rows, ids.rows_of([included_ids[start + i]]))
                if search.bm25 is None or query is None:
                    unions.append(np.unique(rows))
                    bm25_scores.append(np.zeros(len(unions[i])))
                else:
                    scores = search.bm25.score_rows(query)
                    unions.append(np.union1d(rows, ids.best_rows(scores, CANDIDATES)))
                    bm25_scores.append(scores[unions[i]].astype(np.float64))

            for i, dense_scores in enumerate(score_row_lists(index, part.vectors, unions)):
                included_row = None
                if included_ids:
                    (row,) = ids.rows_of([included_ids[start + i]]).tolist()
                    included_row = int(np.searchsorted(unions[i], row))
                dense_terms = self._dense_terms(part, i, dense_scores)
                found.append(Competitors(dense_terms, bm25_scores[i], included_row))
        return found

    def _dense_terms(
        self, queries: EncodedQueries, query_index: int, scores: np.ndarray
    ) -> np.ndarray:
        """Return what the encoder adds to the fused scores of n documents for one of the queries.

        Args:
            queries: The queries.
            query_index: Index of the query in `queries`.
            scores: Inner product of the query with each document's best vector, shape (n,).

        Returns:
            The terms w_d (q.v_d - m) / sd of the module docstring, shape (n,).
        """
        centred = scores.astype(np.float64) - queries.means[query_index]
        return self.dense_weight * centred / queries.deviations[query_index]

    def _find_by_id(
        self, queries: EncodedQueries, search: ComponentSearch, included_ids: Sequence[str]
    ) -> list[Competitors]:
        """Find the best documents for each query by comparing document ids; see `competitors`.

        This is slower than `_find_by_row`. But it also works if a document has several rows, or if
        the two components number their rows differently.

        Args:
            queries: The q queries.
            search: Search of the segments.
            included_ids: One document id for each query, or none; see `competitors`.
        """
        dense_rankings = search.dense.search_and_rerank(queries.vectors, CANDIDATES)

        # For each query, the ids of its competitors, ascending, and their BM25 scores.
        unions: list[list[str]] = []
        bm25_scores: list[np.ndarray] = []
        for i, query in enumerate(_bm25_queries(queries, search.bm25)):
            documents = {document for document, _ in dense_rankings[i]}
            if included_ids:
                documents.add(included_ids[i])
            if search.bm25 is None or query is None:
                unions.append(sorted(documents))
                bm25_scores.append(np.zeros(len(documents)))
            else:
                (bm25_ranking,) = search.bm25.search_encoded([query], CANDIDATES)
                documents.update(document for document, _ in bm25_ranking)
                unions.append(sorted(documents))
                bm25_scores.extend(search.bm25.score_encoded([query], [unions[i]]))
        dense_scores = search.dense.score_encoded(queries.vectors, unions)

        found: list[Competitors] = []
        for i, documents in enumerate(unions):
            included_row = documents.index(included_ids[i]) if included_ids else None
            dense_terms = self._dense_terms(queries, i, dense_scores[i])
            found.append(Competitors(dense_terms, bm25_scores[i], included_row))
        return found

    def fuse(self, dense: np.ndarray, bm25: np.ndarray, highest: float) -> np.ndarray:
        """Return the fused scores of documents (n,) for one query.

        Args:
            dense: What the encoder adds to the fused scores, (n,); see `Competitors.dense`.
            bm25: BM25 scores of the documents, (n,).
            highest: Largest BM25 score of any document for the query.
        """
        return dense + self.bm25_weight * bm25 / max(highest, MIN_HIGHEST_SCORE)

    def bm25_without(
        self, index: Bm25Index | None, queries: EncodedQueries, document_ids: Sequence[str]
    ) -> np.ndarray:
        """Return the BM25 score of documents for one of their own known queries each.

        BM25 indexes known queries as words of their documents. The score of a document leaves out
        the words that this known query added to it. The document would win the query by them alone.

        Args:
            index: Index that holds the documents. None gives the score 0.
            queries: The n encoded queries.
            document_ids: Id of the document to score for each query, (n,).

        Returns:
            Scores (n,), float64.
        """
        if index is None or queries.terms is None:
            return np.zeros(len(document_ids))
        return index.score_pairs_without(queries.terms, document_ids)

    def count_terms(self, queries: Sequence[Bm25Query]) -> TermCounts:
        """Count the terms of queries, so that many passages are scored for them at once."""
        from scipy import sparse

        # Terms are numbered in sorted order. So the terms of a query are always summed in the same
        # order, and the rounding of its scores does not depend on the other queries.
        terms = sorted({term for query in queries for term in query.terms})
        column_of_term = {term: column for column, term in enumerate(terms)}

        rows: list[int] = []
        columns: list[int] = []
        counts: list[int] = []
        for row, query in enumerate(queries):
            for term, count in query.terms.items():
                rows.append(row)
                columns.append(column_of_term[term])
                counts.append(count)
        shape = (len(queries), len(terms))
        return TermCounts(terms, sparse.csc_matrix((counts, (rows, columns)), shape, np.float64))


def _bm25_queries(queries: EncodedQueries, bm25: Bm25Index | None) -> Iterator[Bm25Query | None]:
    """Yield each query with its terms loaded, or None for each query if there is no BM25.

    A BM25 query caches its score of every passage, and the caches of all queries together would
    take too much memory. So copies are yielded, and the caller should keep only the current one.
    """
    for i in range(len(queries.texts)):
        if bm25 is None or queries.terms is None:
            yield None
            continue
        # The terms of the next queries are loaded together, which is faster.
        if i % LOADED_QUERIES == 0:
            bm25.load_terms(queries.terms[i : i + LOADED_QUERIES])
        yield replace(queries.terms[i], scores={})


def score_row_lists(
    index: DenseIndex, queries: np.ndarray, row_lists: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the dense scores of the rows of each query, which are computed together.

    Args:
        index: The index.
        queries: Query vectors (q, H), float32.
        row_lists: Rows to score for each query, an array each.
    """
    width = max((len(rows) for rows in row_lists), default=0)
    padded = np.full((len(row_lists), width), -1, np.int64)
    for query_index, rows in enumerate(row_lists):
        padded[query_index, : len(rows)] = rows
    scores = index.score_rows(queries, padded)
    return [row_scores[: len(rows)] for row_scores, rows in zip(scores, row_lists, strict=True)]


@dataclass(frozen=True, eq=False)
class TermCounts:
    """The number of times that each query contains each term.

    Attributes:
        terms: All T terms of the queries, sorted.
        counts: Count of each term in each query, shape (q, T), sparse.
    """

    terms: Sequence[str]
    counts: sparse.csc_matrix

    def select(self, rows: np.ndarray) -> TermCounts:
        """Return the counts of some of the queries, by their row numbers (k,)."""
        return TermCounts(self.terms, self.counts[rows])

    def match(self, passages: PassageWeights) -> SharedTerms:
        """Keep the terms that also occur in an index, with their weights in its passages."""
        query_columns: list[int] = []
        passage_columns: list[int] = []
        for query_column, term in enumerate(self.terms):
            passage_column = passages.columns.get(term)
            if passage_column is not None:
                query_columns.append(query_column)
                passage_columns.append(passage_column)
        counts = self.counts[:, query_columns].tocsr()
        counts.sort_indices()
        return SharedTerms(counts, passages.weights[:, passage_columns].tocsr())


@dataclass(frozen=True, eq=False)
class SharedTerms:
    """The S terms that occur in some queries and in the passages of an index.

    Attributes:
        counts: Count of each term in each query, shape (q, S), sparse. Terms are sorted.
        weights: Contribution of each term to the BM25 score of each passage, (n, S), sparse.
    """

    counts: sparse.csr_matrix
    weights: sparse.csr_matrix

    def select(self, start: int, stop: int) -> SharedTerms:
        """Return the terms of the queries from `start` to before `stop`."""
        return SharedTerms(self.counts[start:stop], self.weights)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return the BM25 score of passages for each query, shape (q, r), float32.

        The scores are rounded to float32, because the index rounds its own scores in this way.

        Args:
            rows: Rows (r,) of the passages in the index.
        """
        scores = self.counts @ self.weights[rows].T
        return scores.toarray().astype(np.float32)


class PassageWeights:
    """The contribution of each term to the BM25 score of each passage of an index.

    It is computed once for an index, and then scores many queries.

    Attributes:
        columns: Column of each of the T terms of the index.
        weights: Contributions, shape (n, T), sparse.
    """

    def __init__(self, index: Bm25Index) -> None:
        """Compute the contributions.

        Args:
            index: The index, which should be small.
        """
        terms = sorted(index.vocabulary())
        self.columns = {term: column for column, term in enumerate(terms)}
        self.weights: sparse.csc_matrix = index.term_weights(terms).tocsc()
