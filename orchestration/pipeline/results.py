"""The comparison of all systems as the command line prints it, and the same with the seeds of a retriever averaged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.evaluation.comparison import compare_groups, compare_systems, is_variant, query_groups
from model_code.evaluation.scores import SystemScores, load_all_scores, mean_over_seeds
from model_code.files import read_json
from orchestration import parameters
from orchestration.project import Project

SHOWN = ("nDCG@10", "hit@1", "hit@10", "MRR@10", "R@100")  # after the main metric, where they are measured
JUDGES = {"qrels": "the corpus's own qrels", "pseudo-queries": "held-out pseudo-queries, as it has no qrels"}


def load_comparison(project: Project) -> dict[str, Any]:
    """`artifacts/comparison/comparison.json`; raises `FreshetError` before the first comparison."""
    path = project.artifacts / "comparison" / "comparison.json"
    if not path.exists():
        raise FreshetError("there are no results yet: run `freshet run` (or `make demo`)")
    return read_json(path)


def shown_metrics(comparison: Mapping[str, Any]) -> list[str]:
    """The metrics of the table: the main one, then the usual ones that were measured."""
    measured = next(iter(comparison["systems"].values()))
    return list(dict.fromkeys([comparison["main_metric"], *(metric for metric in SHOWN if metric in measured)]))


def results_table(comparison: Mapping[str, Any]) -> str:
    """The test results as aligned text, with the interval of the first two metrics and who judged."""
    systems, shown = comparison["systems"], shown_metrics(comparison)
    interval = f"[{100 * comparison['confidence']:g} % interval]"
    header = ["system", *(f"{metric} {interval}" for metric in shown[:2]), *shown[2:]]
    ordered = sorted(systems, key=is_variant)  # variants after all systems, each kept in its order
    rows = [header] + [[_name(system, comparison), *_cells(systems[system], shown)] for system in ordered]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    queries = f"{comparison['queries']:,} {comparison['split']} queries"
    return "\n".join([*lines, f"({queries}, judged by {JUDGES[comparison['source']]})"])


def differences_table(comparison: Mapping[str, Any], metric: str) -> str:
    """Paired differences on one metric with interval and Holm-adjusted p."""
    return "\n".join(
        f"{row['system']} - {row['reference']}: {row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}] "
        f"p (Holm) {row['p_holm']:.4f}"
        for row in comparison["differences"]
        if row["metric"] == metric
    )


def _name(system: str, comparison: Mapping[str, Any]) -> str:
    seeds = comparison.get("seeds", {}).get(system, 1)
    return system if seeds == 1 else f"{system} ({seeds} seeds)"


def _cells(metrics: Mapping[str, Mapping[str, float]], shown: list[str]) -> list[str]:
    exact = [f"{metrics[m]['value']:.3f} [{metrics[m]['low']:.3f}, {metrics[m]['high']:.3f}]" for m in shown[:2]]
    return exact + [f"{metrics[metric]['value']:.3f}" for metric in shown[2:]]


SEED = re.compile(r"_seed\d+(?=\.|$)")  # before the dot that a variant's name follows


def results_over_seeds(project: Project) -> dict[str, Any]:
    """The comparison with the seeds of a retriever averaged; "seeds" says how many each system has.

    A retriever's seeds are keys under `retrievers:` that differ in `_seedN` at their end (and in `seed_offset`).
    Raises `FreshetError` if one of the systems is not evaluated yet.
    """
    from model_code.corpus.tables import load_corpus

    settings = parameters.load(project.params_file)
    folders = [project.artifacts / "baselines" / name for name in settings.baselines]
    folders += [project.artifacts / "evaluate" / name for name in settings.retrievers]
    groups = by_system(load_reported(folders))
    averaged = [mean_over_seeds(runs, system) for system, runs in groups.items()]
    qrels, first = load_corpus(project.artifacts / "corpus").qrels, averaged[0]
    parts = query_groups(qrels, first.split, first.values.index) if first.source == "qrels" else {}
    facts = {"main_metric": settings.evaluation.main_metric, "confidence": settings.evaluation.confidence}
    by_group = compare_groups(averaged, parts, settings.evaluation, settings.seed)
    return {
        "seeds": {system: len(runs) for system, runs in groups.items()},
        **facts,
        **compare_systems(averaged, settings.evaluation, settings.seed),
        "groups": {name: facts | part for name, part in by_group.items()},
    }


def load_reported(folders: Sequence[Path]) -> list[SystemScores]:
    """The scores in evaluation folders on the split that the comparison reports: test if it has queries, else dev."""
    for folder in folders:
        if not (folder / "metrics.json").exists():
            raise FreshetError(f"there are no results of {folder.name} yet: run `freshet run`")
    for split in ("test", "dev"):
        scores = [one for folder in folders for one in load_all_scores(folder, split)]
        if scores[0].queries:
            return scores
    raise FreshetError("there are no judged dev or test queries, so there is nothing to average")


def by_system(scores: Iterable[SystemScores]) -> dict[str, list[SystemScores]]:
    """The runs of each system, whatever their seed; `hce_seed1.rrf` is a run of `hce.rrf`."""
    groups: dict[str, list[SystemScores]] = {}
    for run in scores:
        groups.setdefault(SEED.sub("", run.system), []).append(run)
    return groups
