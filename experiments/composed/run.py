"""Trained fusions beside every baseline: each corpus is built by the settings here, and this table made of the builds.

`python -m experiments.composed.run docstrings=PROJECT tldr=PROJECT ...` after `freshet run` in each PROJECT, whose
`params.yaml` is the one of that name here; writes `result.json` and the tables of `README.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.tables import write_tables
from model_code.files import read_json, write_json
from orchestration.cli.build import load_comparison
from orchestration.project import Project

HERE = Path(__file__).parent
METRICS = ("nDCG@10", "hit@1", "R@100")


def measured(project: Path) -> dict[str, Any]:
    """What this experiment keeps of a build: means, and differences on the main metric, with their intervals."""
    found = load_comparison(Project(project))
    systems = {name: {metric: own[metric] for metric in METRICS} for name, own in found["systems"].items()}
    kept = [row for row in found["differences"] if row["metric"] == METRICS[0]]
    return {
        "queries": found["queries"],
        "seeds": dict.fromkeys(systems, 1) | found["seeds"],
        "systems": systems,
        "differences": kept,
    }


def tables(result: Mapping[str, Any]) -> str:
    """The page's tables: a corpus each, then all differences from the untrained fusion."""
    blocks = [_corpus(name, own) for name, own in sorted(result.items())]
    rows = [
        f"| {name} | {row['system']} | {_difference(row)} | {row['p_holm']:.4f} |"
        for name, own in sorted(result.items())
        for row in sorted(own["differences"], key=lambda row: row["difference"])
        if row["reference"] == "untrained" and row["system"] not in ("bm25", "zero_shot")
    ]
    head = "| corpus | system less `untrained` | nDCG@10 | p (Holm) |\n|---|---|---|---|\n"
    return "\n".join([*blocks, head + "\n".join(rows) + "\n"])


def _corpus(name: str, own: Mapping[str, Any]) -> str:
    columns = " | ".join(["system", "seeds", *METRICS])
    head = f"**{name}**, {own['queries']:,} test queries\n\n| {columns} |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| {system} | {own['seeds'][system]} | {_interval(values[METRICS[0]])} | "
        f"{' | '.join(_short(values[metric]['value']) for metric in METRICS[1:])} |\n"
        for system, values in sorted(own["systems"].items(), key=lambda item: item[1][METRICS[0]]["value"])
    )


def _interval(cell: Mapping[str, float]) -> str:
    return f"{_short(cell['value'])} [{_short(cell['low'])}, {_short(cell['high'])}]"


def _difference(row: Mapping[str, Any]) -> str:
    return f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]".replace("0.", ".")


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


if __name__ == "__main__":
    known = read_json(HERE / "result.json") if (HERE / "result.json").is_file() else {}
    for argument in sys.argv[1:]:
        corpus, _, project = argument.partition("=")
        known[corpus] = measured(Path(project).resolve())
    write_json(HERE / "result.json", known)
    write_tables(HERE, tables(known))
    print(tables(known))
