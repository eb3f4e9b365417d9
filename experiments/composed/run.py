"""Compare trained fusions with every baseline, from builds by the settings in this folder.

`python -m experiments.composed.run docstrings=PROJECT tldr=PROJECT ...` needs `freshet run` in each
PROJECT, whose `params.yaml` is the file of that name here. It writes `result.json` and the tables
of `README.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.tables import measure_projects
from model_code.evaluation.scores import average_over_seeds, load_scores, strip_seed
from model_code.evaluation.significance import interval_over_seeds, paired_randomisation_test
from model_code.project import Project
from orchestration.cli.results import load_comparison

HERE = Path(__file__).parent
PAIR, DRAWS = ("fused", "hce"), 10_000
METRICS = ("nDCG@10", "hit@1", "R@100")


def measured(project: Path) -> dict[str, Any]:
    """Return the means of a build and the differences on the main metric, with intervals."""
    found = load_comparison(Project(project))
    systems = {
        name: {metric: own[metric] for metric in METRICS} for name, own in found["systems"].items()
    }
    kept = [row for row in found["differences"] if row["metric"] == METRICS[0]]
    kept.append(less_its_part(project / "artifacts" / "evaluate"))
    return {
        "queries": found["queries"],
        "seeds": dict.fromkeys(systems, 1) | found["seeds"],
        "systems": systems,
        "differences": kept,
        "groups": {name: _group(own) for name, own in found["groups"].items()},
    }


def _group(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return results of `seen` queries and of the others.

    A `seen` query asks for a document of a training query.
    """
    gains = {(row["system"], row["reference"], row["metric"]): row for row in found["differences"]}
    means = {name: own[METRICS[0]]["value"] for name, own in found["systems"].items()}
    queries = next(iter(found["systems"].values()))[METRICS[0]]["queries"]
    return {
        "queries": queries,
        "systems": means,
        "fused less untrained": gains["fused", "untrained", METRICS[0]],
    }


def less_its_part(evaluations: Path) -> dict[str, Any]:
    """Compare `fused` with its trained component `hce`, paired over queries and seeds.

    No report makes this comparison.
    """
    folders = [
        folder for folder in sorted(evaluations.iterdir()) if strip_seed(folder.name) in PAIR
    ]
    systems = {
        one.system: one
        for one in average_over_seeds(load_scores(folder, "test") for folder in folders)
    }
    fused, part = (systems[name] for name in PAIR)
    low, high = interval_over_seeds(
        fused.runs(METRICS[:1]), part.runs(METRICS[:1]), confidence=0.95, lowest=-1.0
    )
    gains = (fused.values - part.values)[[METRICS[0]]].to_numpy()
    p = paired_randomisation_test(gains, DRAWS, 0)[0]
    stated = {"difference": gains.mean(), "low": low[0], "high": high[0], "p": p, "p_holm": p}
    rounded = {name: round(float(value), 6) for name, value in stated.items()}
    return {"metric": METRICS[0], "system": PAIR[0], "reference": PAIR[1]} | rounded


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's tables: one per corpus, then all differences from the untrained fusion."""
    blocks = [_corpus(name, own) for name, own in sorted(result.items())]
    rows = [
        f"| {name} | {row['system']} | {row['reference']} | {_difference(row)} | "
        f"{row['p']:.4f} | {row['p_holm']:.4f} |"
        for name, own in sorted(result.items())
        for row in sorted(own["differences"], key=lambda row: (row["reference"], row["difference"]))
        if row["reference"] in ("untrained", PAIR[1]) and row["system"] not in ("bm25", "zero_shot")
    ]
    head = "| corpus | system | less | nDCG@10 | p | p (Holm) |\n|---|---|---|---|---|---|\n"
    return "\n".join([*blocks, head + "\n".join(rows) + "\n", _groups(result)])


def _groups(result: Mapping[str, Any]) -> str:
    rows = [
        f"| {name} | {group}, {own['queries']:,} | "
        f"{_short(own['systems']['untrained'])} | {_short(own['systems']['fused'])} | "
        f"{_difference(own['fused less untrained'])} | {own['fused less untrained']['p']:.4f} |"
        for name, build in sorted(result.items())
        for group, own in sorted(build.get("groups", {}).items())
    ]
    head = "| corpus | queries | untrained | fused | difference | p |\n|---|---|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _corpus(name: str, own: Mapping[str, Any]) -> str:
    columns = " | ".join(["system", "seeds", *METRICS])
    head = f"**{name}**, {own['queries']:,} test queries\n\n| {columns} |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| {system} | {own['seeds'][system]} | {_interval(values[METRICS[0]])} | "
        f"{' | '.join(_short(values[metric]['value']) for metric in METRICS[1:])} |\n"
        for system, values in sorted(
            own["systems"].items(), key=lambda item: item[1][METRICS[0]]["value"]
        )
    )


def _interval(cell: Mapping[str, float]) -> str:
    return f"{_short(cell['value'])} [{_short(cell['low'])}, {_short(cell['high'])}]"


def _difference(row: Mapping[str, Any]) -> str:
    return f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]".replace("0.", ".")


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


if __name__ == "__main__":
    measure_projects(HERE, sys.argv[1:], measured, tables)
