"""The plan of a retrain: it names the generation whose documents the retrain trains on.

A generation is a snapshot of the index. Garbage collection keeps the planned generation until the
retrain has copied its documents.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model_code.collection.generations.generation import Generation, added_since_training
from model_code.collection.generations.generation_store import GenerationStore, default_retriever
from model_code.collection.index.project_ledger import has_ledger, open_ledger_if_exists
from model_code.collection.ledger.events import Position
from model_code.files import MANIFEST, hash_path, read_json, write_json
from model_code.project import Project
from model_code.settings import require

# Name of the folder, in the project's state, that has a folder for each retrain.
FOLDER = "retraining"

# Names of files and folders in the folder of a retrain.
PLAN = "plan.json"
WORKSPACE = "project"
# File with the outcome of a retrain that has ended. The workspace of a refused retrain is deleted.
OUTCOME_FILE = "ended.json"

# A key is the name of a folder, which is deleted when the retrain begins. So it cannot lead out of
# the folder of all retrains.
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# Fields of a plan that only identify the ledger and the generation. They are not shown to people.
IDENTITY_FIELDS = ("mark", "log", "origin")


@dataclass(frozen=True)
class RetrainPlan:
    """The generation whose documents a retrain trains on.

    If the ledger or the live collection is replaced, events and generations are numbered from the
    start again. `mark`, `log` and `origin` show whether the numbers still mean the same.

    Attributes:
        key: Key of the retrain, which names its folder.
        retriever: Name of the retriever that was the default when the retrain was planned.
        generation: Number of the generation.
        watermark: Id of the last ledger event that the generation contains.
        documents: Number of documents in the generation.
        new: Ids of the documents that the current build was not trained on, ascending.
        mark: Hash of the event `watermark`; see `Position`.
        log: Identity of the ledger. "" if there is none.
        origin: Hash of the generation's manifest.
    """

    key: str
    retriever: str
    generation: int
    watermark: int
    documents: int
    new: tuple[str, ...]
    mark: str = ""
    log: str = ""
    origin: str = ""

    def summary(self) -> dict[str, Any]:
        """Return the plan as plain values for people.

        The value of "new" is the number of new documents instead of their ids.
        """
        values = asdict(self)
        for name in IDENTITY_FIELDS:
            del values[name]
        values["new"] = len(self.new)
        return values

    @property
    def snapshot(self) -> Position:
        """Ledger position up to which the retrain contains all documents."""
        if self.watermark == 0:
            return Position()
        return Position(self.log, self.watermark, self.mark)


def plan_retrain(project: Project, key: str) -> RetrainPlan:
    """Plan a retrain on the documents that are live now. Nothing is written.

    The plan names the current generation, a snapshot of the index, so that later changes do not
    affect the retrain.

    Args:
        project: The project.
        key: Key of the retrain.
    """
    store = GenerationStore(project.live, default_retriever(project.live))
    generation = store.current()
    position = Position()
    if has_ledger(project):
        position = generation.cursor.position
    return RetrainPlan(
        key=key,
        retriever=generation.retriever,
        generation=generation.number,
        watermark=position.event,
        documents=generation.manifest["documents"],
        new=tuple(sorted(added_since_training(generation))),
        mark=position.mark,
        log=position.log or "",
        origin=_manifest_hash(generation),
    )


def is_from_another_collection(project: Project, plan: RetrainPlan) -> bool:
    """Return whether the ledger or the live collection was replaced after a plan was made.

    The numbers in such a plan refer to the former collection, so it cannot be continued.

    Args:
        project: The project.
        plan: Plan that was made earlier.
    """
    position = plan.snapshot
    if position.log is not None:
        ledger = open_ledger_if_exists(project)
        if ledger is None:
            return True
        with ledger:
            if ledger.mismatch(position) is not None:
                return True

    if not plan.origin:
        return False
    store = GenerationStore(project.live, plan.retriever)
    for generation in store.generations():
        if generation.number == plan.generation:
            return _manifest_hash(generation) != plan.origin
    # Garbage collection has deleted the planned generation. That does not mean another collection.
    return False


def read_plan(project: Project, key: str) -> RetrainPlan | None:
    """Read the plan of a retrain that was started earlier.

    Args:
        project: The project.
        key: Key of the retrain.

    Returns:
        The plan. None if there is no retrain with this key.
    """
    path = retrain_folder(project, key) / PLAN
    if not path.is_file():
        return None
    values = read_json(path)
    values["new"] = tuple(values["new"])
    return RetrainPlan(**values)


def planned_generations(project: Project, retriever: str) -> set[int]:
    """Return the generations that garbage collection must keep for retrains.

    These are the planned generations of retrains that have not copied the documents yet.

    Args:
        project: The project.
        retriever: Name of the retriever.

    Returns:
        Numbers of the generations.
    """
    numbers: set[int] = set()
    for path in (project.state / FOLDER).glob(f"*/{PLAN}"):
        key = path.parent.name
        # The workspace exists as soon as the documents are copied, so the generation is not needed.
        has_ended = (path.parent / OUTCOME_FILE).is_file()
        if has_ended or retrain_workspace(project, key).root.is_dir():
            continue
        plan = read_plan(project, key)
        if plan is not None and plan.retriever == retriever:
            numbers.add(plan.generation)
    return numbers


def save_plan(project: Project, plan: RetrainPlan) -> None:
    """Write a plan to the folder of its retrain.

    Args:
        project: The project.
        plan: The plan.
    """
    write_json(retrain_folder(project, plan.key) / PLAN, asdict(plan))


def require_key(key: str) -> None:
    """Raise `SettingsError` if a key cannot be the name of a new folder for a retrain."""
    require(
        KEY.fullmatch(key) is not None,
        f"the name of the retrain is {key!r}; it has up to 100 letters (a to z), digits and signs "
        "of ._-, and begins with a letter or a digit",
    )


def retrain_folder(project: Project, key: str) -> Path:
    """Return the folder of the retrain with a key."""
    return project.state / FOLDER / key


def retrain_workspace(project: Project, key: str) -> Project:
    """Return the workspace of the retrain with a key.

    A workspace is a project inside the folder of the retrain, with a copy of the documents.
    """
    return Project(retrain_folder(project, key) / WORKSPACE, home=project.root)


def read_planned_generation(project: Project, plan: RetrainPlan) -> Generation:
    """Return the generation that a plan names.

    Args:
        project: The project.
        plan: The plan.

    Raises:
        FreshetError: If the generation was deleted meanwhile.
    """
    return GenerationStore(project.live, plan.retriever).read(plan.generation)


def _manifest_hash(generation: Generation) -> str:
    return hash_path(generation.folder / MANIFEST)
