"""Turn the tables of a corpus into training data, and evaluate checkpoints on dev."""

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
from model_code.evaluation.scores import WITH_KNOWN, WITHOUT_KNOWN
from model_code.evaluation.significance import interval_of_means
from model_code.retrieval.protocol import Ranking
from model_code.retrieval.top_k import top_k
from model_code.training.data import Passages, TrainingData, make_pairs
from model_code.training.settings import TrainingSettings

# Number of documents that are ranked for a metric without a cutoff.
DEFAULT_DEPTH = 100
# Number of decimals of interval bounds and group means in reports.
DEV_DECIMALS = 4


class DevEvaluator:
    """Computes the mean of one metric over dev queries.

    If the corpus has more than `max_passages` passages, only those of judged documents and a sample
    of the others are ranked. The values of checkpoints can then be compared with each other, but
    not with the final evaluation.

    Args:
        passages: The searched passages.
        dev: Texts of dev queries, each with its judgements {document number: relevance}.
        metric: Name of the metric.
        seed: Seed of the samples.
        max_queries: Maximum number of queries. If `dev` has more, a sample of them is evaluated.
        max_passages: Maximum number of ranked passages. None: all.
        with_known: Positions in `dev` of queries with a relevant document that has known queries.

    Attributes:
        queries: Texts of the evaluated queries.
        rows: Numbers of the ranked passages, (P,).
        texts: Texts of the ranked passages.
        interval: 95 % interval over queries of the last computed mean.
        groups: Number of queries and mean metric of the last evaluation in two groups:
            {"with_known": {"queries", metric}, "without_known": {...}}. A group without queries is
            left out.
    """

    def __init__(
        self,
        passages: Passages,
        dev: Sequence[tuple[str, Mapping[int, int]]],
        metric: str,
        seed: int,
        max_queries: int,
        max_passages: int | None = None,
        with_known: Sequence[int] = (),
    ) -> None:
        rng = np.random.default_rng(seed)
        sample = np.sort(rng.permutation(len(dev))[:max_queries])
        queries = [dev[position] for position in sample]

        self.metric = metric
        self.passages = passages
        self.queries = [text for text, _ in queries]
        self.qrels: dict[str, dict[str, int]] = {}
        for row, (_, judged) in enumerate(queries):
            self.qrels[str(row)] = {str(document): grade for document, grade in judged.items()}

        required = {document for _, judged in queries for document in judged}
        self.rows = _sample_rows(passages, required, max_passages, rng)
        self.texts = [passages.texts[row] for row in self.rows]
        self._is_with_known = np.isin(sample, list(with_known))
        self.interval: list[float] | None = None
        self.groups: dict[str, dict[str, float]] | None = None

    def score(self, queries: np.ndarray, vectors: np.ndarray) -> float:
        """Return the mean metric for encoded queries and passages.

        The score of a document is that of its best vector.

        Args:
            queries: Vectors of `self.queries`, (Q, H).
            vectors: Vectors of `self.texts`, (P, H), or (P * v, H) with v vectors per passage.
        """
        vectors_per_passage = len(vectors) // len(self.rows)
        documents = self.passages.documents[self.rows].repeat(vectors_per_passage)
        names = [str(document) for document in documents]
        return self.mean([top_k(vectors @ query, names, self.depth) for query in queries])

    @property
    def depth(self) -> int:
        """Number of documents that are ranked for each query: the metric's cutoff, or 100."""
        _, cutoff = parse_metric(self.metric)
        return DEFAULT_DEPTH if cutoff is None else cutoff

    def mean(self, rankings: Sequence[Ranking]) -> float:
        """Return the mean metric of rankings, and update `interval` and `groups`.

        Args:
            rankings: For each of `queries`, a ranking of document numbers as text.
        """
        # The metric needs ids of queries, so each query is named by its position.
        run = {str(row): ranking for row, ranking in enumerate(rankings)}
        value_of_query = evaluate_run(run, self.qrels, [self.metric])[self.metric]
        values = np.array([value_of_query[str(row)] for row in range(len(self.queries))])

        bounds = interval_of_means(values[:, None], samples=2000, confidence=0.95, seed=0)
        self.interval = [round(float(bound[0]), DEV_DECIMALS) for bound in bounds]
        self.groups = self._group_means(values)
        return float(values.mean())

    def _group_means(self, values: np.ndarray) -> dict[str, dict[str, float]]:
        """Return the mean metric of queries for documents with known queries, and of all others.

        The attribute `groups` describes them.

        Args:
            values: Metric of each query, (Q,).
        """
        values_by_group = {
            WITH_KNOWN: values[self._is_with_known],
            WITHOUT_KNOWN: values[~self._is_with_known],
        }
        groups = {}
        for name, group_values in values_by_group.items():
            if len(group_values):
                mean = round(float(group_values.mean()), DEV_DECIMALS)
                groups[name] = {"queries": len(group_values), self.metric: mean}
        return groups


def _sample_rows(
    passages: Passages, required: set[int], limit: int | None, rng: np.random.Generator
) -> np.ndarray:
    """Return the passages of the required documents, and a sample of the others."""
    all_rows = np.arange(len(passages.texts))
    if limit is None or limit >= len(all_rows):
        return all_rows
    is_required = np.isin(passages.documents, list(required))
    others = rng.permutation(all_rows[~is_required])
    sample_size = max(0, limit - int(is_required.sum()))
    return np.sort(np.concatenate([all_rows[is_required], others[:sample_size]]))


class TrainingTables:
    """The tables of a corpus as training data. Documents are numbered in the order of their ids.

    Args:
        corpus: The corpus, from whose texts lines that are queries are removed.
        pseudo_queries: The table of pseudo-queries.
        include_title: Whether the encoder reads titles.
    """

    def __init__(self, corpus: Corpus, pseudo_queries: pd.DataFrame, include_title: bool) -> None:
        # numpy would store all ids in the length of the longest one.
        numbers, ids = pd.factorize(corpus.passages["document_id"], sort=True)
        texts = passage_texts(corpus.passages, include_title)

        self.corpus = corpus
        self.number = {document: number for number, document in enumerate(ids)}
        self.passages = Passages(texts, numbers.astype(np.int64))
        self.pseudo_queries = pseudo_queries
        self.train = corpus.judgements("train")
        self.dev = corpus.judgements("dev")

    @classmethod
    def load(cls, context: StageContext) -> TrainingTables:
        """Read the tables in `inputs["corpus"]` and `inputs["pseudo_queries"]`."""
        folder = context.inputs["pseudo_queries"]
        pseudo_queries = pd.read_parquet(folder / "pseudo_queries.parquet")
        corpus = strip_query_lines(load_corpus(context.inputs["corpus"]))
        return cls(corpus, pseudo_queries, context.settings["encoder"].include_title)

    def training_data(self, settings: TrainingSettings) -> TrainingData:
        """Return the training pairs of the kinds that `settings.supervision` selects.

        If the corpus has no training qrels, joint training uses pseudo-queries only.

        Raises:
            FreshetError: If supervised training has no training qrels.
        """
        supervised = self.train
        if settings.supervision == "supervised" and not supervised.queries:
            raise FreshetError(
                "the corpus has no training qrels; set supervision to joint or unsupervised"
            )
        if settings.supervision == "unsupervised":
            supervised = Judgements({}, {}, "qrels")
        # Texts of queries, each with the numbers of the documents that answer it.
        judged = []
        for query, text in supervised.queries.items():
            documents = [self.number[document] for document in supervised.qrels[query]]
            judged.append((text, documents))

        table = self.pseudo_queries
        if settings.supervision == "supervised":
            table = table.iloc[:0]
        generated = []
        for text, document in zip(table["text"], table["document_id"], strict=True):
            generated.append((text, [self.number[document]]))

        # Queries with equal texts count as one query, so their answers are joined.
        answers: dict[str, list[str]] = {}
        for query, strings in supervised.answers.items():
            answers.setdefault(supervised.queries[query], []).extend(strings)
        pairs = replace(make_pairs(self.passages, judged), answers=answers)
        return TrainingData(self.passages, pairs, make_pairs(self.passages, generated))

    def dev_evaluator(self, settings: TrainingSettings, seed: int) -> DevEvaluator | None:
        """Return the evaluator on dev, or None if dev has no queries.

        Retrievers with equal dev settings and seeds are evaluated on the same queries and passages.
        """
        if not self.dev.queries:
            return None
        queries = []
        with_known = []
        for position, (query, text) in enumerate(self.dev.queries.items()):
            grades = self.dev.qrels[query]
            judged = {self.number[document]: relevance for document, relevance in grades.items()}
            queries.append((text, judged))
            if query in self.dev.with_known:
                with_known.append(position)
        return DevEvaluator(
            self.passages,
            queries,
            settings.dev_metric,
            seed,
            settings.dev_queries,
            settings.dev_passages,
            with_known,
        )
