"""The plan of a retrain: the live generation whose documents it takes, which stays until it has
copied them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model_code.collection.generations.generation import Generation, added_since_training
from model_code.collection.generations.generation_store import GenerationStore, default_retriever
from model_code.collection.index.project_ledger import open_ledger_if_exists
from model_code.collection.ledger.events import Position
from model_code.files import MANIFEST, hash_path, read_json, write_json
from model_code.project import Project

FOLDER, PLAN, WORKSPACE = "retraining", "plan.json", "project"


@dataclass(frozen=True)
class RetrainPlan:
    """A retrain's `key`, the generation whose documents it takes with its watermark, and the
    documents new to it.

    mark, log: what tells the watermark's event from another log's (see `Position`); origin: hash of
    the generation's manifest. Numbers of both begin anew with another log or live collection.
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
        """The plan as plain values, with the number of new documents in place of their ids."""
        shown = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("mark", "log", "origin")
        }
        return {**shown, "new": len(self.new)}

    @property
    def snapshot(self) -> Position:
        """The position in the log of the documents that the retrain trains on."""
        return Position(self.log, self.watermark, self.mark) if self.watermark else Position()


def plan_retrain(project: Project, key: str) -> RetrainPlan:
    """A retrain on what is live now; writes nothing."""
    generation = GenerationStore(project.live, default_retriever(project.live)).current()
    ledger = open_ledger_if_exists(project)
    position = Position() if ledger is None else generation.cursor.position
    return RetrainPlan(
        key,
        generation.retriever,
        generation.number,
        position.event,
        generation.manifest["documents"],
        new=tuple(sorted(added_since_training(generation))),
        mark=position.mark,
        log=position.log or "",
        origin=_origin(generation),
    )


def is_from_another_collection(project: Project, plan: RetrainPlan) -> bool:
    """Whether the plan was made of a ledger or a live collection that was deleted meanwhile: its
    key says nothing.
    """
    ledger, position = open_ledger_if_exists(project), plan.snapshot
    if position.log is not None and (ledger is None or ledger.mismatch(position) is not None):
        return True
    collection = GenerationStore(project.live, plan.retriever)
    # none if it was not kept
    same = [each for each in collection.generations() if each.number == plan.generation]
    return bool(plan.origin and same and _origin(same[0]) != plan.origin)


def _origin(generation: Generation) -> str:
    return hash_path(generation.folder / MANIFEST)


def read_plan(project: Project, key: str) -> RetrainPlan | None:
    """The plan of a retrain that began before; None if there is none of this key."""
    path = retrain_folder(project, key) / PLAN
    if not path.is_file():
        return None
    stated = read_json(path)
    return RetrainPlan(**{**stated, "new": tuple(stated["new"])})


def planned_generations(project: Project, retriever: str) -> set[int]:
    """The generations of a retriever whose documents a retrain is about to copy, so that they stay
    until it has.
    """
    keys = [path.parent.name for path in (project.state / FOLDER).glob(f"*/{PLAN}")]
    plans = [
        read_plan(project, key) for key in keys if not retrain_workspace(project, key).root.is_dir()
    ]
    return {plan.generation for plan in plans if plan is not None and plan.retriever == retriever}


def save_plan(project: Project, plan: RetrainPlan) -> None:
    """Write the plan to the retrain's folder."""
    write_json(retrain_folder(project, plan.key) / PLAN, asdict(plan))


def retrain_folder(project: Project, key: str) -> Path:
    """Where the retrain of a key works."""
    return project.state / FOLDER / key


def retrain_workspace(project: Project, key: str) -> Project:
    """The workspace of the retrain of a key, which holds its copy of the documents."""
    return Project(retrain_folder(project, key) / WORKSPACE, home=project.root)


def read_planned_generation(project: Project, plan: RetrainPlan) -> Generation:
    """The generation that the plan names; FreshetError if it is deleted meanwhile."""
    return GenerationStore(project.live, plan.retriever).read(plan.generation)
