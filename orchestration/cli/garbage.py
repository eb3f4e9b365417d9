"""Find files that nothing needs any more, and delete them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from model_code.collection.generations.generation_store import GenerationStore, retrievers
from model_code.collection.index.builder_factory import additions_folder
from model_code.collection.index.builds import MODEL_VERSION, registered_builds
from model_code.collection.index.project_ledger import WRITER_LOCK
from model_code.collection.index.retrain_plan import FOLDER, PLAN, planned_generations
from model_code.files import folder_bytes
from model_code.incdsi import constraints
from model_code.incdsi.store import cache_folder
from model_code.project import Project, file_lock, lock_is_free
from orchestration import parameters
from orchestration.freshness import pilot
from orchestration.pipeline.dvc import run_dvc, uses_git
from orchestration.pipeline.runs import KIND
from orchestration.registry import versions

BYTES_PER_MEGABYTE = 1e6
# Names of stages are cut to this length in labels.
MAX_LABEL_CHARACTERS = 24
# Name of a folder in which IncDSI caches vectors and constraints: RETRIEVER-HASH.
STORE_NAME = re.compile(r".+-[0-9a-f]{16}")
# A line of `dvc gc --dry` that names a file which DVC would delete.
REMOVED_BY_DVC = re.compile(r"^Removing (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Garbage:
    """Files that can be deleted.

    Attributes:
        label: Description for the user.
        megabytes: Space that is freed.
        delete: Deletes the files.
    """

    label: str
    megabytes: float
    delete: Callable[[], object]


def find_garbage(project: Project, keep: int) -> list[Garbage]:
    """Return everything that can be deleted, largest first.

    Model versions with an alias and files that `dvc.lock` names are never garbage. Neither are the
    current generation of each retriever, and generations that it or a registered version needs.

    Args:
        project: The project.
        keep: Number of the newest items to keep: model versions of all retrievers together, live
            generations of each retriever, and retrains. At least one retrain is kept, because it
            may be running.
    """
    finders = [
        _unfinished_stages,
        _interrupted_pilots,
        _old_retrains,
        _unreferenced_cache,
        _old_generations,
        _unneeded_incdsi_stores,
    ]
    if (project.state / "mlflow").exists():
        finders += [_old_versions, _runs_without_version]

    garbage = []
    for find in finders:
        garbage += find(project, keep)
    garbage.sort(key=lambda item: item.megabytes, reverse=True)
    return garbage


def delete_garbage(project: Project, garbage: Sequence[Garbage]) -> None:
    """Delete items under the lock of the project, so that nothing else changes it meanwhile."""
    with project.lock():
        for item in garbage:
            item.delete()


def _unfinished_stages(project: Project, keep: int) -> Iterator[Garbage]:
    """Find checkpoints and partial outputs of stages that did not finish."""
    for kind in ("checkpoints", "staging"):
        for path in sorted((project.state / kind).glob("*")):
            yield _folder_garbage(f"{kind} of {path.name[:MAX_LABEL_CHARACTERS]}", path)


def _interrupted_pilots(project: Project, keep: int) -> Iterator[Garbage]:
    """Find the folder of a pilot that was interrupted.

    A pilot is a short training on a sample of the documents. It deletes its folder when it ends.
    """
    folder = project.state / pilot.FOLDER
    lock = project.state / pilot.LOCK
    if folder.is_dir() and lock_is_free(lock):
        is_unused = partial(lock_is_free, lock)
        yield _folder_garbage("work of an interrupted pilot", folder, is_unused)


def _old_retrains(project: Project, keep: int) -> Iterator[Garbage]:
    """Find folders of old retrains, with copies of the corpus and builds.

    They are not needed any more, because the results of a retrain are registered in MLflow.
    """
    plans = list((project.state / FOLDER).glob(f"*/{PLAN}"))
    plans.sort(key=lambda plan: plan.stat().st_mtime_ns)
    # The newest retrain is kept in any case, because it may be running.
    kept = max(keep, 1)
    for plan in plans[:-kept]:
        yield _folder_garbage(f"work of retrain {plan.parent.name}", plan.parent)


def _unreferenced_cache(project: Project, keep: int) -> Iterator[Garbage]:
    """Find files of DVC's cache that no working tree, commit, branch or experiment refers to."""
    if not (project.root / ".dvc" / "cache").exists():
        return
    scope = ["--workspace"]
    if uses_git(project.root):
        scope += ["--all-commits", "--all-experiments"]

    listing = run_dvc(project, "gc", *scope, "--dry")
    names = REMOVED_BY_DVC.findall(listing.stdout + listing.stderr)
    if not names:
        return
    size = sum(Path(name).stat().st_size for name in names)
    yield Garbage(
        f"{len(names)} files of DVC's cache that no commit or experiment refers to",
        size / BYTES_PER_MEGABYTE,
        partial(run_dvc, project, "gc", *scope, "--force"),
    )


def _old_versions(project: Project, keep: int) -> Iterator[Garbage]:
    """Find model versions that have no role, such as champion, and are not the newest `keep`."""
    numbers_with_role = set()
    for role in versions.ROLES:
        version = versions.version_with_alias(project, role)
        if version is not None:
            numbers_with_role.add(version.version)

    for version in versions.list_versions(project)[:-keep]:
        if version.version in numbers_with_role:
            continue
        label = f"model version {version.version} ({version.retriever})"
        folders = versions.run_folders(project, [version.run_id])
        if not folders:
            label += "; its files are in a store outside of the project and stay there"
        yield Garbage(
            label, _megabytes(folders), partial(versions.delete_version, project, version)
        )


def _runs_without_version(project: Project, keep: int) -> Iterator[Garbage]:
    """Find MLflow runs of registrations without a version, and MLflow runs of finished pilots.

    A registration has no version if `register` was killed, or the version was deleted. Pilots are
    short trainings on a sample. Their runs are not needed, because the ledger records the outcomes.
    """
    # A registration that runs now has no version yet. Opening the registry waits until it ends.
    with versions.open_registry(project) as registry:
        registered_runs = {version.run_id for version in registry.list_versions()}
        runs = set(registry.find_runs(f"attributes.run_name LIKE '{versions.RUN_NAME}%'"))
        pilot_runs = registry.find_runs(f"tags.`{KIND}` = 'pilot'")

    for run in sorted(runs - registered_runs):
        yield _run_garbage(project, f"registration without a version (run {run[:8]})", [run])
    if pilot_runs and lock_is_free(project.state / pilot.LOCK):
        yield _run_garbage(project, f"{len(pilot_runs)} runs of pilots", pilot_runs)


def _old_generations(project: Project, keep: int) -> Iterator[Garbage]:
    """Find old live generations of each retriever. A generation is a snapshot of its index.

    A generation stays if it is among the newest `keep`, if the current generation uses its files,
    or if a planned retrain will read it. It also stays if a registered version was opened as this
    generation, because a rollback of the champion returns to it.
    """
    names = retrievers(project.live)
    registered_versions = set()
    if names and (project.state / "mlflow").exists():
        registered_versions = {version.version for version in versions.list_versions(project)}

    for name in names:
        store = GenerationStore(project.live, name)
        protected = set(planned_generations(project, name))
        for build in registered_builds(store):
            if build.manifest["provenance"][MODEL_VERSION] in registered_versions:
                protected.add(build.number)

        unneeded = store.unneeded_generations(keep, protected)
        if not unneeded:
            continue
        noun = "generation" if len(unneeded) == 1 else "generations"
        numbers = ", ".join(str(generation.number) for generation in unneeded)
        yield Garbage(
            f"live {noun} {numbers} of {name}",
            _megabytes([generation.folder for generation in unneeded]),
            partial(_delete_generations, project, store, keep, protected),
        )


def _delete_generations(
    project: Project, store: GenerationStore, keep: int, protected: set[int]
) -> None:
    """Delete old generations of a retriever while no other process changes the index.

    Args:
        project: The project.
        store: The retriever's generations.
        keep: Number of the newest generations to keep.
        protected: Numbers of further generations to keep.
    """
    with file_lock(project.live / WRITER_LOCK):
        store.collect_garbage(keep, protected)


def _unneeded_incdsi_stores(project: Project, keep: int) -> Iterator[Garbage]:
    """Find caches of IncDSI that no generation needs.

    IncDSI caches the vectors that it solved for added documents. A generation is a snapshot of the
    live index.
    """
    for path in unneeded_stores(project):
        yield Garbage(
            f"vectors of additions to a former build ({path.name})",
            _megabytes([path]),
            partial(_delete_store, project, path),
        )


def unneeded_stores(project: Project) -> list[Path]:
    """Return folders of IncDSI's caches that no generation needs, sorted by name.

    They belong to generations that were removed, or were computed with other settings.
    """
    folder = additions_folder(project)
    stores = []
    for path in sorted(folder.glob("*")):
        if path.is_dir() and STORE_NAME.fullmatch(path.name):
            stores.append(path)
    if not stores:
        return []

    spans = parameters.load(project.params_file).additions.learned.spans
    needed = set()
    for name in retrievers(project.live):
        for generation in GenerationStore(project.live, name).generations():
            needed.add(cache_folder(generation.manifest, spans, folder))
            needed.add(constraints.cache_folder(generation.manifest, folder))
    return [path for path in stores if path not in needed]


def _delete_store(project: Project, path: Path) -> None:
    """Delete a cache folder, unless a writer has begun to use it meanwhile."""
    with file_lock(project.live / WRITER_LOCK):
        if path in unneeded_stores(project):
            shutil.rmtree(path)


def _always() -> bool:
    return True


def _folder_garbage(label: str, path: Path, is_unused: Callable[[], bool] = _always) -> Garbage:
    """Return a folder as garbage.

    The folder is not deleted if it is gone or in use by then. For example, a build that finishes
    moves its folder.

    Args:
        label: Description for the user.
        path: The folder.
        is_unused: Tells, right before the deletion, whether the folder is still unused.
    """

    def delete() -> None:
        if path.exists() and is_unused():
            shutil.rmtree(path)

    return Garbage(label, _megabytes([path]), delete)


def _run_garbage(project: Project, label: str, runs: Sequence[str]) -> Garbage:
    """Return MLflow runs, together with the models that they logged, as garbage."""
    folders = versions.run_folders(project, runs)
    return Garbage(label, _megabytes(folders), partial(versions.delete_runs, project, runs))


def _megabytes(folders: Sequence[Path]) -> float:
    return sum(folder_bytes(folder) for folder in folders) / BYTES_PER_MEGABYTE
