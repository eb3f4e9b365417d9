"""Contract of the comparison: every system, its values within their intervals, and the tables and pages beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from model_code.context import StageContext
from model_code.contracts.frames import validate
from model_code.contracts.rules import require, require_files, require_same
from model_code.evaluation.comparison import DIGITS
from model_code.evaluation.scores import VARIANTS
from model_code.files import read_json

PAGES = ("comparison.md", "comparison.html", "metrics.png", "recall.csv", "levels.csv", "training.csv")
ROUNDING = 2 * 10**-DIGITS


def check_comparison(context: StageContext) -> None:
    """The whole, its groups and dev are of the same systems; `metrics.json` has the means that `dvc metrics` shows."""
    require_files(context.output, ["comparison.json", "metrics.json", *PAGES])
    comparison = read_json(context.output / "comparison.json")
    expected, main = _systems(context), context.settings["evaluation"].main_metric
    require(comparison["main_metric"] == main, f"comparison.json must state the main metric {main!r}")
    parts = {"comparison.json": comparison}
    parts |= {f"comparison.json, queries {name!r}": part for name, part in comparison["groups"].items()}
    if comparison["dev"]:
        parts["comparison.json, dev"] = comparison["dev"]
    for where, part in parts.items():
        _check_part(where, part, expected, main)
    means = {
        system: {metric: cell["value"] for metric, cell in metrics.items()}
        for system, metrics in comparison["systems"].items()
    }
    require(read_json(context.output / "metrics.json") == means, "metrics.json must hold the means of comparison.json")


def _systems(context: StageContext) -> set[str]:
    """The baselines and retrievers that were evaluated, with their variants."""
    folders = [path.parent for path in context.inputs["baselines"].glob("*/metrics.json")]
    folders += [context.inputs["evaluations"] / name for name in context.settings["retrievers"]]
    found = {folder.name for folder in folders}
    variants = (path.parent for folder in folders for path in folder.glob(f"{VARIANTS}/*/metrics.json"))
    return found | {f"{path.parent.parent.name}.{path.name}" for path in variants}


def _check_part(where: str, part: Mapping[str, Any], expected: set[str], main: str) -> None:
    systems, queries = part["systems"], part["queries"]
    require(queries > 0, f"{where} must be on at least one query")
    require_same(f"{where}: the systems that were evaluated", systems, expected)
    require(part["split"] in ("dev", "test"), f"{where}: unknown split {part['split']!r}")
    require(part["source"] in ("qrels", "pseudo-queries"), f"{where}: unknown source {part['source']!r}")
    for system, metrics in systems.items():
        require(main in metrics, f"{where}: {system} must have the main metric {main}")
        require_same(f"{where}: the metrics of {system}", metrics, next(iter(systems.values())))
    _check_estimates(where, systems, queries)
    if part["differences"]:
        _check_differences(where, part["differences"], systems)


def _check_estimates(where: str, systems: Mapping[str, Any], queries: int) -> None:
    import pandera.pandas as pa

    rows = [{"system": s, "metric": m} | cell for s, metrics in systems.items() for m, cell in metrics.items()]
    share = pa.Column("float64", pa.Check.in_range(0, 1), coerce=True)
    columns = {"system": pa.Column(str), "metric": pa.Column(str), "value": share, "low": share, "high": share}
    columns["queries"] = pa.Column(int, pa.Check.eq(queries))
    within = pa.Check(
        lambda table: table["value"].between(table["low"] - ROUNDING, table["high"] + ROUNDING),
        error="value must lie within its interval",
    )
    validate(pa.DataFrameSchema(columns, checks=within, name=where), pd.DataFrame(rows))


def _check_differences(where: str, differences: list[Mapping[str, Any]], systems: Mapping[str, Any]) -> None:
    import pandera.pandas as pa

    table, number = pd.DataFrame(differences), pa.Column("float64", coerce=True)
    chance = pa.Column("float64", pa.Check.in_range(0, 1), coerce=True)
    known = pa.Column(str, pa.Check.isin(list(systems)))
    columns = {"system": known, "reference": known, "metric": pa.Column(str), "difference": number}
    columns |= {"low": number, "high": number, "p": chance, "p_holm": chance}
    within = pa.Check(
        lambda rows: rows["difference"].between(rows["low"] - ROUNDING, rows["high"] + ROUNDING),
        error="difference must lie within its interval",
    )
    corrected = pa.Check(lambda rows: rows["p_holm"] >= rows["p"] - ROUNDING, error="p_holm must be p or more")
    schema = pa.DataFrameSchema(columns, checks=[within, corrected], name=f"{where}, differences")
    validate(schema, table)
    value = [systems[row["system"]][row["metric"]]["value"] for row in differences]
    other = [systems[row["reference"]][row["metric"]]["value"] for row in differences]
    off = (table["difference"] - (pd.Series(value) - pd.Series(other))).abs() > ROUNDING
    require(not off.any(), f"{where}: a difference must be that of the two systems' values")
