"""What nothing refers to any more, of every room: old versions and generations, leftovers, DVC's cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestration.freshness.garbage import killed_pilot, retrains
from orchestration.live.garbage import additions, generations
from orchestration.pipeline.garbage import Garbage, dvc_cache, leftovers
from orchestration.project import Project
from orchestration.registry.garbage import registered_generations, unfinished_versions, unneeded_versions


def find_garbage(project: Project, keep: int) -> list[Garbage]:
    """Everything that can go, largest first.

    The `keep` newest model versions stay, of all retrievers together, the `keep` newest live generations of each
    retriever, and the work of the `keep` newest retrains (of one at least: it may be under way). So does whatever has
    an alias, is current, registered, part of a generation that stays, or in `dvc.lock`.
    """
    stages = [*leftovers(project), *killed_pilot(project), *dvc_cache(project)]
    models = [*unneeded_versions(project, keep), *unfinished_versions(project), *retrains(project, keep)]
    live = [*generations(project, keep, partial(registered_generations, project)), *additions(project)]
    return sorted([*stages, *models, *live], key=lambda item: -item.megabytes)


def collect(project: Project, garbage: Sequence[Garbage]) -> None:
    """Free each item, while nothing else changes the project."""
    with project.lock():
        for item in garbage:
            item.free()
