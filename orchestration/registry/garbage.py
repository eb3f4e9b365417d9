"""Model versions that nobody needs: neither among the newest, nor behind an alias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestration.live.garbage import opened_builds
from orchestration.live.opening import MODEL_VERSION
from orchestration.pipeline.garbage import Garbage, size
from orchestration.project import Project
from orchestration.registry import versions

if TYPE_CHECKING:
    from model_code.live.collection import Collection


def unneeded_versions(project: Project, keep: int) -> Iterator[Garbage]:
    """All versions but the `keep` newest, of all retrievers together, and those that have an alias."""
    if not (project.state / "mlflow").exists():
        return
    held = [versions.holder(project, alias) for alias in versions.ROLES]
    numbers = {version.version for version in held if version}
    for version in versions.versions(project)[:-keep]:
        if version.version not in numbers:
            folder = versions.own_files(project, version)
            megabytes = 0.0 if folder is None else size(folder)
            kept = "; its files lie in another store than the project's, and stay there" if folder is None else ""
            what = f"model version {version.version} ({version.retriever}){kept}"
            yield Garbage(what, megabytes, lambda version=version: versions.delete(project, version))


def unfinished_versions(project: Project) -> Iterator[Garbage]:
    """Models that a killed `register` left."""
    if not (project.state / "mlflow").exists():
        return
    for run, folder in versions.unfinished(project).items():
        megabytes = 0.0 if folder is None else size(folder)
        yield Garbage(f"model of a registration that was cut off (run {run[:8]})", megabytes,
                      lambda run=run, folder=folder: versions.forget(project, run, folder))  # fmt: skip


def registered_generations(project: Project, collection: Collection) -> set[int]:
    """The generations that a version in the registry was opened as: a rollback of the champion returns to them."""
    if not (project.state / "mlflow").exists():
        return set()
    known = {version.version for version in versions.versions(project)}
    return {one.number for one in opened_builds(collection) if one.manifest["provenance"][MODEL_VERSION] in known}
