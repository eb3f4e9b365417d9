"""Checks of evaluation folders: run files, scores of queries, and their means."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pandera.pandas as pa

from model_code.checks.rules import require, require_files, require_same_names
from model_code.checks.tables import MAX_SHARE, passage_documents, validate
from model_code.context import StageContext
from model_code.corpus.tables import Corpus, Judgements
from model_code.evaluation.runs import escape_id, read_run_frame
from model_code.evaluation.scores import EVALUATED_SPLITS, RRF, SCORE_DECIMALS, VARIANTS_FOLDER
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import sample_judgements
from model_code.files import read_json
from model_code.retrieval.fused import Fusion, leave_one_out

# Largest difference between a reported mean and the mean of the scores. Both are rounded to
# `SCORE_DECIMALS`.
MEAN_TOLERANCE = 2 * 10**-SCORE_DECIMALS
SCORES_SCHEMA = pa.DataFrameSchema(
    {
        "query_id": pa.Column(str),
        "split": pa.Column(str, pa.Check.isin(EVALUATED_SPLITS)),
        "metric": pa.Column(str),
        "value": pa.Column("float64", pa.Check.in_range(0, MAX_SHARE)),
        "with_known": pa.Column(bool),
    },
    strict=True,
    unique=["query_id", "split", "metric"],
    name="scores.parquet",
)


def check_run(
    path: Path,
    system: str,
    queries: Collection[str],
    documents: Collection[str],
    depth: int,
) -> None:
    """Check a run file in TREC's format.

    The ranks of a query must be 1, 2, 3 and so on, at most `depth`, with falling scores. Each query
    and document must exist, and a document must not occur twice for a query.

    Args:
        path: The run file.
        system: Name of the system, which each line must contain.
        queries: Ids of the judged queries.
        documents: Ids of the documents of the corpus.
        depth: Largest number of ranked documents per query.

    Raises:
        FreshetError: If a rule is broken.
    """
    require(path.is_file(), f"{path.name} is missing")
    ranks_error = "ranks of a query must be 1, 2, 3, ..., one line after the other"
    scores_error = "scores of a query must fall from rank to rank"
    schema = pa.DataFrameSchema(
        {
            "query_id": pa.Column(None, _membership(queries, "a judged query")),
            "document_id": pa.Column(None, _membership(documents, "a document of the corpus")),
            "rank": pa.Column("int64", pa.Check.le(depth)),
            "score": pa.Column("float32", pa.Check(np.isfinite, error="finite")),
            "tag": pa.Column(None, _membership([escape_id(system)], "the name of the system")),
        },
        checks=[
            pa.Check(_ranks_in_order, error=ranks_error),
            pa.Check(_scores_fall, error=scores_error),
        ],
        unique=["query_id", "document_id"],
        name=path.name,
    )
    validate(schema, read_run_frame(path))


@dataclass(frozen=True)
class EvaluationChecker:
    """Checks evaluation folders of one stage against the queries that the stage had to evaluate.

    Attributes:
        judgements: The sampled judgements by split.
        documents: Ids of the documents that have passages.
        settings: The group `evaluation` of `params.yaml`.
    """

    judgements: Mapping[str, Judgements]
    documents: frozenset[str]
    settings: EvaluationSettings

    @classmethod
    def load(cls, context: StageContext) -> EvaluationChecker:
        """Read the corpus of a stage, without the texts of its documents."""
        folder = context.inputs["corpus"]
        settings = context.settings["evaluation"]
        documents = pd.read_parquet(folder / "documents.parquet", columns=["document_id"])
        corpus = Corpus(
            documents=documents,
            passages=documents.iloc[:0],
            queries=pd.read_parquet(folder / "queries.parquet"),
            qrels=pd.read_parquet(folder / "qrels.parquet"),
        )
        judgements = sample_judgements(corpus, settings)
        return cls(judgements, frozenset(passage_documents(folder)), settings)

    @property
    def retriever_variants(self) -> frozenset[str]:
        """Names of the variants that every retriever must have.

        A variant is a changed form of a system that is evaluated in addition to it, such as its
        fusion with BM25 by reciprocal ranks.
        """
        if not self.settings.variants:
            return frozenset()
        return frozenset({RRF})

    def fusion_variants(self, folder: Path) -> frozenset[str]:
        """Return the names of the variants that a fusion must have.

        A fusion combines several retrievers. Each variant leaves one of them out, to show what it
        contributes.
        """
        if not self.settings.variants:
            return frozenset()
        weights = Fusion.load(folder / "build" / "encoder").weights
        return frozenset(f"without_{component}" for component in leave_one_out(list(weights)))

    def check(self, system: str, folder: Path, variants: frozenset[str]) -> None:
        """Check the folder of a system and the folders of its variants.

        Args:
            system: Name of the system.
            folder: Evaluation folder of the system.
            variants: Names of the required variants. Further variants are allowed, unless no
                variant is required.
        """
        self.check_system(system, folder)

        names = {path.name for path in folder.glob(f"{VARIANTS_FOLDER}/*")}
        compared_names = names
        if variants:
            # Variants that are not required are allowed, so they are not compared.
            compared_names = names & variants
        require_same_names(f"{system}: {VARIANTS_FOLDER}/", compared_names, variants)
        for name in sorted(names):
            self.check_system(f"{system}.{name}", folder / VARIANTS_FOLDER / name)

    def check_system(self, system: str, folder: Path) -> None:
        """Check the run of each split, the scores of each query, and the means of these scores."""
        try:
            require_files(folder, ["metrics.json", "scores.parquet"])
            for split, judgements in self.judgements.items():
                check_run(
                    folder / f"run.{split}.trec",
                    system,
                    judgements.queries,
                    self.documents,
                    self.settings.depth,
                )
            scores = pd.read_parquet(folder / "scores.parquet")
            validate(SCORES_SCHEMA, scores)
            self._check_scores(system, read_json(folder / "metrics.json"), scores)
        except Exception as error:
            error.add_note(f"in the evaluation of {system}")
            raise

    def _check_scores(self, system: str, metrics: Mapping[str, Any], scores: pd.DataFrame) -> None:
        """Require a score of each judged query by each metric, and their means.

        Args:
            system: Name of the system.
            metrics: Content of `metrics.json`.
            scores: Content of `scores.parquet`.
        """
        require(
            metrics["system"] == system,
            f"metrics.json must be of {system!r}, not of {metrics['system']!r}",
        )
        for split, judgements in self.judgements.items():
            split_scores = scores[scores["split"] == split]
            table = split_scores.pivot(index="query_id", columns="metric", values="value")
            require_same_names(
                f"scores.parquet, {split}: the judged queries", table.index, judgements.queries
            )
            self._require_all_metrics(split, table)
            _check_means(split, metrics[split], table)

    def _require_all_metrics(self, split: str, table: pd.DataFrame) -> None:
        """Require a score by every metric of the settings for each query of a table."""
        # A split without judged queries has an empty table, which lacks even the metrics' columns.
        if not len(table):
            return
        missing = []
        for name in self.settings.metrics:
            if name not in table or table[name].isna().any():
                missing.append(name)
        require(not missing, f"scores.parquet, {split}: {', '.join(missing)} of every query")


def _check_means(split: str, reported: Mapping[str, float], table: pd.DataFrame) -> None:
    """Require the reported means of a split to be the means of its scores.

    Args:
        split: Name of the split.
        reported: The means in `metrics.json`, by metric.
        table: The scores, with a row per query and a column per metric.
    """
    means = {"queries": float(len(table))}
    for name, mean in table.mean().items():
        means[str(name)] = float(mean)

    require_same_names(f"metrics.json, {split}: the metrics that were scored", reported, means)
    wrong = [name for name, mean in means.items() if abs(mean - reported[name]) > MEAN_TOLERANCE]
    require(
        not wrong,
        f"metrics.json, {split}: {', '.join(wrong)} must be the mean of the queries' scores",
    )


def _membership(names: Collection[str], description: str) -> pa.Check:
    """Return a check that all values of a categorical column are known names.

    Each category is looked up once, which is faster than looking up the value of each line.
    """

    def is_known(series: pd.Series) -> pd.Series:
        known_categories = series.cat.categories.isin(list(names))
        return pd.Series(known_categories[series.cat.codes], index=series.index)

    return pa.Check(is_known, error=description)


def _ranks_in_order(frame: pd.DataFrame) -> pd.Series:
    """Return whether each line has the rank that follows from its place among its query's lines."""
    expected = frame.groupby("query_id", observed=True, sort=False).cumcount() + 1
    return frame["rank"] == expected


def _scores_fall(frame: pd.DataFrame) -> pd.Series:
    """Return whether the score of each line is below the score of the line before.

    Ties are not allowed: trec_eval orders documents with equal scores by descending id, so its
    ranking could differ from the ranks in the file.
    """
    steps = frame.groupby("query_id", observed=True, sort=False)["score"].diff()
    return steps.isna() | (steps < 0)
