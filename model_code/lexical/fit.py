"""Train a lexical encoder on a corpus's pairs: a head, a cheap first stage, the semi-parametric loss.

Writes `encoder/` (see `layout.py`), `history.json`, the rows of the last stage's training curve, and, if there were
two, `first_stage.json`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from model_code.context import StageContext
from model_code.evaluation.metrics import Metric, evaluate_run
from model_code.files import write_json
from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.embedding_index import EmbeddingIndex
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.index import BY_TOKENS, LexicalIndex, index_tokens
from model_code.lexical.layout import save_encoder, start_encoder
from model_code.lexical.settings import LexicalSettings, MainSearch
from model_code.lexical.trainer import FirstStageTrainer, LexicalTrainer
from model_code.training.data import TrainingData
from model_code.training.dev_evaluation import DEPTH, DevEvaluator
from model_code.training.fit import data_report, result_report
from model_code.training.loop import TrainingResult
from model_code.training.settings import TrainingSettings
from model_code.training.tables import TrainingTables

DIGITS = 12  # of a document's number, so that ties, which token searches have many of, break as by the documents' ids


def fit_lexical_encoder(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the lexical retriever of `context`; the report says what it saw and which step was best."""
    retriever = context.settings["retriever"]
    training, lexical = retriever.training, retriever.lexical
    encoder = start_encoder(context.settings["encoder"], lexical, tables.passages.texts, context.settings["seed"])
    report: dict[str, Any] = {"head": encoder.config.head}
    data = tables.training_data(training)
    stages = _Stages(context, encoder, tables, data)
    results = stages.run()
    save_encoder(encoder, context.output / "encoder")
    for name, result in zip(("history", "first_stage"), reversed(results), strict=False):
        write_json(context.output / f"{name}.json", list(result.history))
    if len(results) == 2:
        report["first_stage"] = result_report(results[0], training)
    report |= data_report(tables, data, training) | result_report(results[-1], training)
    report["dev_search"] = stages.dev_search
    return report | {"fingerprint": encoder.fingerprint()}


class _Stages:
    """The stages of one training, on one encoder."""

    def __init__(
        self, context: StageContext, encoder: LexicalEncoder, tables: TrainingTables, data: TrainingData
    ) -> None:
        self.context, self.encoder, self.tables, self.data = context, encoder, tables, data
        self.training: TrainingSettings = context.settings["retriever"].training
        self.lexical: LexicalSettings = context.settings["retriever"].lexical
        self.seed: int = context.settings["seed"]

    @cached_property
    def bags(self) -> list[np.ndarray]:
        """T(p) of every passage."""
        return self.encoder.bags(self.tables.passages.texts)

    @property
    def dev_search(self) -> MainSearch:
        """The search whose dev metric chooses the best step of the last stage."""
        return self.lexical.search if self.lexical.semi_parametric else self._first_search

    @property
    def _first_search(self) -> MainSearch:
        """The first stage is judged by tokens, whatever is searched in the end: it trains nothing else."""
        return self.lexical.search if self.lexical.search in BY_TOKENS else "beta"

    def run(self) -> list[TrainingResult]:
        """The results of the stages that the settings ask for, in order."""
        results = []
        if self.lexical.first_stage_steps:
            results.append(self._first())
        if self.lexical.semi_parametric:
            results.append(self._second())
        return results

    def _first(self) -> TrainingResult:
        trainer = FirstStageTrainer(
            self.encoder, self.data, self.training, self.seed,
            hierarchy=self._hierarchy() if self.training.hierarchy_weight > 0 else None,
            dev=self._dev(self._first_search),
            checkpoints=self.context.checkpoints / "first_stage",
            progress=self.context.progress("train, first stage"),
            lexical=self.lexical,
            bags=self.bags,
        )  # fmt: skip
        return trainer.fit()

    def _second(self) -> TrainingResult:
        texts, retrieved = self.tables.passages.texts, self.lexical.in_training_negatives > 0
        numbers = [str(passage) for passage in range(len(texts))]
        trainer = LexicalTrainer(
            self.encoder, self.data, self.training, self.seed,
            hierarchy=self._hierarchy() if self.training.needs_hierarchy or retrieved else None,
            dev=self._dev(self.lexical.search),
            checkpoints=self.context.checkpoints,
            progress=self.context.progress("train"),
            lexical=self.lexical,
            tokens=index_tokens(self.encoder, texts, numbers) if retrieved else None,
            bags=self.bags if self.training.hierarchy_weight > 0 else None,
        )  # fmt: skip
        return trainer.fit()

    def _hierarchy(self) -> Hierarchy:
        return Hierarchy.load(self.context.inputs["hierarchy"])

    def _dev(self, search: MainSearch) -> LexicalDev | None:
        evaluator = self.tables.dev_evaluator(self.training, self.seed)
        return None if evaluator is None else LexicalDev(evaluator, self.encoder, self.lexical, search)


class LexicalDev:
    """Stands for a `DevEvaluator` in a `Trainer`, for one encoder.

    search: the one that is evaluated. Passages are embedded at each evaluation if it needs them; their tokens are
    indexed once.
    """

    def __init__(
        self, evaluator: DevEvaluator, encoder: LexicalEncoder, settings: LexicalSettings, search: MainSearch
    ) -> None:
        self.evaluator, self.encoder, self.settings, self.search = evaluator, encoder, settings, search
        self.metric, self.rows, self.covers_corpus = evaluator.metric, evaluator.rows, evaluator.covers_corpus
        self.texts = [evaluator.passages.texts[row] for row in evaluator.rows]
        documents = evaluator.passages.documents[evaluator.rows]
        self.names = [f"{document:0{DIGITS}}" for document in documents]
        self.tokens = index_tokens(encoder, self.texts, self.names)

    def encode_passages(self, _: Any = None) -> EmbeddingIndex | None:
        """The ranked passages as the encoder embeds them now; None if the search reads tokens only."""
        if self.search in BY_TOKENS:
            return None
        embeddings = self.encoder.encode(self.texts)
        fingerprint, size = self.encoder.fingerprint(), self.encoder.vocabulary_size
        return EmbeddingIndex.build(embeddings, self.names, size, fingerprint)

    def score(self, _: Any, passages: EmbeddingIndex | None) -> float:
        """The mean metric of the search with the encoder as it is now."""
        evaluator = self.evaluator
        index = LexicalIndex(self.encoder, self.tokens, passages, self.settings.rerank_depth)
        depth = Metric.parse(self.metric).cutoff or DEPTH
        rankings = index.search(self.search, evaluator.queries, depth)
        run = {str(row): [(_number(name), score) for name, score in hits] for row, hits in enumerate(rankings)}
        return float(np.mean(list(evaluate_run(run, evaluator.qrels, [self.metric])[self.metric].values())))


def _number(name: str) -> str:
    """A document's number as the judgements have it.

    >>> _number("000000000120"), _number("000000000000")
    ('120', '0')
    """
    return name.lstrip("0") or "0"
