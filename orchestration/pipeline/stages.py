"""The table of all stages of a build, in an order in which they can run.

Each stage is declared in its module in `model_code.stages`. DVC's `dvc.yaml` and Dagster's asset
graph are made from this table.
"""

from __future__ import annotations

from collections.abc import Iterable

from model_code.errors import FreshetError
from model_code.stages import (
    acceptance,
    base_index,
    baselines,
    comparison,
    corpus,
    evaluate,
    fuse,
    hierarchy,
    index,
    pseudo_queries,
    query_generator,
    train,
)
from model_code.stages.stage import Stage

TABLE: tuple[Stage, ...] = (
    corpus.STAGE,
    query_generator.STAGE,
    pseudo_queries.STAGE,
    acceptance.STAGE,
    base_index.STAGE,
    hierarchy.STAGE,
    baselines.STAGE,
    train.STAGE,
    index.STAGE,
    evaluate.STAGE,
    fuse.STAGE,
    comparison.STAGE,
)


def run_command(stage: Stage) -> str:
    """Return the shell command that runs a stage, from the root of the project."""
    return f"python -m orchestration.pipeline.run_stage {stage.address}"


def expand(retrievers: Iterable[str], fusions: Iterable[str] = ()) -> tuple[Stage, ...]:
    """Return every stage of a project, in an order in which they can run.

    A stage that runs once per retriever or fusion is repeated for each of their names.

    >>> [stage.address for stage in expand(["hce"], ["fused"])][6:]
    ['baselines', 'train@hce', 'index@hce', 'evaluate@hce', 'fuse@fused', 'comparison']
    """
    names = {"retrievers": tuple(retrievers), "fusions": tuple(fusions)}
    expanded: list[Stage] = []
    for stage in TABLE:
        if stage.expand_by is None:
            expanded.append(stage)
            continue
        for name in names[stage.expand_by]:
            expanded.append(stage.for_retriever(name))
    return tuple(expanded)


def find(address: str, stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Return the stages that `address` names.

    `train@hce` is one stage, and `train` is that stage for every retriever.

    Raises:
        FreshetError: If no stage has this address or name.

    >>> [stage.address for stage in find("index", expand(["contrastive", "hce"]))]
    ['index@contrastive', 'index@hce']
    """
    stages = tuple(stages)
    matching = tuple(stage for stage in stages if address in (stage.address, stage.name))
    if not matching:
        addresses = ", ".join(stage.address for stage in stages)
        raise FreshetError(f"{address!r} is not a stage. Stages: {addresses}")
    return matching


def upstream(stage: Stage, stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Return the stages whose output `stage` reads directly."""
    inputs = list(stage.inputs.values())
    earlier = []
    for other in stages:
        if any(_overlaps(path, other.output) for path in inputs):
            earlier.append(other)
    return tuple(earlier)


def _overlaps(first: str, second: str) -> bool:
    """Return whether two paths are the same or one lies inside the other."""
    # With the slash, artifacts/index is not taken for a parent of artifacts/index_2.
    first_folder = f"{first}/"
    second_folder = f"{second}/"
    return first_folder.startswith(second_folder) or second_folder.startswith(first_folder)
