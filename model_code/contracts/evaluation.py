"""Contracts of evaluation folders, run files among them, and of the comparison: values in intervals, every table there.

A TREC run is read as a data frame: hundreds of thousands of lines in a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pandas as pd

from model_code.context import StageContext, left_out
from model_code.contracts.rules import (
    WHOLE,
    judgements,
    passage_documents,
    require,
    require_files,
    require_same,
    validate,
)
from model_code.corpus.tables import Judgements
from model_code.evaluation.comparison import is_variant
from model_code.evaluation.runs import escape
from model_code.evaluation.scores import DIGITS, SPLITS, VARIANTS, without_seed
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import RRF
from model_code.files import read_json
from model_code.manifest import MANIFEST, verify

if TYPE_CHECKING:
    import pandera.pandas as pa


COLUMNS = ("query_id", "q0", "document_id", "rank", "score", "tag")
Known = Collection[str]


def check_run(path: Path, system: str, queries: Known, documents: Known, depth: int) -> None:
    """Ranks from 1 without a gap, at most `depth`, scores that fall; each query and document known, none twice."""
    require(path.is_file(), f"{path.name} is missing")
    if path.stat().st_size:  # nothing is found where nothing is asked
        validate(_schema(path.name, system, queries, documents, depth), read_frame(path))


def read_frame(path: Path) -> pd.DataFrame:
    """A run's lines in their order; ids and tag as categories, ranks int64, scores float32."""
    import pyarrow as pa
    from pyarrow import csv

    names = pa.dictionary(pa.int32(), pa.string())
    kinds = dict.fromkeys(("query_id", "q0", "document_id", "tag"), names) | {"rank": pa.int64(), "score": pa.float64()}
    table = csv.read_csv(
        path,
        read_options=csv.ReadOptions(column_names=list(COLUMNS)),
        parse_options=csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False, escape_char=False),
        convert_options=csv.ConvertOptions(column_types=kinds, strings_can_be_null=False, null_values=[]),
    )
    frame: pd.DataFrame = table.to_pandas().astype({"score": np.float32})
    for name in ("query_id", "document_id"):
        frame[name] = frame[name].cat.rename_categories([unquote(value) for value in frame[name].cat.categories])
    return frame


def _schema(name: str, system: str, queries: Known, documents: Known, depth: int) -> pa.DataFrameSchema:
    import pandera.pandas as pa

    return pa.DataFrameSchema(
        {
            "query_id": pa.Column(None, _known(queries, "a judged query")),
            "q0": pa.Column(None, _known(["Q0"], "Q0")),
            "document_id": pa.Column(None, _known(documents, "a document of the corpus")),
            "rank": pa.Column("int64", pa.Check.le(depth)),
            "score": pa.Column("float32", pa.Check(np.isfinite, error="finite")),
            "tag": pa.Column(None, _known([escape(system)], "the name of the system")),
        },
        checks=[
            pa.Check(_ranks_in_order, error="ranks of a query must be 1, 2, 3, ..., one line after the other"),
            pa.Check(_scores_fall, error="scores of a query must fall from rank to rank"),
        ],
        unique=["query_id", "document_id"],
        name=name,
    )


def _known(names: Known, description: str) -> pa.Check:
    """Asks each category once, not each line."""
    import pandera.pandas as pa

    def known(series: pd.Series) -> pd.Series:
        return pd.Series(series.cat.categories.isin(list(names))[series.cat.codes], index=series.index)

    return pa.Check(known, error=description)


def _ranks_in_order(frame: pd.DataFrame) -> pd.Series:
    return frame["rank"] == frame.groupby("query_id", observed=True, sort=False).cumcount() + 1


def _scores_fall(frame: pd.DataFrame) -> pd.Series:
    """trec_eval sorts by score, and breaks ties by document id, descending: a tie would be another ranking."""
    steps = frame.groupby("query_id", observed=True, sort=False)["score"].diff()
    return steps.isna() | (steps < 0)


def check_evaluate(context: StageContext) -> None:
    """The folder of the retriever `context.name`, and those of its variants."""
    _Bench.load(context).check_retriever(str(context.name), context.output)


def check_baselines(context: StageContext) -> None:
    """A folder per baseline; the untrained encoder has variants as a retriever has."""
    generated = "sequence_to_sequence" in context.settings["pseudo_queries.generators"]
    names = {"bm25", "zero_shot", "untrained", *(["bm25_generated"] if generated else [])}
    require_same("one folder per baseline", [path.parent.name for path in context.output.glob("*/metrics.json")], names)
    bench = _Bench.load(context)
    for name in sorted(names - {"zero_shot"}):
        bench.check_system(name, context.output / name)
        bench.check_variants(name, context.output / name, set())
    bench.check_retriever("zero_shot", context.output / "zero_shot")
    for name in sorted(names - {"bm25_generated"}):
        check_build(context.output / name / "build")


def check_fuse(context: StageContext) -> None:
    """The folder of the fusion `context.name`, the retriever in it, and of three parts or more each one's share."""
    bench, name, parts = _Bench.load(context), str(context.name), context.settings["fusion"].of
    bench.check_system(name, context.output)
    shared = len(parts) > 2 and bench.settings.variants
    bench.check_variants(name, context.output, {f"without_{part}" for part in parts} if shared else set())
    check_build(context.output / "build")


def check_build(folder: Path) -> None:
    """An encoder, and an index whose files are those that its manifest names."""
    require_files(folder / "index", [MANIFEST])
    require((folder / "encoder").is_dir(), f"{folder.name}/encoder/ must be there")
    verify(folder / "index", read_json(folder / "index" / MANIFEST))


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
        """A system and its variants, the hybrid among them if the settings ask for any."""
        self.check_system(system, folder)
        self.check_variants(system, folder, {RRF} if self.settings.variants else set())

    def check_variants(self, system: str, folder: Path, expected: set[str]) -> None:
        variants = sorted(path.name for path in folder.glob(f"{VARIANTS}/*"))
        lacking = sorted(expected - set(variants))
        require(not lacking, f"{system}: {VARIANTS}/ must hold {', '.join(lacking)}")
        require(
            bool(expected) or not variants, f"{system}: {VARIANTS}/ must not be there, but holds {', '.join(variants)}"
        )
        for name in variants:
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
        wanted = self.settings.metrics if queries else ()
        lacking = [name for name in wanted if name not in means]
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


ROUNDING = 2 * 10**-DIGITS


def check_comparison(context: StageContext) -> None:
    """The whole and its groups are of the systems that were evaluated; `metrics.json` has some of the means."""
    comparison = read_json(context.output / "comparison.json")
    headline = read_json(context.output / "metrics.json")
    if not comparison["queries"]:
        require(not comparison["systems"] and not headline, "nobody judged any query, so no system may be compared")
        return
    require_files(context.output, ["comparison.png"])
    expected, main = _systems(context), context.settings["evaluation"].main_metric
    parts = {"comparison.json": comparison}
    parts |= {f"comparison.json, queries {name!r}": part for name, part in comparison["groups"].items()}
    for where, part in parts.items():
        _check_part(where, part, expected, main)
    require_same("metrics.json: the systems", headline, {name for name in expected if not is_variant(name)})
    for name, values in headline.items():
        means = {metric: cell["value"] for metric, cell in comparison["systems"][name].items()}
        require(
            main in values and values.items() <= means.items(), "metrics.json must hold the means of comparison.json"
        )


def _systems(context: StageContext) -> set[str]:
    """The baselines, retrievers and fusions that were evaluated, with their variants, over their seeds."""
    folders = [path.parent for path in context.inputs["baselines"].glob("*/metrics.json")]
    built = (*context.settings["retrievers"], *context.settings["fusions"])
    evaluated = (context.inputs["evaluations"] / name for name in built)
    folders += [folder for folder in evaluated if not left_out(folder)]
    variants = [path.parent for folder in folders for path in folder.glob(f"{VARIANTS}/*/metrics.json")]
    names = [folder.name for folder in folders] + [f"{path.parent.parent.name}.{path.name}" for path in variants]
    return set(map(without_seed, names))


def _check_part(where: str, part: Mapping[str, Any], expected: set[str], main: str) -> None:
    """Every system has every metric, values lie in their intervals, and differences are those of the values."""
    import pandera.pandas as pa

    systems = part["systems"]
    require_same(f"{where}: the systems that were evaluated", systems, expected)
    for system, metrics in systems.items():
        require(main in metrics, f"{where}: {system} must have the main metric {main}")
        require_same(f"{where}: the metrics of {system}", metrics, next(iter(systems.values())))
    share, text = pa.Column("float64", pa.Check.in_range(0, 1), coerce=True), pa.Column(str)
    rows = [{"system": s, "metric": m} | cell for s, metrics in systems.items() for m, cell in metrics.items()]
    columns = {"system": text, "metric": text, "value": share, "low": share, "high": share}
    columns["queries"] = pa.Column(int, pa.Check.eq(part["queries"]))
    validate(pa.DataFrameSchema(columns, checks=_within("value"), name=where), pd.DataFrame(rows))
    if not part["differences"]:
        return
    table, known = pd.DataFrame(part["differences"]), pa.Column(str, pa.Check.isin(list(systems)))
    columns = {"system": known, "reference": known, "metric": text, "difference": pa.Column("float64", coerce=True)}
    corrected = pa.Check(lambda rows: rows["p_holm"] >= rows["p"] - ROUNDING, error="p_holm must be p or more")
    checks = [_within("difference"), corrected]
    columns |= {"p": share, "p_holm": share}
    validate(pa.DataFrameSchema(columns, checks=checks, name=f"{where}, differences"), table)
    stated = [systems[row["system"]][row["metric"]]["value"] - systems[row["reference"]][row["metric"]]["value"]
              for row in part["differences"]]  # fmt: skip
    off = (table["difference"] - pd.Series(stated)).abs() > ROUNDING
    require(not off.any(), f"{where}: a difference must be that of the two systems' values")


def _within(name: str) -> pa.Check:
    import pandera.pandas as pa

    return pa.Check(
        lambda table: table[name].between(table["low"] - ROUNDING, table["high"] + ROUNDING),
        error=f"{name} must lie within its interval",
    )
