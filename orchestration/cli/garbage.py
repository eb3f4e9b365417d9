"""What nothing refers to any more: a row per kind, how it is found and how it is freed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from model_code.collection.generations.generation_store import GenerationStore, retrievers
from model_code.collection.index.builds import MODEL_VERSION, registered_builds
from model_code.collection.index.live_index import additions_folder
from model_code.collection.index.project_ledger import WRITER_LOCK
from model_code.collection.index.retrain_plan import FOLDER, PLAN, planned_generations
from model_code.files import folder_bytes
from model_code.incdsi.store import cache_folder
from model_code.project import Project, file_lock, lock_is_free
from orchestration import parameters
from orchestration.freshness import pilot
from orchestration.pipeline.dvc import run_dvc, uses_git
from orchestration.pipeline.runs import KIND
from orchestration.registry import versions

# the name of what is kept for additions: the retriever's, and a hash
STORE = re.compile(r".+-[0-9a-f]{16}")


@dataclass(frozen=True)
class Garbage:
    """Something that can be freed: what to call it, how much it frees, and how."""

    label: str
    megabytes: float
    free: Callable[[], object]


def find_garbage(project: Project, keep: int) -> list[Garbage]:
    """Everything that can go, largest first.

    The `keep` newest model versions stay, of all retrievers together, the `keep` newest live
    generations of each retriever, and the work of the `keep` newest retrains (of one at least: it
    may be under way). So does whatever has an alias, is current, registered, part of a generation
    that stays, or in `dvc.lock`.
    """
    kinds = (*KINDS, *REGISTERED) if (project.state / "mlflow").exists() else KINDS
    return sorted(
        (each for kind in kinds for each in kind(project, keep)),
        key=lambda garbage: -garbage.megabytes,
    )


def collect(project: Project, garbage: Sequence[Garbage]) -> None:
    """Free each item, while nothing else changes the project."""
    with project.lock():
        for item in garbage:
            item.free()


def _leftovers(project: Project, keep: int) -> Iterator[Garbage]:
    """Checkpoints and half-made outputs of stages that did not finish."""
    for kind in ("checkpoints", "staging"):
        for path in sorted((project.state / kind).glob("*")):
            yield _folder(f"{kind} of {path.name[:24]}", path)


def _pilots(project: Project, keep: int) -> Iterator[Garbage]:
    """The work of a pilot that was cut off."""
    folder, lock = project.state / pilot.FOLDER, project.state / pilot.LOCK
    if folder.is_dir() and lock_is_free(lock):
        yield _folder("work of a pilot that was cut off", folder, lambda: lock_is_free(lock))


def _retrains(project: Project, keep: int) -> Iterator[Garbage]:
    """The copies of the corpus that retrains worked on, with what they built: the registry has what
    came of them.
    """
    plans = sorted(
        (project.state / FOLDER).glob(f"*/{PLAN}"), key=lambda plan: plan.stat().st_mtime_ns
    )
    for plan in plans[: -max(keep, 1)]:
        yield _folder(f"work of retrain {plan.parent.name}", plan.parent)


def _dvc_cache(project: Project, keep: int) -> Iterator[Garbage]:
    """Cached outputs that neither the working tree nor any commit, branch or experiment of it
    refers to.
    """
    if not (project.root / ".dvc" / "cache").exists():
        return
    scope = [
        "--workspace",
        *(["--all-commits", "--all-experiments"] if uses_git(project.root) else []),
    ]
    listed = run_dvc(project, "gc", *scope, "--dry")
    files = [
        Path(name)
        for name in re.findall(r"^Removing (.+)$", listed.stdout + listed.stderr, re.MULTILINE)
    ]
    if files:
        label = f"{len(files)} files of DVC's cache that no commit or experiment refers to"
        size = sum(file.stat().st_size for file in files) / 1e6
        yield Garbage(label, size, partial(run_dvc, project, "gc", *scope, "--force"))


def _versions(project: Project, keep: int) -> Iterator[Garbage]:
    """All model versions but the newest, of all retrievers together, and those that have an alias."""
    holders = [versions.version_with_alias(project, role) for role in versions.ROLES]
    numbers = {version.version for version in holders if version}
    for version in versions.list_versions(project)[:-keep]:
        if version.version not in numbers:
            folders = versions.run_folders(project, [version.run_id])
            remark = (
                ""
                if folders
                else "; its files lie in another store than the project's, and stay there"
            )
            label = f"model version {version.version} ({version.retriever}){remark}"
            yield Garbage(
                label,
                sum(map(folder_bytes, folders)) / 1e6,
                partial(versions.delete_version, project, version),
            )


def _registrations(project: Project, keep: int) -> Iterator[Garbage]:
    """Runs and models of registrations without a version: `register` was killed, or the version was
    deleted; and runs of pilots that are over, whose answers the ledger has.
    """
    # a registration that goes on now is waited for
    with versions.open_registry(project) as registry:
        registered = {version.run_id for version in registry.list_versions()}
        orphans = (
            set(registry.find_runs(f"attributes.run_name LIKE '{versions.RUN_NAME}%'")) - registered
        )
        pilots = registry.find_runs(f"tags.`{KIND}` = 'pilot'")
    for run in sorted(orphans):
        yield _runs(project, f"registration that has no version (run {run[:8]})", [run])
    if pilots and lock_is_free(project.state / pilot.LOCK):
        yield _runs(project, f"{len(pilots)} runs of pilots", pilots)


def _generations(project: Project, keep: int) -> Iterator[Garbage]:
    """The generations of each retriever but the newest, those that the current one needs, those
    that a retrain is about to read, and those that a version in the registry was opened as: a
    rollback of the champion returns to them.
    """
    names = retrievers(project.live)
    registry = (project.state / "mlflow").exists()
    registered = (
        {version.version for version in versions.list_versions(project)}
        if names and registry
        else set()
    )
    for name in names:
        collection = GenerationStore(project.live, name)
        opened = registered_builds(collection)
        protected = {
            build.number
            for build in opened
            if build.manifest["provenance"][MODEL_VERSION] in registered
        }
        protected |= planned_generations(project, name)
        if doomed := collection.unneeded_generations(keep, protected):
            numbers = ", ".join(str(generation.number) for generation in doomed)
            label = f"live generation{'s' * (len(doomed) > 1)} {numbers} of {name}"
            megabytes = sum(folder_bytes(generation.folder) for generation in doomed) / 1e6
            yield Garbage(
                label, megabytes, partial(_free_generations, project, collection, keep, protected)
            )


def _additions(project: Project, keep: int) -> Iterator[Garbage]:
    """What is kept for additions of texts that are gone."""
    for path in unneeded_stores(project):
        label = f"what additions to a former build remembered ({path.name})"
        yield Garbage(label, folder_bytes(path) / 1e6, partial(_free_store, project, path))


KINDS = (_leftovers, _pilots, _retrains, _dvc_cache, _generations, _additions)
REGISTERED = (_versions, _registrations)


def unneeded_stores(project: Project) -> list[Path]:
    """What is kept of texts of parts that are gone, or by other settings than today's, by name."""
    folder = additions_folder(project)
    stores = [
        path for path in sorted(folder.glob("*")) if STORE.fullmatch(path.name) and path.is_dir()
    ]
    if not stores:
        return []
    spans = parameters.load(project.params_file).additions.spans
    generations = [
        each
        for name in retrievers(project.live)
        for each in GenerationStore(project.live, name).generations()
    ]
    needed = {cache_folder(each.manifest, spans, folder) for each in generations}
    return [path for path in stores if path not in needed]


def _free_store(project: Project, path: Path) -> None:
    """Delete a store, unless a writer needs it by now."""
    with file_lock(project.live / WRITER_LOCK):
        if path in unneeded_stores(project):
            shutil.rmtree(path)


def _free_generations(
    project: Project, collection: GenerationStore, keep: int, protected: set[int]
) -> None:
    with file_lock(project.live / WRITER_LOCK):
        collection.collect_garbage(keep, protected)


def _folder(label: str, path: Path, still: Callable[[], bool] = lambda: True) -> Garbage:
    """A folder that goes, unless it was moved since it was listed, as by a finished build, or is
    used again.
    """

    def free() -> None:
        if path.exists() and still():
            shutil.rmtree(path)

    return Garbage(label, folder_bytes(path) / 1e6, free)


def _runs(project: Project, label: str, runs: Sequence[str]) -> Garbage:
    """Runs of MLflow, with their models."""
    megabytes = sum(map(folder_bytes, versions.run_folders(project, runs))) / 1e6
    return Garbage(label, megabytes, partial(versions.delete_runs, project, runs))
