"""From a corpus's tables to what a trainer reads: pairs, and the dev metric that chooses the best
checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from model_code.context import StageContext
from model_code.corpus.tables import (
    Corpus,
    Judgements,
    load_corpus,
    passage_texts,
    strip_query_lines,
)
from model_code.errors import FreshetError
from model_code.evaluation.metrics import evaluate_run, parse_metric
from model_code.evaluation.significance import interval_of_means
from model_code.retrieval.protocol import Ranking
from model_code.retrieval.top_k import top_k
from model_code.training.data import Passages, TrainingData, make_pairs
from model_code.training.settings import TrainingSettings

DEPTH = 100  # documents ranked for a metric without a cutoff


class DevEvaluator:
    """Mean of one metric over at most `most_queries` dev queries, in a corpus of at most
    `most_passages` passages.

    With fewer passages than the corpus has (None: all) the relevant ones stay and the rest is a
    sample: the values of checkpoints can be compared, but not with the final evaluation's.
    """

    def __init__(
        self,
        passages: Passages,
        dev: Sequence[tuple[str, Mapping[int, int]]],
        metric: str,
        seed: int,
        most_queries: int,
        most_passages: int | None = None,
    ) -> None:
        """dev: queries, and {document number: relevance} for each."""
        rng = np.random.default_rng(seed)
        queries = [dev[query] for query in np.sort(rng.permutation(len(dev))[:most_queries])]
        self.metric, self.passages = metric, passages
        self.queries = [text for text, _ in queries]
        named = (
            {str(document): grade for document, grade in judged.items()} for _, judged in queries
        )
        self.qrels = {str(row): judged for row, judged in enumerate(named)}
        required = {document for _, judged in queries for document in judged}
        self.rows = _rows(passages, required, most_passages, rng)
        self.texts = [passages.texts[row] for row in self.rows]
        self.interval: list[float] | None = None  # of the last mean over queries, at 95 %

    def score(self, queries: np.ndarray, vectors: np.ndarray) -> float:
        """The mean metric, given the vectors (Q, H) of `queries` and those of `texts`, the passages
        at `rows` of the corpus, (P, H) or v for each, (P * v, H): documents by their best.
        """
        documents = self.passages.documents[self.rows].repeat(len(vectors) // len(self.rows))
        names = [str(document) for document in documents]
        return self.mean([top_k(vectors @ query, names, self.depth) for query in queries])

    @property
    def depth(self) -> int:
        """Documents that are ranked for each query."""
        return parse_metric(self.metric)[1] or DEPTH

    def mean(self, rankings: Sequence[Ranking]) -> float:
        """The mean metric of rankings of document numbers, one for each of `queries`."""
        run = {str(row): ranking for row, ranking in enumerate(rankings)}
        values = np.array(list(evaluate_run(run, self.qrels, [self.metric])[self.metric].values()))
        bounds = interval_of_means(values[:, None], samples=2000, confidence=0.95, seed=0)
        self.interval = [round(float(bound[0]), 4) for bound in bounds]
        return float(values.mean())


def _rows(
    passages: Passages, required: set[int], most: int | None, rng: np.random.Generator
) -> np.ndarray:
    everything = np.arange(len(passages.texts))
    if most is None or most >= len(everything):
        return everything
    mask = np.isin(passages.documents, list(required))
    others = rng.permutation(everything[~mask])[: max(0, most - int(mask.sum()))]
    return np.sort(np.concatenate([everything[mask], others]))


class TrainingTables:
    """The corpus's tables as training data, where a document is its number in the order of document
    ids.
    """

    def __init__(self, corpus: Corpus, pseudo_queries: pd.DataFrame, include_title: bool) -> None:
        ids, numbers = np.unique(
            corpus.passages["document_id"].to_numpy(dtype=str), return_inverse=True
        )
        self.corpus = corpus
        self.number = {document: number for number, document in enumerate(ids.tolist())}
        self.passages = Passages(
            passage_texts(corpus.passages, include_title), numbers.astype(np.int64)
        )
        self.pseudo_queries = pseudo_queries
        self.train, self.dev = corpus.judgements("train"), corpus.judgements("dev")

    @classmethod
    def load(cls, context: StageContext) -> TrainingTables:
        """The tables in `inputs["corpus"]` and `inputs["pseudo_queries"]`."""
        pseudo_queries = pd.read_parquet(
            context.inputs["pseudo_queries"] / "pseudo_queries.parquet"
        )
        corpus = strip_query_lines(load_corpus(context.inputs["corpus"]))
        return cls(corpus, pseudo_queries, context.settings["encoder"].include_title)

    def training_data(self, settings: TrainingSettings) -> TrainingData:
        """The pairs that `settings.supervision` asks for; joint training does without qrels if
        there are none.
        """
        supervised = self.train
        if settings.supervision == "supervised" and not supervised.queries:
            raise FreshetError(
                "the corpus has no training qrels; set supervision to joint or unsupervised"
            )
        if settings.supervision == "unsupervised":
            supervised = Judgements({}, {}, "qrels")
        judged = [
            (text, [self.number[document] for document in supervised.qrels[query]])
            for query, text in supervised.queries.items()
        ]
        table = (
            self.pseudo_queries
            if settings.supervision != "supervised"
            else self.pseudo_queries.iloc[:0]
        )
        rows = [
            (text, [self.number[key]])
            for text, key in zip(table["text"], table["document_id"], strict=True)
        ]
        answers: dict[str, list[str]] = {}
        # queries of equal text are one, with the answers of all
        for query, strings in supervised.answers.items():
            answers.setdefault(supervised.queries[query], []).extend(strings)
        pairs = replace(make_pairs(self.passages, judged), answers=answers)
        return TrainingData(self.passages, pairs, make_pairs(self.passages, rows))

    def dev_evaluator(self, settings: TrainingSettings, seed: int) -> DevEvaluator | None:
        """Equal for all retrievers of equal dev settings; None if the corpus has nothing to
        evaluate on.
        """
        if not self.dev.queries:
            return None
        queries = [
            (
                text,
                {
                    self.number[document]: relevance
                    for document, relevance in self.dev.qrels[query].items()
                },
            )
            for query, text in self.dev.queries.items()
        ]
        most = settings.dev_queries, settings.dev_passages
        return DevEvaluator(self.passages, queries, settings.dev_metric, seed, *most)
