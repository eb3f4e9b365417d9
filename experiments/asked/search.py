"""BM25 with known queries as words, and its fusion with a dense retriever, as matrix operations.

The formulas are the same as in `model_code.retrieval`. With matrices, many weights can be tried on
the same term counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from model_code.encoding.token_signs import TokenSigns
from model_code.text.terms import get_analyzer

# Parameters of BM25.
K1 = 1.2
B = 0.75
# Number of candidates of each component, and number of documents of a ranking.
DEPTH = 100
CUTOFF = 10
# Feedback moves a query towards the mean of so many best documents, with this weight.
FEEDBACK = 0.3
FEEDBACK_DOCUMENTS = 3
# Factor on late interaction scores, so that they vary about as much as other scores.
LATE_SCALE = 10.0
# Smallest variance of a query's scores, so that they can be divided by its root.
MIN_VARIANCE = 1e-6
# Means that differ by less than this are equal.
MEAN_TOLERANCE = 1e-9


class Vocabulary:
    """Assigns a number to each term of documents and queries, and counts terms."""

    def __init__(self, language: str = "english") -> None:
        self._analyzer = get_analyzer(language)
        self.numbers: dict[str, int] = {}

    def count(self, texts: Iterable[str], grow: bool = False) -> sparse.csr_matrix:
        """Count the terms of texts.

        Args:
            texts: Texts, n of them.
            grow: Whether terms that are not known yet are added to the vocabulary.

        Returns:
            Counts (n, terms), float64.
        """
        rows: list[int] = []
        columns: list[int] = []
        values: list[int] = []
        number_of_texts = 0
        for row, text in enumerate(texts):
            number_of_texts += 1
            for term, count in Counter(self._analyzer.analyze(text)).items():
                if grow:
                    column = self.numbers.setdefault(term, len(self.numbers))
                else:
                    column = self.numbers.get(term, -1)
                if column >= 0:
                    rows.append(row)
                    columns.append(column)
                    values.append(count)
        shape = (number_of_texts, len(self.numbers))
        return sparse.csr_matrix((values, (rows, columns)), shape, dtype=np.float64)


@dataclass(frozen=True)
class WordSettings:
    """How known queries count as words of their documents.

    Attributes:
        weight: Weight of a term in a known query; a term in the text weighs 1. 0: known queries do
            not count.
        in_length: Whether their terms count towards the document's length, with the same weight.
    """

    weight: float = 0.0
    in_length: bool = True


def bm25_weights(
    text_counts: sparse.csr_matrix, known_counts: sparse.csr_matrix, words: WordSettings
) -> sparse.csr_matrix:
    """Return the BM25 weight of each term in each document, (n, terms).

    The score of a query is the sum of the weights of its terms. A term that occurs several times in
    the query is added as often.

    Args:
        text_counts: Term counts of the documents' texts, (n, terms).
        known_counts: Term counts of the documents' known queries, (n, terms).
        words: How known queries count.
    """
    counts = (text_counts + words.weight * known_counts).tocsr()
    counts.eliminate_zeros()
    counted = counts if words.in_length else text_counts
    lengths = np.asarray(counted.sum(axis=1)).ravel()
    norms = K1 * (1 - B + B * lengths / lengths.mean())

    documents = counts.shape[0]
    document_frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = np.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5))

    # Document of each value that the sparse matrix stores.
    row_of_value = np.repeat(np.arange(documents), np.diff(counts.indptr))
    weights = counts.copy()
    weights.data = idf[counts.indices] * counts.data / (counts.data + norms[row_of_value])
    return weights


@dataclass(frozen=True)
class Normalizer:
    """Mean and covariance of document vectors.

    They give the mean and the standard deviation of a query's scores over all documents. A fusion
    normalises dense scores by them.
    """

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def fit(cls, vectors: np.ndarray) -> Normalizer:
        """Fit to vectors (n, H)."""
        wide = vectors.astype(np.float64)
        mean = wide.mean(axis=0)
        return cls(mean, wide.T @ wide / len(wide) - np.outer(mean, mean))

    def moments(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (q,) and the standard deviation (q,) of the scores of queries (q, H)."""
        wide = queries.astype(np.float64)
        variance = np.einsum("qh,qh->q", wide @ self.covariance, wide)
        return wide @ self.mean, np.sqrt(np.maximum(variance, MIN_VARIANCE))


@dataclass(frozen=True)
class Weights:
    """Weights of the fusion's components; the dense one weighs 1."""

    bm25: float = 5.0
    late: float = 1.0


@dataclass
class Candidates:
    """Candidates of a query: document numbers (c,), and their scores (c,) by each component."""

    rows: np.ndarray
    dense: np.ndarray
    bm25: np.ndarray
    late: np.ndarray


class FusionSearch:
    """Search of one set of documents by BM25, vectors and late interaction.

    Args:
        vectors: Document vectors (n, H).
        tokens: Signs of the documents' token vectors.
        bm25: BM25 weights (n, terms).
        normalizer: Distribution of the dense scores.
        alternatives: Further vectors of documents, such as their known queries (m, H), the document
            number of each (m,), and a penalty that is subtracted from their scores. None: no
            further vectors.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        tokens: TokenSigns,
        bm25: sparse.csr_matrix,
        normalizer: Normalizer,
        alternatives: tuple[np.ndarray, np.ndarray, float] | None = None,
    ) -> None:
        self.vectors = vectors
        self.tokens = tokens
        self.bm25 = bm25.T.tocsr()
        self.normalizer = normalizer
        self.alternatives = alternatives

    def bm25_scores(self, counts: sparse.csr_matrix) -> np.ndarray:
        """Return the BM25 scores (q, n) of queries with term counts (q, terms)."""
        return np.asarray((counts @ self.bm25).todense())

    def dense_scores(self, queries: np.ndarray) -> np.ndarray:
        """Return the dense scores (q, n) of queries (q, H).

        A document scores by its vector or by an alternative vector, whichever is better.
        """
        scores = queries @ self.vectors.T
        if self.alternatives is not None:
            vectors, documents, penalty = self.alternatives
            products = queries @ vectors.T - penalty
            for column, document in enumerate(documents):
                scores[:, document] = np.maximum(scores[:, document], products[:, column])
        return scores

    def candidates(
        self, vectors: np.ndarray, tokens: TokenSigns, counts: sparse.csr_matrix, chunk: int = 128
    ) -> list[Candidates]:
        """Collect the candidates of queries and score them by every component.

        Args:
            vectors: Vectors of the queries (q, H).
            tokens: Token signs of the queries.
            counts: Term counts of the queries (q, terms).
            chunk: Number of queries that are scored at once, which limits the memory.
        """
        candidates = []
        for start in range(0, len(vectors), chunk):
            stop = min(start + chunk, len(vectors))
            dense = self.dense_scores(vectors[start:stop])
            bm25 = self.bm25_scores(counts[start:stop])
            for i, query in enumerate(range(start, stop)):
                query_tokens = tokens[query : query + 1]
                candidates.append(self._candidates(dense[i], bm25[i], query_tokens))
        return candidates

    def _candidates(self, dense: np.ndarray, bm25: np.ndarray, tokens: TokenSigns) -> Candidates:
        """Return the candidates of one query: the best by vectors, and the best by BM25.

        Args:
            dense: Dense scores of all documents (n,).
            bm25: BM25 scores of all documents (n,). They are divided by the largest one.
            tokens: Token signs of the query.
        """
        depth = min(DEPTH, len(dense))
        by_dense = np.argpartition(-dense, depth - 1)[:depth]
        by_bm25 = np.argpartition(-bm25, depth - 1)[:depth]
        by_bm25 = by_bm25[bm25[by_bm25] > 0]
        rows = np.union1d(by_dense, by_bm25)
        # Without a matching term all scores are 0, and any divisor will do.
        highest = bm25.max(initial=0.0) or 1.0
        late = tokens.similarities(self.tokens[rows]).ravel()
        return Candidates(rows, dense[rows], bm25[rows] / highest, late)

    def rank(self, candidates: Candidates, query: np.ndarray, weights: Weights) -> np.ndarray:
        """Return the document numbers of the ten best candidates of a query (H,), best first."""
        words = weights.bm25 * candidates.bm25
        late = weights.late * LATE_SCALE * candidates.late
        mean, deviation = self.normalizer.moments(query[None])
        first_pass = (candidates.dense - mean) / deviation + words + late
        best = np.argsort(-first_pass, kind="stable")[:FEEDBACK_DOCUMENTS]

        # Pseudo-relevance feedback: the query is moved towards its best documents.
        vectors = self.vectors[candidates.rows]
        shift = FEEDBACK * vectors[best].mean(axis=0)
        mean, deviation = self.normalizer.moments((query + shift)[None])
        dense = candidates.dense + vectors @ shift
        second_pass = (dense - mean) / deviation + words + late
        order = np.argsort(-second_pass, kind="stable")[:CUTOFF]
        return candidates.rows[order]


def ndcg(ranking: Sequence[int], relevant: set[int]) -> float:
    """Return nDCG@10 of a ranking under binary relevance."""
    gain = sum(
        1 / np.log2(rank + 2)
        for rank, document in enumerate(ranking[:CUTOFF])
        if document in relevant
    )
    # The gain if all relevant documents came first.
    ideal = sum(1 / np.log2(rank + 2) for rank in range(min(CUTOFF, len(relevant))))
    return float(gain / ideal) if ideal else 0.0


def choose_weights(
    search: FusionSearch,
    candidates: Sequence[Candidates],
    queries: np.ndarray,
    relevant: Sequence[set[int]],
    grid: Mapping[str, Sequence[float]],
) -> tuple[Weights, np.ndarray]:
    """Return the weights of a grid with the best mean nDCG@10, and nDCG@10 of each query (q,).

    Args:
        search: The search.
        candidates: Candidates of each query.
        queries: Vectors of the queries (q, H).
        relevant: Numbers of the relevant documents of each query.
        grid: Weights to try, under "bm25" and "late".
    """
    best = Weights()
    best_values = np.full(len(relevant), -1.0)
    for bm25 in grid["bm25"]:
        for late in grid["late"]:
            weights = Weights(bm25, late)
            values = evaluate(search, candidates, queries, relevant, weights)
            if values.mean() > best_values.mean() + MEAN_TOLERANCE:
                best = weights
                best_values = values
    return best, best_values


def evaluate(
    search: FusionSearch,
    candidates: Sequence[Candidates],
    queries: np.ndarray,
    relevant: Sequence[set[int]],
    weights: Weights,
) -> np.ndarray:
    """Return nDCG@10 (q,) of each query. The arguments are those of `choose_weights`."""
    values = []
    for i, query_candidates in enumerate(candidates):
        ranking = search.rank(query_candidates, queries[i], weights)
        values.append(ndcg(ranking.tolist(), relevant[i]))
    return np.array(values)
