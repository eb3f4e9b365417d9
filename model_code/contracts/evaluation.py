"""Contracts of evaluation folders, run files among them, and of the comparison: what must be there,
and its values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pandera.pandas as pa

from model_code.context import StageContext
from model_code.contracts.models import check_sealed
from model_code.contracts.rules import (
    WHOLE,
    passage_documents,
    require,
    require_files,
    require_same,
    validate,
)
from model_code.corpus.tables import Corpus, Judgements
from model_code.evaluation.comparison import is_variant
from model_code.evaluation.runs import escape_id, read_run_frame
from model_code.evaluation.scores import (
    EVALUATED_SPLITS,
    RRF,
    SCORE_DECIMALS,
    VARIANTS_FOLDER,
    evaluation_folders,
    strip_seed,
)
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import sample_judgements
from model_code.files import read_json
from model_code.retrieval.fused import Fusion, leave_one_out

ROUNDING = 2 * 10**-SCORE_DECIMALS
SCORES = pa.DataFrameSchema(
    {
        "query_id": pa.Column(str),
        "split": pa.Column(str, pa.Check.isin(EVALUATED_SPLITS)),
        "metric": pa.Column(str),
        "value": pa.Column("float64", pa.Check.in_range(0, WHOLE)),
        "asked_in_training": pa.Column(bool),
    },
    strict=True,
    unique=["query_id", "split", "metric"],
    name="scores.parquet",
)
Known = Collection[str]


def check_run(path: Path, system: str, queries: Known, documents: Known, depth: int) -> None:
    """Ranks from 1 without a gap, at most `depth`, scores that fall; each query and document known,
    none twice.
    """
    require(path.is_file(), f"{path.name} is missing")
    schema = pa.DataFrameSchema(
        {
            "query_id": pa.Column(None, _membership(queries, "a judged query")),
            "document_id": pa.Column(None, _membership(documents, "a document of the corpus")),
            "rank": pa.Column("int64", pa.Check.le(depth)),
            "score": pa.Column("float32", pa.Check(np.isfinite, error="finite")),
            "tag": pa.Column(None, _membership([escape_id(system)], "the name of the system")),
        },
        checks=[
            pa.Check(
                _ranks_in_order,
                error="ranks of a query must be 1, 2, 3, ..., one line after the other",
            ),
            pa.Check(_scores_fall, error="scores of a query must fall from rank to rank"),
        ],
        unique=["query_id", "document_id"],
        name=path.name,
    )
    validate(schema, read_run_frame(path))


def _membership(names: Known, description: str) -> pa.Check:
    """A check that asks each category once, not each line."""

    def known(series: pd.Series) -> pd.Series:
        return pd.Series(
            series.cat.categories.isin(list(names))[series.cat.codes], index=series.index
        )

    return pa.Check(known, error=description)


def _ranks_in_order(frame: pd.DataFrame) -> pd.Series:
    return frame["rank"] == frame.groupby("query_id", observed=True, sort=False).cumcount() + 1


def _scores_fall(frame: pd.DataFrame) -> pd.Series:
    """Whether scores fall: trec_eval breaks ties by document id, descending, so a tie would be
    another ranking.
    """
    steps = frame.groupby("query_id", observed=True, sort=False)["score"].diff()
    return steps.isna() | (steps < 0)


def check_evaluate(context: StageContext) -> None:
    """The folder of the retriever `context.name`, and those of its variants."""
    bench = _Bench.load(context)
    bench.check(str(context.name), context.output, bench.of_retrievers)


def check_baselines(context: StageContext) -> None:
    """A folder per baseline; the untrained encoder has variants as a retriever has, and the fusion
    as a fusion has.
    """
    generated = "sequence_to_sequence" in context.settings["pseudo_queries.generators"]
    names = {"bm25", "zero_shot", "untrained", *(["bm25_generated"] if generated else [])}
    require_same(
        "one folder per baseline",
        [path.parent.name for path in context.output.glob("*/metrics.json")],
        names,
    )
    bench = _Bench.load(context)
    variants = {
        "zero_shot": bench.of_retrievers,
        "untrained": bench.shares(context.output / "untrained"),
    }
    for name in sorted(names):
        bench.check(name, context.output / name, variants.get(name, frozenset()))
        if name != "bm25_generated":
            check_build(context.output / name / "build")


def check_fuse(context: StageContext) -> None:
    """The folder of the fusion `context.name`, the retriever in it, and each part's share where a
    fusion is left.
    """
    bench = _Bench.load(context)
    bench.check(str(context.name), context.output, bench.shares(context.output))
    check_build(context.output / "build")


def check_build(folder: Path) -> None:
    """An encoder, and an index whose files are those that its manifest names."""
    require((folder / "encoder").is_dir(), f"{folder.name}/encoder/ must be there")
    check_sealed(folder / "index")


@dataclass(frozen=True)
class _Bench:
    """What all systems of a stage are evaluated on."""

    judged: Mapping[str, Judgements]
    documents: frozenset[str]
    settings: EvaluationSettings

    @classmethod
    def load(cls, context: StageContext) -> _Bench:
        """Of the stage's corpus: the sampled judgements, and the documents that have passages."""
        folder, settings = context.inputs["corpus"], context.settings["evaluation"]
        # and not their texts
        documents = pd.read_parquet(folder / "documents.parquet", columns=["document_id"])
        tables = {
            name: pd.read_parquet(folder / f"{name}.parquet") for name in ("queries", "qrels")
        }
        corpus = Corpus(documents=documents, passages=documents.iloc[:0], **tables)
        return cls(
            sample_judgements(corpus, settings), frozenset(passage_documents(folder)), settings
        )

    @property
    def of_retrievers(self) -> frozenset[str]:
        """The variants that each retriever has, if the settings ask for any."""
        return frozenset({RRF} if self.settings.variants else ())

    def shares(self, folder: Path) -> frozenset[str]:
        """The variants of the fusion in a folder, which tell the share of each part, if the
        settings ask for any.
        """
        names = (
            list(Fusion.load(folder / "build" / "encoder").weights)
            if self.settings.variants
            else []
        )
        return frozenset(f"without_{part}" for part in leave_one_out(names))

    def check(self, system: str, folder: Path, variants: frozenset[str]) -> None:
        """The system's own folder and those of its variants, `variants` among them; none where that
        is empty.
        """
        self.check_system(system, folder)
        folders = {path.name for path in folder.glob(f"{VARIANTS_FOLDER}/*")}
        require_same(
            f"{system}: {VARIANTS_FOLDER}/", folders & variants if variants else folders, variants
        )
        for name in sorted(folders):
            self.check_system(f"{system}.{name}", folder / VARIANTS_FOLDER / name)

    def check_system(self, system: str, folder: Path) -> None:
        """The run of each split, the score of each query, and means that are means of these."""
        try:
            require_files(folder, ["metrics.json", "scores.parquet"])
            for split, judged in self.judged.items():
                check_run(
                    folder / f"run.{split}.trec",
                    system,
                    judged.queries,
                    self.documents,
                    self.settings.depth,
                )
            scores = pd.read_parquet(folder / "scores.parquet")
            validate(SCORES, scores)
            self._check_scores(system, read_json(folder / "metrics.json"), scores)
        except Exception as error:
            error.add_note(f"in the evaluation of {system}")
            raise

    def _check_scores(self, system: str, stated: Mapping[str, Any], scores: pd.DataFrame) -> None:
        require(
            stated["system"] == system,
            f"metrics.json must be of {system!r}, not of {stated['system']!r}",
        )
        for split, judged in self.judged.items():
            table = scores[scores["split"] == split].pivot(
                index="query_id", columns="metric", values="value"
            )
            require_same(
                f"scores.parquet, {split}: the judged queries", table.index, judged.queries
            )
            lacking = [
                name
                for name in self.settings.metrics
                if name not in table or table[name].isna().any()
            ]
            require(
                not (len(table) and lacking),
                f"scores.parquet, {split}: {', '.join(lacking)} of every query",
            )
            means = {"queries": len(table)} | {
                str(name): float(mean) for name, mean in table.mean().items()
            }
            require_same(
                f"metrics.json, {split}: the metrics that were scored", stated[split], means
            )
            wrong = [
                name for name, mean in means.items() if abs(mean - stated[split][name]) > ROUNDING
            ]
            require(
                not wrong,
                f"metrics.json, {split}: {', '.join(wrong)} must be the mean of the queries' scores",
            )


def check_comparison(context: StageContext) -> None:
    """Check that the whole and its groups are of the evaluated systems; `metrics.json` has some of
    the means.
    """
    comparison = read_json(context.output / "comparison.json")
    headline = read_json(context.output / "metrics.json")
    if not comparison["queries"]:
        require(
            not comparison["systems"] and not headline,
            "nobody judged any query, so no system may be compared",
        )
        return
    require_files(context.output, ["comparison.png"])
    expected = {
        strip_seed(read_json(folder / "metrics.json")["system"])
        for folder in evaluation_folders(context)
    }
    main = context.settings["evaluation"].main_metric
    parts = {"comparison.json": comparison}
    parts |= {
        f"comparison.json, queries {name!r}": part for name, part in comparison["groups"].items()
    }
    for where, part in parts.items():
        require_same(f"{where}: the systems that were evaluated", part["systems"], expected)
        for system, metrics in part["systems"].items():
            lost = [
                name
                for name, cell in metrics.items()
                if not cell["low"] <= cell["value"] <= cell["high"]
            ]
            require(main in metrics, f"{where}: {system} must have the main metric {main}")
            require(not lost, f"{where}: {system}: {', '.join(lost)} must lie within its interval")
    require_same(
        "metrics.json: the systems", headline, {name for name in expected if not is_variant(name)}
    )
    for name, values in headline.items():
        means = {metric: cell["value"] for metric, cell in comparison["systems"][name].items()}
        stated = main in values and values.items() <= means.items()
        require(stated, "metrics.json must hold the means of comparison.json")
