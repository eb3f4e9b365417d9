"""The dev metric that chooses the best checkpoint: documents, by their best passage, ranked for some dev queries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_code.encoding.encoder import Encoder
from model_code.evaluation.metrics import Metric, evaluate_run
from model_code.index.top_k import top_k
from model_code.retriever import Ranking
from model_code.training.data import DevQueries, Passages

DEPTH = 100  # documents ranked for a metric without a cutoff


class DevEvaluator:
    """Mean of one metric over at most `most_queries` dev queries, in a corpus of at most `most_passages` passages.

    With fewer passages than the corpus has (None: all) the relevant ones stay and the rest is a sample: the values of
    checkpoints can be compared, but not with the final evaluation's.
    """

    def __init__(
        self,
        passages: Passages,
        dev: DevQueries,
        metric: str,
        seed: int,
        most_queries: int,
        most_passages: int | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        queries = np.sort(rng.permutation(len(dev))[:most_queries])
        self.metric, self.passages = metric, passages
        self.queries = [dev.texts[query] for query in queries]
        self.qrels = {str(row): _by_name(dev.relevant[query]) for row, query in enumerate(queries)}
        wanted = {document for query in queries for document in dev.relevant[query]}
        self.rows = _rows(passages, wanted, most_passages, rng)
        self.texts = [passages.texts[row] for row in self.rows]

    @property
    def covers_corpus(self) -> bool:
        """Whether every passage of the corpus is ranked."""
        return len(self.rows) == len(self.passages.texts)

    def encode_passages(self, encoder: Encoder) -> np.ndarray:
        """Vectors of the ranked passages, those at `rows` of the corpus: (P, H), or v rows for each: (P * v, H)."""
        return encoder.encode_documents(self.texts)

    def score(self, queries: np.ndarray, vectors: np.ndarray) -> float:
        """The mean metric, given the vectors (Q, H) of `queries` and those of the passages at `rows`, (P, H) or
        (P * v, H): documents by their best.
        """
        documents = self.passages.documents[self.rows].repeat(len(vectors) // len(self.rows))
        names = [str(document) for document in documents]
        return self.mean([top_k(vectors @ query, names, self.depth) for query in queries])

    @property
    def depth(self) -> int:
        """Documents that are ranked for each query."""
        return Metric.parse(self.metric).cutoff or DEPTH

    def mean(self, rankings: Sequence[Ranking]) -> float:
        """The mean metric of rankings of document numbers, one for each of `queries`."""
        run = {str(row): ranking for row, ranking in enumerate(rankings)}
        return float(np.mean(list(evaluate_run(run, self.qrels, [self.metric])[self.metric].values())))


def _by_name(relevant: dict[int, int] | object) -> dict[str, int]:
    return {str(document): relevance for document, relevance in dict(relevant).items()}  # type: ignore[call-overload]


def _rows(passages: Passages, wanted: set[int], most: int | None, rng: np.random.Generator) -> np.ndarray:
    everything = np.arange(len(passages.texts))
    if most is None or most >= len(everything):
        return everything
    kept = np.isin(passages.documents, list(wanted))
    others = rng.permutation(everything[~kept])[: max(0, most - int(kept.sum()))]
    return np.sort(np.concatenate([everything[kept], others]))
