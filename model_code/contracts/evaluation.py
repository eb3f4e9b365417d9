"""Contracts of evaluation folders: of a retriever with its variants, and of each baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from model_code.context import StageContext
from model_code.contracts.frames import validate
from model_code.contracts.known import judgements, passage_documents
from model_code.contracts.rules import WHOLE, require, require_files, require_same
from model_code.contracts.runs import check_run
from model_code.corpus.tables import Judgements
from model_code.evaluation.scores import SPLITS, VARIANTS
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import DIGITS, RERANK, RRF
from model_code.files import read_json

if TYPE_CHECKING:
    import pandera.pandas as pa


def check_evaluate(context: StageContext) -> None:
    """The folder of the retriever `context.name`, and those of its variants."""
    _Bench.load(context).check_retriever(str(context.name), context.output)


def check_baselines(context: StageContext) -> None:
    """A folder per baseline; the untrained encoder has variants as a retriever has."""
    generated = "sequence_to_sequence" in context.settings["pseudo_queries.generators"]
    names = {"bm25", "zero_shot", *(["bm25_generated"] if generated else [])}
    require_same("one folder per baseline", [path.parent.name for path in context.output.glob("*/metrics.json")], names)
    bench = _Bench.load(context)
    for name in sorted(names - {"zero_shot"}):
        bench.check_system(name, context.output / name)
        bench.check_variants(name, context.output / name, set())
    bench.check_retriever("zero_shot", context.output / "zero_shot")


@dataclass(frozen=True)
class _Bench:
    """What all systems of a stage are evaluated on."""

    judged: Mapping[str, Judgements]
    documents: frozenset[str]
    settings: EvaluationSettings

    @classmethod
    def load(cls, context: StageContext) -> _Bench:
        documents = frozenset(passage_documents(context.inputs["corpus"]))
        return cls(judgements(context), documents, context.settings["evaluation"])

    def check_retriever(self, system: str, folder: Path) -> None:
        """A system and its variants, both hybrids among them if the settings ask for any."""
        self.check_system(system, folder)
        self.check_variants(system, folder, {RRF, RERANK} if self.settings.variants else set())

    def check_variants(self, system: str, folder: Path, expected: set[str]) -> None:
        found = sorted(path.name for path in folder.glob(f"{VARIANTS}/*"))
        lacking = sorted(expected - set(found))
        require(not lacking, f"{system}: {VARIANTS}/ must hold {', '.join(lacking)}")
        require(bool(expected) or not found, f"{system}: {VARIANTS}/ must not be there, but holds {', '.join(found)}")
        for name in found:
            self.check_system(f"{system}.{name}", folder / VARIANTS / name)

    def check_system(self, system: str, folder: Path) -> None:
        """The run of each split, the score of each query, and means that are means of these."""
        try:
            require_files(folder, ["metrics.json", "scores.parquet"])
            for split, judged in self.judged.items():
                check_run(folder / f"run.{split}.trec", system, judged.queries, self.documents, self.settings.depth)
            scores = pd.read_parquet(folder / "scores.parquet")
            validate(_scores_schema(), scores)
            self._check_metrics(system, read_json(folder / "metrics.json"), scores)
        except Exception as error:
            error.add_note(f"in the evaluation of {system}")
            raise

    def _check_metrics(self, system: str, metrics: Mapping[str, Any], scores: pd.DataFrame) -> None:
        require(metrics["system"] == system, f"metrics.json must be of {system!r}, not of {metrics['system']!r}")
        source = next(iter(self.judged.values())).source
        require(metrics["source"] == source, f"metrics.json must state the source {source!r}")
        for split, judged in self.judged.items():
            self._check_split(split, judged, metrics[split], scores[scores["split"] == split])

    def _check_split(self, split: str, judged: Judgements, stated: Mapping[str, float], scores: pd.DataFrame) -> None:
        queries = len(judged.queries)
        require(stated["queries"] == queries, f"metrics.json, {split}: {stated['queries']} queries, judged: {queries}")
        require_same(f"scores.parquet, {split}: one row per judged query", set(scores["query_id"]), judged.queries)
        by_metric = scores.groupby("metric", sort=False)["value"]
        few = sorted(by_metric.size().index[by_metric.size() != queries])
        require(not few, f"scores.parquet, {split}: {', '.join(few)} must have one row per judged query")
        means = {str(name): round(float(mean), DIGITS) for name, mean in by_metric.mean().items()}
        require_same(f"metrics.json, {split}: the metrics that were scored", stated.keys() - {"queries"}, means.keys())
        asked = self.settings.metrics if queries else ()
        lacking = [name for name in asked if name not in means]
        require(not lacking, f"scores.parquet, {split}, must have {', '.join(lacking)}")
        wrong = [name for name in means if abs(means[name] - stated[name]) > 2 * 10**-DIGITS]
        require(not wrong, f"metrics.json, {split}: {', '.join(wrong)} must be the mean of the queries' scores")


def _scores_schema() -> pa.DataFrameSchema:
    import pandera.pandas as pa

    columns = {
        "query_id": pa.Column(str),
        "split": pa.Column(str, pa.Check.isin(SPLITS)),
        "metric": pa.Column(str),
        "value": pa.Column("float64", pa.Check.in_range(0, WHOLE)),
    }
    key = ["query_id", "split", "metric"]
    return pa.DataFrameSchema(columns, strict=True, unique=key, name="scores.parquet")
