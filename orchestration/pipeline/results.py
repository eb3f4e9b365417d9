"""The comparison of all systems as the command line prints it, and the same with the seeds of a retriever averaged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from model_code.context import left_out
from model_code.errors import FreshetError
from model_code.evaluation.comparison import compare_groups, compare_systems, query_groups
from model_code.evaluation.scores import SystemScores, load_all_scores, mean_over_seeds
from model_code.files import read_json
from orchestration import parameters
from orchestration.parameters import Parameters
from orchestration.project import Project

SEED = re.compile(r"_seed\d+(?=\.|$)")  # before the dot that a variant's name follows


def load_comparison(project: Project) -> dict[str, Any]:
    """`artifacts/comparison/comparison.json`; raises `FreshetError` before the first comparison."""
    path = project.artifacts / "comparison" / "comparison.json"
    if not path.exists():
        raise FreshetError("there are no results yet: run `freshet run` (or `make demo`)")
    return read_json(path)


def built(project: Project, settings: Parameters) -> list[str]:
    """The retrievers and fusions of the settings that were not left out for want of judgements."""
    return [name for name in settings.built if not left_out(project.artifacts / "evaluate" / name)]


def results_over_seeds(project: Project) -> dict[str, Any]:
    """The comparison with the seeds of a retriever averaged; "seeds" says how many each system has.

    A retriever's seeds are keys under `retrievers:` that differ in `_seedN` at their end (and in `seed_offset`).
    Raises `FreshetError` if one of the systems is not evaluated yet.
    """
    from model_code.corpus.tables import load_corpus

    settings = parameters.load(project.params_file)
    folders = [project.artifacts / "baselines" / name for name in settings.baselines]
    folders += [project.artifacts / "evaluate" / name for name in built(project, settings)]
    groups = by_system(load_reported(folders))
    averaged = [mean_over_seeds(runs, system) for system, runs in groups.items()]
    corpus, first = load_corpus(project.artifacts / "corpus"), averaged[0]
    parts = query_groups(corpus.qrels, first.split, first.values.index)
    return {
        "seeds": {system: len(runs) for system, runs in groups.items()},
        "main_metric": settings.evaluation.main_metric,
        "confidence": settings.evaluation.confidence,
        "documents": len(corpus.documents),
        "examples": {},
        **compare_systems(averaged, settings.evaluation, settings.seed),
        "groups": compare_groups(averaged, parts, settings.evaluation, settings.seed),
    }


def load_reported(folders: Sequence[Path]) -> list[SystemScores]:
    """The scores in evaluation folders on the split that the comparison reports: test if it has queries, else dev."""
    for folder in folders:
        if not (folder / "metrics.json").exists():
            raise FreshetError(f"there are no results of {folder.name} yet: run `freshet run`")
    for split in ("test", "dev"):
        scores = [system for folder in folders for system in load_all_scores(folder, split)]
        if scores[0].queries:
            return scores
    raise FreshetError("there are no judged dev or test queries, so there is nothing to average")


def by_system(scores: Iterable[SystemScores]) -> dict[str, list[SystemScores]]:
    """The runs of each system, whatever their seed; `hce_seed1.rrf` is a run of `hce.rrf`."""
    groups: dict[str, list[SystemScores]] = {}
    for run in scores:
        groups.setdefault(SEED.sub("", run.system), []).append(run)
    return groups
