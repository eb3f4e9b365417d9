"""Measure feedback and hubness in the untrained fusion, on dev and train queries.

`python -m experiments.hubness.run NAME=PROJECT:SPLIT ...` needs the stage `base_index` in each
PROJECT. It writes `result_500.json` and its table in the page.
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
BASE, TOKENS = "sentence-transformers/all-MiniLM-L6-v2", 256
QUERIES, BANK, NEAREST, DEPTH, BEST, FEEDBACK, WORDS = 1000, 500, 5, 100, 3, 0.3, 3.0
# Weights of the hubness correction.
WEIGHTS = (0.2, 0.4)


class Collection:
    """A built corpus: base encoder's passage vectors, BM25, and hubness of each document."""

    def __init__(self, artifacts: Path) -> None:
        self.corpus, index = load_corpus(artifacts / "corpus"), artifacts / "base_index" / "index"
        self.vectors = np.load(index / "vectors.npy").astype(np.float64)
        rows = self.corpus.passages["document_id"].tolist()
        self.ids, self.document = np.unique(rows, return_inverse=True)
        self.order = np.argsort(self.document, kind="stable")
        self.starts = np.searchsorted(self.document[self.order], np.arange(len(self.ids)))
        self.bm25 = Bm25Index.build(
            passage_texts(self.corpus.passages, True), [str(row) for row in range(len(rows))]
        )
        self.encoder = Encoder.load(BASE, TOKENS, for_search=True)
        self.mean, self.covariance = self.vectors.mean(axis=0), np.cov(self.vectors.T, bias=True)
        self.hubness = self._hubness(
            pd.read_parquet(artifacts / "pseudo_queries" / "pseudo_queries.parquet")
        )

    def _hubness(self, made: pd.DataFrame) -> np.ndarray:
        """Return the mean product (documents,) of each document with its nearest pseudo-queries.

        Its own pseudo-queries are left out.
        """
        spans = made.groupby("document_id", sort=False)["text"].first()
        chosen = sorted(spans.index, key=lambda name: hash_text(f"hub {name}"))[:BANK]
        products = self.by_document(
            self.encoder.encode([spans[name] for name in chosen]) @ self.vectors.T
        )
        products[np.arange(len(chosen)), np.searchsorted(self.ids, chosen)] = -1
        return np.partition(products, len(chosen) - NEAREST, axis=0)[-NEAREST:].mean(axis=0)

    def by_document(self, scores: np.ndarray) -> np.ndarray:
        """Reduce scores (..., passages) to each document's best (..., documents)."""
        return np.maximum.reduceat(scores[..., self.order], self.starts, axis=-1)

    def rankings(self, text: str, vector: np.ndarray) -> Iterator[tuple[str, list[str]]]:
        """Return each variant's best documents for a query."""
        products = self.vectors @ vector
        words = self.by_document(self.bm25.scores(text))
        words = words / max(words.max(), 1e-9)
        near = self.by_document(products)
        found = np.union1d(
            np.argsort(-near, kind="stable")[:DEPTH], np.argsort(-words, kind="stable")[:DEPTH]
        )
        for weight in (0.0, *WEIGHTS):
            name = f"hubness {weight}" if weight else "plain"
            ranked = self._ranked(vector, near, words, found, weight)
            yield name, self.ids[ranked].tolist()
            moved = vector + FEEDBACK * np.mean(
                [self._vector(products, one) for one in ranked[:BEST]], axis=0
            )
            again = self._ranked(
                moved, self.by_document(self.vectors @ moved), words, found, weight
            )
            yield f"feedback, {name}" if weight else "feedback", self.ids[again].tolist()

    def _ranked(
        self,
        vector: np.ndarray,
        near: np.ndarray,
        words: np.ndarray,
        found: np.ndarray,
        weight: float,
    ) -> np.ndarray:
        dense = near[found] - weight * self.hubness[found] - self.mean @ vector
        total = dense / np.sqrt(vector @ self.covariance @ vector) + WORDS * words[found]
        return found[np.argsort(-total, kind="stable")]

    def _vector(self, products: np.ndarray, document: int) -> np.ndarray:
        rows = np.flatnonzero(self.document == document)
        return self.vectors[rows[np.argmax(products[rows])]]


def measured(project: Path, split: str) -> dict[str, Any]:
    """Return means of nDCG@10 less the plain fusion's.

    Intervals are the middle 95 % of 1,000 draws of the queries.
    """
    collection, draw = Collection(project / "artifacts"), np.random.default_rng(0)
    asked = collection.corpus.judgements(split)
    names = sorted(asked.queries, key=hash_text)[:QUERIES]
    runs: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for name, vector in zip(
        names, collection.encoder.encode([asked.queries[name] for name in names]), strict=True
    ):
        for variant, ids in collection.rankings(asked.queries[name], vector.astype(np.float64)):
            runs.setdefault(variant, {})[name] = [
                (document, float(-rank)) for rank, document in enumerate(ids)
            ]
    qrels = {name: asked.qrels[name] for name in names}
    values = {
        variant: np.array(
            [evaluate_run(run, qrels, ["nDCG@10"])["nDCG@10"][name] for name in names]
        )
        for variant, run in runs.items()
    }
    plain, found = values.pop("plain"), {}
    for variant, own in values.items():
        means = [
            (own - plain)[draw.integers(len(plain), size=len(plain))].mean() for _ in range(1000)
        ]
        found[variant] = [
            round(float(one), 4)
            for one in ((own - plain).mean(), *np.percentile(means, [2.5, 97.5]))
        ]
    return {
        "split": split,
        "queries": len(names),
        "plain": round(float(plain.mean()), 4),
        "less plain": found,
    }


if __name__ == "__main__":
    result = read_json(HERE / "result_500.json") if (HERE / "result_500.json").is_file() else {}
    for argument in sys.argv[1:]:
        corpus, _, place = argument.partition("=")
        folder, _, part = place.partition(":")
        result[corpus] = measured(Path(folder).resolve(), part)
    write_json(HERE / "result_500.json", result)
