"""What nothing refers to any more: old model versions, live generations and what was remembered of them, checkpoints,
DVC's cache of old outputs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.errors import FreshetError
from orchestration.live.ledger import WRITER_LOCK
from orchestration.pipeline.repro import dvc_command, environment, uses_git
from orchestration.project import Project, file_lock, is_free
from orchestration.registry import versions

if TYPE_CHECKING:
    from model_code.live.collection import Collection
    from model_code.live.generation import Generation

MODEL_VERSION = "model_version"  # in the provenance of a generation: which version of the registry it was opened as


@dataclass(frozen=True)
class Garbage:
    """Something that can be freed: what it is, how much it frees, and how."""

    what: str
    megabytes: float
    free: Callable[[], None]


def find_garbage(project: Project, keep: int) -> list[Garbage]:
    """Everything that can go, largest first.

    The `keep` newest model versions stay, of all retrievers together, the `keep` newest live generations of each
    retriever, and the work of the `keep` newest retrains (of one at least: it may be under way). So does whatever has
    an alias, is current, registered, part of a generation that stays, or in `dvc.lock`.
    """
    of_models = [*_versions(project, keep), *_retrains(project, keep)]
    of_live = [*_generations(project, keep), *_additions(project)]
    found = [*_leftovers(project), *of_models, *of_live, *_dvc_cache(project)]
    return sorted(found, key=lambda item: -item.megabytes)


def collect(project: Project, garbage: Sequence[Garbage]) -> None:
    """Free each item, while nothing else changes the project."""
    with project.lock():
        for item in garbage:
            item.free()


def _leftovers(project: Project) -> Iterator[Garbage]:
    """Checkpoints and half-made outputs of stages that did not finish."""
    for kind in ("checkpoints", "staging"):
        for path in sorted((project.state / kind).glob("*")):
            yield Garbage(f"{kind} of {path.name[:24]}", _size(path), partial(_remove, path))
    yield from _killed_pilot(project)


def _killed_pilot(project: Project) -> Iterator[Garbage]:
    from orchestration.freshness.pilot import FOLDER, LOCK

    folder, lock = project.state / FOLDER, project.state / LOCK
    if folder.is_dir() and is_free(lock):
        yield Garbage("work of a pilot that was cut off", _size(folder), partial(_remove_pilot, folder, lock))


def _remove_pilot(folder: Path, lock: Path) -> None:
    """Remove it, unless another one began since it was listed."""
    if is_free(lock):
        _remove(folder)


def _remove(path: Path) -> None:
    """Remove a folder, unless the build that was using it when it was listed has finished and moved it."""
    if path.exists():
        shutil.rmtree(path)


def _versions(project: Project, keep: int) -> Iterator[Garbage]:
    if not (project.state / "mlflow").exists():
        return
    held = [versions.holder(project, alias) for alias in (versions.CHAMPION, versions.CHALLENGER, versions.PREVIOUS)]
    numbers = {version.version for version in held if version}
    for version in versions.versions(project)[:-keep]:
        if version.version not in numbers:
            folder = versions.own_files(project, version)
            size = 0.0 if folder is None else _size(folder)
            kept = "; its files lie in another store than the project's, and stay there" if folder is None else ""
            what = f"model version {version.version} ({version.retriever}){kept}"
            yield Garbage(what, size, lambda version=version: versions.delete(project, version))


def _retrains(project: Project, keep: int) -> Iterator[Garbage]:
    """The copies of the corpus that retrains worked on, with what they built: the registry has what came of them."""
    from orchestration.freshness.retrain import FOLDER, PLAN

    folders = [path.parent for path in (project.state / FOLDER).glob(f"*/{PLAN}")]
    newest_last = sorted(folders, key=lambda folder: (folder / PLAN).stat().st_mtime_ns)
    for folder in newest_last[: -max(keep, 1)]:
        yield Garbage(f"work of retrain {folder.name}", _size(folder), partial(_remove, folder))


def _generations(project: Project, keep: int) -> Iterator[Garbage]:
    from model_code.live.collection import Collection, retrievers

    for name in retrievers(project.live):
        collection = Collection(project.live, name)
        registered = _registered(project, collection) | planned(project, collection)
        doomed = collection.unneeded(keep, registered)
        if doomed:
            numbers = ", ".join(str(generation.number) for generation in doomed)
            what = f"live generation{'s' * (len(doomed) > 1)} {numbers} of {name}"
            size = sum(_size(generation.folder) for generation in doomed)
            yield Garbage(what, size, partial(_free_generations, project, collection, keep, registered))


def _registered(project: Project, collection: Collection) -> set[int]:
    """The generations that a version in the registry was opened as: a rollback of the champion returns to them."""
    if not (project.state / "mlflow").exists():
        return set()
    known = {version.version for version in versions.versions(project)}
    return {one.number for one in opened_builds(collection) if one.manifest["provenance"][MODEL_VERSION] in known}


def opened_builds(collection: Collection) -> list[Generation]:
    """The generations that a registered version was opened as, whether the registry still has it or not."""
    return [one for one in collection.generations() if MODEL_VERSION in one.manifest["provenance"]]


def planned(project: Project, collection: Collection) -> set[int]:
    """The generations whose documents a retrain is about to copy, so that they must stay until it has."""
    from orchestration.freshness.retrain import unread_plans

    return {plan.generation for plan in unread_plans(project) if plan.retriever == collection.retriever}


def _free_generations(project: Project, collection: Collection, keep: int, registered: set[int]) -> None:
    with file_lock(project.live / WRITER_LOCK):
        collection.collect_garbage(keep, registered)


def _additions(project: Project) -> Iterator[Garbage]:
    """What is remembered of additions to generations that are gone."""
    from orchestration.unneeded_additions import free_store, unneeded_stores

    for path in unneeded_stores(project):
        what = f"what additions to a former build remembered ({path.name})"
        yield Garbage(what, _size(path), partial(free_store, project, path))


def _dvc_cache(project: Project) -> Iterator[Garbage]:
    """Cached outputs that neither the working tree nor any commit, branch or experiment of it refers to."""
    if not (project.root / ".dvc" / "cache").exists():
        return
    scope = ["--workspace", *(["--all-commits", "--all-experiments"] if uses_git(project.root) else [])]
    listed = _dvc_gc(project, [*scope, "--dry"])
    files = [Path(name) for name in re.findall(r"^Removing (.+)$", listed, re.MULTILINE)]
    if files:
        what = f"{len(files)} files of DVC's cache that no commit or experiment refers to"
        yield Garbage(what, sum(file.stat().st_size for file in files) / 1e6, lambda: _free_cache(project, scope))


def _free_cache(project: Project, scope: list[str]) -> None:
    _dvc_gc(project, [*scope, "--force"])


def _dvc_gc(project: Project, options: list[str]) -> str:
    command = dvc_command("gc", *options)
    done = subprocess.run(command, cwd=project.root, env=environment(project), capture_output=True, text=True)
    if done.returncode:
        raise FreshetError(f"`dvc gc` failed: {done.stderr.strip()}")
    return done.stdout + done.stderr


def _size(path: Path) -> float:
    """Megabytes in all files below `path`."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6
