"""The corpus's tables as training data: the pairs to train on and the queries that choose the best step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from model_code.context import StageContext
from model_code.corpus.tables import Corpus, Judgements, judged, judged_corpus, load_corpus, passage_texts
from model_code.errors import FreshetError
from model_code.training.data import DevQueries, Pairs, Passages, TrainingData, make_pairs
from model_code.training.dev_evaluation import DevEvaluator
from model_code.training.settings import TrainingSettings


class TrainingTables:
    """The corpus's tables as training data, where a document is its number in the order of document ids."""

    def __init__(self, corpus: Corpus, pseudo_queries: pd.DataFrame, include_title: bool) -> None:
        ids, numbers = np.unique(corpus.passages["document_id"].to_numpy(dtype=str), return_inverse=True)
        self.corpus = corpus
        self.number = {document: number for number, document in enumerate(ids.tolist())}
        self.passages = Passages(passage_texts(corpus.passages, include_title), numbers.astype(np.int64))
        self.pseudo_queries = pseudo_queries
        self.train, self.dev = judged(corpus, "train"), judged(corpus, "dev")

    @classmethod
    def load(cls, context: StageContext) -> TrainingTables:
        """The tables in `inputs["corpus"]` and `inputs["pseudo_queries"]`."""
        pseudo_queries = pd.read_parquet(context.inputs["pseudo_queries"] / "pseudo_queries.parquet")
        corpus = judged_corpus(load_corpus(context.inputs["corpus"]))
        return cls(corpus, pseudo_queries, context.settings["encoder"].include_title)

    def training_data(self, settings: TrainingSettings) -> TrainingData:
        """The pairs that `settings.supervision` asks for; joint training does without qrels if there are none."""
        supervised = self.train
        if settings.supervision == "supervised" and not supervised.queries:
            raise FreshetError("the corpus has no training qrels; set supervision to joint or unsupervised")
        if settings.supervision == "unsupervised":
            supervised = Judgements({}, {}, "qrels")
        pairs = make_pairs(self.passages, self._numbered(supervised))
        return TrainingData(
            self.passages,
            replace(pairs, answers=_by_text(supervised)),
            make_pairs(self.passages, []) if settings.supervision == "supervised" else self._pseudo_pairs(),
        )

    def supervision(self, data: TrainingData) -> str:
        """What training has in fact been: "supervised", "unsupervised" or "joint"."""
        if not len(data.unsupervised):
            return "supervised"
        return "joint" if len(data.supervised) else "unsupervised"

    def dev_evaluator(self, settings: TrainingSettings, seed: int) -> DevEvaluator | None:
        """Equal for all retrievers of equal dev settings; None if the corpus has nothing to evaluate on."""
        if not self.dev.queries:
            return None
        relevant = [
            {self.number[document]: relevance for document, relevance in self.dev.qrels[query].items()}
            for query in self.dev.queries
        ]
        queries = DevQueries(list(self.dev.queries.values()), relevant)
        return DevEvaluator(
            self.passages, queries, settings.dev_metric, seed, settings.dev_queries, settings.dev_passages
        )

    def _pseudo_pairs(self) -> Pairs:
        """One pair per pseudo-query."""
        rows = zip(self.pseudo_queries["text"], self.pseudo_queries["document_id"], strict=True)
        return make_pairs(self.passages, [(text, [self.number[document]]) for text, document in rows])

    def _numbered(self, judgements: Judgements) -> list[tuple[str, list[int]]]:
        return [
            (text, [self.number[document] for document in judgements.qrels[query]])
            for query, text in judgements.queries.items()
        ]


def _by_text(judgements: Judgements) -> dict[str, list[str]]:
    """The answers of each query by its text: queries of equal text are one, with the answers of all."""
    by_text: dict[str, list[str]] = {}
    for query, answers in judgements.answers.items():
        by_text.setdefault(judgements.queries[query], []).extend(answers)
    return by_text
