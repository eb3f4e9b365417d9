"""Live generations that nobody needs, and what is remembered of additions to those that are gone.

`.freshet/additions` keeps a folder per base of additions.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.additions.store import store_of, token_of
from model_code.live.collection import Collection, retrievers
from orchestration.live.additions import folder_of, settings_of
from orchestration.live.ledger import WRITER_LOCK
from orchestration.live.opening import MODEL_VERSION
from orchestration.live.retrain_plan import unread_plans
from orchestration.pipeline.garbage import Garbage, size
from orchestration.project import Project, file_lock

if TYPE_CHECKING:
    from model_code.live.generation import Generation

STORE = re.compile(r".+-[0-9a-f]{16}")  # the name of a store: the retriever's, and a hash of what it stands for


def generations(project: Project, keep: int, registered: Callable[[Collection], set[int]]) -> Iterator[Garbage]:
    """The generations of each retriever but the `keep` newest, those that the current one needs, those that a retrain
    is about to read, and those that `registered` says a version of the registry was opened as."""
    for name in retrievers(project.live):
        collection = Collection(project.live, name)
        kept = registered(collection) | planned(project, collection)
        doomed = collection.unneeded(keep, kept)
        if doomed:
            numbers = ", ".join(str(generation.number) for generation in doomed)
            what = f"live generation{'s' * (len(doomed) > 1)} {numbers} of {name}"
            megabytes = sum(size(generation.folder) for generation in doomed)
            yield Garbage(what, megabytes, partial(_free, project, collection, keep, kept))


def opened_builds(collection: Collection) -> list[Generation]:
    """The generations that a registered version was opened as, whether the registry still has it or not."""
    return [one for one in collection.generations() if MODEL_VERSION in one.manifest["provenance"]]


def planned(project: Project, collection: Collection) -> set[int]:
    """The generations whose documents a retrain is about to copy, so that they must stay until it has."""
    return {plan.generation for plan in unread_plans(project) if plan.retriever == collection.retriever}


def _free(project: Project, collection: Collection, keep: int, kept: set[int]) -> None:
    with file_lock(project.live / WRITER_LOCK):
        collection.collect_garbage(keep, kept)


def additions(project: Project) -> Iterator[Garbage]:
    """What is remembered of additions to generations that are gone."""
    for path in unneeded_stores(project):
        what = f"what additions to a former build remembered ({path.name})"
        yield Garbage(what, size(path), partial(_free_store, project, path))


def unneeded_stores(project: Project) -> list[Path]:
    """The stores that no generation stands on, and that none would go on with by today's settings, by name."""
    stores = [path for path in sorted(folder_of(project).glob("*")) if STORE.fullmatch(path.name) and path.is_dir()]
    if not stores:
        return []
    spans = settings_of(project).spans
    generations = [one for name in retrievers(project.live) for one in Collection(project.live, name).generations()]
    next_ones = {store_of(folder_of(project), one, spans).folder for one in generations}
    tokens = {token for one in generations if (token := token_of(one)) is not None}
    return [path for path in stores if path not in next_ones and not any((path / token).is_dir() for token in tokens)]


def _free_store(project: Project, path: Path) -> None:
    """Delete a store, unless a writer needs it by now."""
    with file_lock(project.live / WRITER_LOCK):
        if path in unneeded_stores(project):
            shutil.rmtree(path)
