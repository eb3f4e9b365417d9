"""Measure feedback and a correction of hubness in the untrained fusion.

A hub is a document that is near to many queries, whether it answers them or not. The correction
subtracts a share of this nearness from the document's score.

`python -m experiments.hubness.run NAME=PROJECT:SPLIT ...` evaluates the dev or train queries of
each PROJECT, in which the stage `base_index` must have run. It writes `result_500.json`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.evaluation.metrics import evaluate_run
from model_code.files import hash_text, read_json, write_json
from model_code.retrieval.bm25_index import Bm25Index

HERE = Path(__file__).parent
BASE = "sentence-transformers/all-MiniLM-L6-v2"
MAX_TOKENS = 256
# Largest number of queries that are evaluated.
MAX_QUERIES = 1000
# Number of pseudo-queries that hubness is measured with, and number of the nearest ones whose mean
# product with a document is the document's hubness.
BANK_SIZE = 500
NEAREST_QUERIES = 5
# Number of candidates of each component.
DEPTH = 100
# Feedback moves a query towards so many of its best documents, by this share.
FEEDBACK_DOCUMENTS = 3
FEEDBACK_SHARE = 0.3
BM25_WEIGHT = 3.0
# Smallest BM25 score that scores are divided by.
SMALLEST_BM25 = 1e-9
# Weights of the hubness correction.
HUBNESS_WEIGHTS = (0.2, 0.4)
BOOTSTRAP_SAMPLES = 1000


class Collection:
    """A built corpus: passage vectors of the base encoder, BM25, and the hubness of documents.

    Args:
        artifacts: Folder of the build's artifacts.

    Attributes:
        corpus: The corpus.
        vectors: Passage vectors (passages, H) in float64.
        mean: Mean of the passage vectors (H,).
        covariance: Covariance of the passage vectors (H, H).
        ids: Ids of the documents in ascending order.
        document: Position in `ids` of each passage's document (passages,).
        encoder: The base encoder.
        hubness: Mean inner product (documents,) of each document with its nearest pseudo-queries.
    """

    def __init__(self, artifacts: Path) -> None:
        self.corpus = load_corpus(artifacts / "corpus")
        vectors = np.load(artifacts / "base_index" / "index" / "vectors.npy")
        self.vectors = vectors.astype(np.float64)
        self.mean = self.vectors.mean(axis=0)
        self.covariance = np.cov(self.vectors.T, bias=True)

        owners = self.corpus.passages["document_id"].tolist()
        self.ids, self.document = np.unique(owners, return_inverse=True)
        # Passages in order of their documents, and each document's first position in this order.
        self.order = np.argsort(self.document, kind="stable")
        self.starts = np.searchsorted(self.document[self.order], np.arange(len(self.ids)))

        texts = passage_texts(self.corpus.passages, True)
        self.bm25 = Bm25Index.build(texts, [str(row) for row in range(len(texts))])
        self.encoder = Encoder.load(BASE, MAX_TOKENS, for_search=True)
        pseudo_queries = pd.read_parquet(artifacts / "pseudo_queries" / "pseudo_queries.parquet")
        self.hubness = self._measure_hubness(pseudo_queries)

    def _measure_hubness(self, pseudo_queries: pd.DataFrame) -> np.ndarray:
        """Return the mean product (documents,) of each document with its nearest pseudo-queries.

        Pseudo-queries that were generated from the document itself are left out.
        """
        # One pseudo-query of each of `BANK_SIZE` documents, which a hash of their ids selects.
        query_of_document = pseudo_queries.groupby("document_id", sort=False)["text"].first()
        document_ids = sorted(query_of_document.index, key=_bank_position)[:BANK_SIZE]
        queries = self.encoder.encode_queries([query_of_document[name] for name in document_ids])

        # Products of pseudo-queries and documents, (queries, documents).
        products = self.best_passages(queries @ self.vectors.T)
        # A pseudo-query's own document gets the lowest product.
        products[np.arange(len(queries)), np.searchsorted(self.ids, document_ids)] = -1
        # The last rows of the partition hold the largest products of each document.
        partitioned = np.partition(products, len(queries) - NEAREST_QUERIES, axis=0)
        return partitioned[-NEAREST_QUERIES:].mean(axis=0)

    def best_passages(self, scores: np.ndarray) -> np.ndarray:
        """Reduce scores (..., passages) to each document's best (..., documents)."""
        return np.maximum.reduceat(scores[..., self.order], self.starts, axis=-1)

    def rankings(self, text: str, vector: np.ndarray) -> Iterator[tuple[str, list[str]]]:
        """Yield the name of each variant with its best documents for a query.

        Args:
            text: Text of the query.
            vector: Vector (H) of the query.
        """
        passage_products = self.vectors @ vector
        products = self.best_passages(passage_products)
        bm25_scores = self.best_passages(self.bm25.scores(text))
        # A query without a known term has only scores of 0.
        bm25_scores = bm25_scores / max(bm25_scores.max(), SMALLEST_BM25)
        candidates = np.union1d(_best_rows(products), _best_rows(bm25_scores))

        for weight in (0.0, *HUBNESS_WEIGHTS):
            ranking = self._rank(vector, products, bm25_scores, candidates, weight)
            yield _variant(weight), self.ids[ranking].tolist()

            # Pseudo-relevance feedback: the query is moved towards its best documents.
            feedback_vectors = [
                self._best_vector(passage_products, document)
                for document in ranking[:FEEDBACK_DOCUMENTS]
            ]
            moved = vector + FEEDBACK_SHARE * np.mean(feedback_vectors, axis=0)
            moved_products = self.best_passages(self.vectors @ moved)
            ranking = self._rank(moved, moved_products, bm25_scores, candidates, weight)
            yield _variant(weight, feedback=True), self.ids[ranking].tolist()

    def _rank(
        self,
        vector: np.ndarray,
        products: np.ndarray,
        bm25_scores: np.ndarray,
        candidates: np.ndarray,
        weight: float,
    ) -> np.ndarray:
        """Return the candidates, best first, with a weight of the hubness correction.

        Args:
            vector: Vector of the query (H,).
            products: Inner products of the query with all documents (documents,).
            bm25_scores: BM25 scores of all documents, at most 1.
            candidates: Positions of the candidates in `ids`.
            weight: Weight of the hubness correction.
        """
        corrected = products[candidates] - weight * self.hubness[candidates]
        # Mean and standard deviation of the query's products with all passages.
        mean = self.mean @ vector
        deviation = np.sqrt(vector @ self.covariance @ vector)
        scores = (corrected - mean) / deviation + BM25_WEIGHT * bm25_scores[candidates]
        return candidates[np.argsort(-scores, kind="stable")]

    def _best_vector(self, passage_products: np.ndarray, document: int) -> np.ndarray:
        """Return the vector of the document's best passage."""
        rows = np.flatnonzero(self.document == document)
        return self.vectors[rows[np.argmax(passage_products[rows])]]


def _bank_position(document_id: str) -> str:
    return hash_text(f"hub {document_id}")


def _best_rows(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, kind="stable")[:DEPTH]


def _variant(weight: float, feedback: bool = False) -> str:
    """Return the name of a variant."""
    if weight == 0:
        return "feedback" if feedback else "plain"
    if feedback:
        return f"feedback, hubness {weight}"
    return f"hubness {weight}"


def measure(project: Path, split: str) -> dict[str, Any]:
    """Return the gain in mean nDCG@10 of each variant over the plain fusion.

    Args:
        project: Folder of the project.
        split: Split of the queries that are evaluated.
    """
    collection = Collection(project / "artifacts")
    judgements = collection.corpus.judgements(split)
    query_ids = sorted(judgements.queries, key=hash_text)[:MAX_QUERIES]
    vectors = collection.encoder.encode_queries([judgements.queries[query] for query in query_ids])
    runs: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for query, vector in zip(query_ids, vectors, strict=True):
        text = judgements.queries[query]
        for variant, document_ids in collection.rankings(text, vector.astype(np.float64)):
            run = runs.setdefault(variant, {})
            run[query] = [(name, float(-rank)) for rank, name in enumerate(document_ids)]

    qrels = {query: judgements.qrels[query] for query in query_ids}
    variant_scores = {}
    for variant, run in runs.items():
        scores = evaluate_run(run, qrels, ["nDCG@10"])["nDCG@10"]
        variant_scores[variant] = np.array([scores[query] for query in query_ids])

    random = np.random.default_rng(0)
    plain = variant_scores.pop("plain")
    differences = {}
    for variant, scores in variant_scores.items():
        differences[variant] = _bootstrap(scores - plain, random)
    return {
        "split": split,
        "queries": len(query_ids),
        "plain": round(float(plain.mean()), 4),
        "less plain": differences,
    }


def _bootstrap(differences: np.ndarray, random: np.random.Generator) -> list[float]:
    """Return the mean of differences (q,), and the ends of its interval.

    The interval contains the middle 95 % of the means of `BOOTSTRAP_SAMPLES` samples of queries.
    """
    count = len(differences)
    sampled_means = []
    for _ in range(BOOTSTRAP_SAMPLES):
        sample = random.integers(count, size=count)
        sampled_means.append(differences[sample].mean())
    low, high = np.percentile(sampled_means, [2.5, 97.5])
    return [round(float(number), 4) for number in (differences.mean(), low, high)]


def main() -> None:
    """Measure the projects of the command line, and write the result."""
    path = HERE / "result_500.json"
    result = read_json(path) if path.is_file() else {}
    for argument in sys.argv[1:]:
        corpus, _, place = argument.partition("=")
        project, _, split = place.partition(":")
        result[corpus] = measure(Path(project).resolve(), split)
    write_json(path, result)


if __name__ == "__main__":
    main()
