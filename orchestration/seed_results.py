"""Results over training seeds: `hce`, `hce_seed1` and `hce_seed2` as one system, by each query's mean score.

Variants such as `hce.rrf`, `hce_seed1.rrf` are averaged likewise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from model_code.evaluation.comparison import compare_groups, compare_systems
from model_code.evaluation.query_groups import query_groups
from model_code.evaluation.scores import SystemScores, load_all_scores, mean_over_seeds
from orchestration import parameters
from orchestration.project import Project

SEED = re.compile(r"_seed\d+(?=\.|$)")  # before the dot that a variant's name follows


def results_over_seeds(project: Project, split: str = "test") -> dict[str, Any]:
    """The comparison with the seeds of a retriever averaged; "seeds" says how many each system has.

    A retriever's seeds are keys under `retrievers:` that differ in `_seedN` at their end (and in `seed_offset`).
    """
    from model_code.corpus.tables import load_corpus

    settings = parameters.load(project.params_file)
    folders = [project.artifacts / "baselines" / name for name in settings.baselines]
    folders += [project.artifacts / "evaluate" / name for name in settings.retrievers]
    groups = by_system(one for folder in folders for one in load_all_scores(folder, split))
    averaged = [mean_over_seeds(runs, system) for system, runs in groups.items()]
    qrels = load_corpus(project.artifacts / "corpus").qrels
    parts = query_groups(qrels, split, averaged[0].values.index) if averaged[0].source == "qrels" else {}
    return {
        "seeds": {system: len(runs) for system, runs in groups.items()},
        **compare_systems(averaged, settings.evaluation, settings.seed),
        "groups": compare_groups(averaged, parts, settings.evaluation, settings.seed),
    }


def by_system(scores: Iterable[SystemScores]) -> dict[str, list[SystemScores]]:
    """The runs of each system, whatever their seed; `hce_seed1.rrf` is a run of `hce.rrf`."""
    groups: dict[str, list[SystemScores]] = {}
    for run in scores:
        groups.setdefault(SEED.sub("", run.system), []).append(run)
    return groups
