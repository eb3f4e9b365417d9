"""Compare trained fusions with every baseline.

`python -m experiments.composed.run docstrings=PROJECT tldr=PROJECT ...` reads builds. Each PROJECT
has the settings of the file NAME.yaml in this folder, and was built with `freshet run`. The command
writes `result.json` and the tables of `README.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from experiments.tables import measure_projects
from model_code.evaluation.scores import average_over_seeds, load_scores, strip_seed
from model_code.evaluation.significance import interval_over_seeds, paired_randomisation_test
from model_code.project import Project
from model_code.retriever_settings import BM25, BM25_KNOWN
from orchestration.cli.results import load_comparison

HERE = Path(__file__).parent
FUSION = "fused"
# Trained component of the fusion.
COMPONENT = "hce"
UNTRAINED = "untrained"
# Systems that the table of differences leaves out.
WITHOUT_DIFFERENCES = (BM25, BM25_KNOWN, "zero_shot")
# Pairs of systems that are compared on each group of queries.
GROUP_PAIRS = ((FUSION, UNTRAINED), (BM25_KNOWN, BM25), (FUSION, BM25_KNOWN))
METRIC = "nDCG@10"
OTHER_METRICS = ("hit@1", "R@100")
RANDOMISATIONS = 10_000


def measure(project: Path) -> dict[str, Any]:
    """Return the mean of each system of a build, and the differences between systems.

    The differences are on the main metric and have 95 % intervals.
    """
    comparison = load_comparison(Project(project))
    systems = {}
    for name, values in comparison["systems"].items():
        systems[name] = {metric: values[metric] for metric in (METRIC, *OTHER_METRICS)}
    differences = [row for row in comparison["differences"] if row["metric"] == METRIC]
    differences.append(compare_with_component(project / "artifacts" / "evaluate"))

    # Systems that the comparison does not list have one seed.
    seeds = dict.fromkeys(systems, 1)
    seeds.update(comparison["seeds"])
    return {
        "queries": comparison["queries"],
        "seeds": seeds,
        "systems": systems,
        "differences": differences,
        "groups": {name: _summarise_group(group) for name, group in comparison["groups"].items()},
    }


def _summarise_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of a group of test queries.

    The comparison has two groups: queries with a relevant document that has known queries, and all
    others.
    """
    systems = group["systems"]
    first_system = next(iter(systems.values()))
    differences = {
        (row["system"], row["reference"], row["metric"]): row for row in group["differences"]
    }
    summary = {
        "queries": first_system[METRIC]["queries"],
        "systems": {name: values[METRIC]["value"] for name, values in systems.items()},
    }
    for system, reference in GROUP_PAIRS:
        summary[f"{system} less {reference}"] = differences[system, reference, METRIC]
    return summary


def compare_with_component(evaluations: Path) -> dict[str, Any]:
    """Compare the fusion with its trained component, paired over queries and seeds.

    The comparison of a build does not contain this pair.

    Args:
        evaluations: Folder of the stage `evaluate`.
    """
    runs = []
    for folder in sorted(evaluations.iterdir()):
        if strip_seed(folder.name) in (FUSION, COMPONENT):
            runs.append(load_scores(folder, "test"))
    systems = {scores.system: scores for scores in average_over_seeds(runs)}
    fusion = systems[FUSION]
    component = systems[COMPONENT]

    low, high = interval_over_seeds(
        fusion.runs((METRIC,)), component.runs((METRIC,)), confidence=0.95, lowest=-1.0
    )
    gains = (fusion.values - component.values)[[METRIC]].to_numpy()
    (p,) = paired_randomisation_test(gains, RANDOMISATIONS, 0)
    numbers = {"difference": gains.mean(), "low": low[0], "high": high[0], "p": p, "p_holm": p}
    row: dict[str, Any] = {"metric": METRIC, "system": FUSION, "reference": COMPONENT}
    for name, number in numbers.items():
        row[name] = round(float(number), 6)
    return row


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's tables: one per corpus, then differences between systems."""
    blocks = [_system_table(corpus, result[corpus]) for corpus in sorted(result)]
    blocks.append(_difference_table(result))
    blocks.append(_group_table(result))
    blocks.append(_known_table(result))
    return "\n".join(blocks)


def _system_table(corpus: str, result: Mapping[str, Any]) -> str:
    """Return the table of a corpus, with the worst system first."""
    columns = " | ".join(["system", "seeds", METRIC, *OTHER_METRICS])
    lines = [
        f"**{corpus}**, {result['queries']:,} test queries",
        "",
        f"| {columns} |",
        "|---|---|---|---|---|",
    ]
    systems = result["systems"]
    for system in sorted(systems, key=lambda system: systems[system][METRIC]["value"]):
        cells = [system, str(result["seeds"][system]), _format_interval(systems[system][METRIC])]
        for metric in OTHER_METRICS:
            cells.append(_format_value(systems[system][metric]["value"]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _difference_table(result: Mapping[str, Any]) -> str:
    """Return the table of differences from the untrained fusion and from the trained component."""
    lines = ["| corpus | system | less | nDCG@10 | p | p (Holm) |", "|---|---|---|---|---|---|"]
    for corpus, build in sorted(result.items()):
        for row in sorted(build["differences"], key=itemgetter("reference", "difference")):
            has_reference = row["reference"] in (UNTRAINED, COMPONENT)
            if has_reference and row["system"] not in WITHOUT_DIFFERENCES:
                lines.append(
                    f"| {corpus} | {row['system']} | {row['reference']} | "
                    f"{_format_difference(row)} | {row['p']:.4f} | {row['p_holm']:.4f} |"
                )
    return "\n".join(lines) + "\n"


def _group_table(result: Mapping[str, Any]) -> str:
    """Return the table of both groups of test queries, those seen in training and the others."""
    lines = [
        "| corpus | queries | untrained | fused | difference | p |",
        "|---|---|---|---|---|---|",
    ]
    for corpus, build in sorted(result.items()):
        for name, group in sorted(build.get("groups", {}).items()):
            means = group["systems"]
            difference = group["fused less untrained"]
            lines.append(
                f"| {corpus} | {name}, {group['queries']:,} | "
                f"{_format_value(means[UNTRAINED])} | {_format_value(means[FUSION])} | "
                f"{_format_difference(difference)} | {difference['p']:.4f} |"
            )
    return "\n".join(lines) + "\n"


def _known_table(result: Mapping[str, Any]) -> str:
    """Return the table of `bm25_known`, on all test queries and on each group of them."""
    lines = [
        "| corpus | queries | bm25 | bm25_known | less bm25 | fused | fused less bm25_known |",
        "|---|---|---|---|---|---|---|",
    ]
    for corpus, build in sorted(result.items()):
        # Builds that are older than this baseline have no row until it is added to them.
        if BM25_KNOWN not in build["systems"]:
            continue
        means = {name: cells[METRIC]["value"] for name, cells in build["systems"].items()}
        rows = {f"{row['system']} less {row['reference']}": row for row in build["differences"]}
        lines.append(known_row(corpus, "all", build["queries"], means, rows))
        for name, group in sorted(build["groups"].items()):
            lines.append(known_row(corpus, name, group["queries"], group["systems"], group))
    return "\n".join(lines) + "\n"


def known_row(
    corpus: str,
    group: str,
    queries: int,
    means: Mapping[str, float],
    differences: Mapping[str, Any],
) -> str:
    """Return a row of the table of `bm25_known`.

    Args:
        corpus: Name of the corpus.
        group: Name of the group of queries.
        queries: Number of the queries.
        means: Mean of each system.
        differences: Differences with intervals, by "SYSTEM less REFERENCE". A difference that is
            missing is computed from the means, without an interval.
    """
    cells = [corpus, f"{group}, {queries:,}", _format_value(means[BM25])]
    for system, reference in ((BM25_KNOWN, BM25), (FUSION, BM25_KNOWN)):
        cells.append(_format_value(means[system]))
        row = differences.get(f"{system} less {reference}")
        if row is None:
            difference = f"{means[system] - means[reference]:+.3f}".replace("0.", ".")
        else:
            difference = _format_difference(row)
        cells.append(difference)
    return f"| {' | '.join(cells)} |"


def _format_interval(cell: Mapping[str, float]) -> str:
    """Return a mean with its interval, such as .512 [.498, .527]."""
    value = _format_value(cell["value"])
    low = _format_value(cell["low"])
    high = _format_value(cell["high"])
    return f"{value} [{low}, {high}]"


def _format_difference(row: Mapping[str, Any]) -> str:
    text = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
    return text.replace("0.", ".")


def _format_value(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


if __name__ == "__main__":
    measure_projects(HERE, sys.argv[1:], measure, tables)
