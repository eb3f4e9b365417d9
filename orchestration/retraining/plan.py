"""What one retrain trains on, fixed at its start and kept beside its work, so that every step of it agrees."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from model_code.files import hash_path, read_json, write_json
from model_code.live.collection import Collection, default_retriever
from model_code.live.generation import Generation
from model_code.live.trained import added_since_training
from model_code.manifest import MANIFEST
from orchestration.project import Project
from orchestration.watermark import Watermark

FOLDER, PLAN = "retraining", "plan.json"


@dataclass(frozen=True)
class Plan:
    """A retrain's `key`, the generation whose documents it takes with its watermark, and the documents new to it.

    mark: what tells the watermark's event from another ledger's (see `Watermark`); origin: hash of the generation's
    manifest. Numbers of both begin anew with another ledger or live collection. A plan of before they were kept has no
    origin, and the mark that its watermark has now.
    """

    key: str
    retriever: str
    generation: int
    watermark: int
    documents: int
    new: tuple[str, ...]
    mark: str = ""
    origin: str = ""

    def summary(self) -> dict[str, Any]:
        """The plan as plain values, with the number of new documents in place of their ids."""
        shown = {name: value for name, value in asdict(self).items() if name not in ("mark", "origin")}
        return {**shown, "new": len(self.new)}

    @property
    def contained(self) -> Watermark:
        """The last event of the ledger that the retrain's documents hold."""
        return Watermark(self.watermark, self.mark) if self.mark else Watermark()


def make_plan(project: Project, key: str) -> Plan:
    """A retrain on what is live now; writes nothing."""
    generation = Collection(project.live, default_retriever(project.live)).current()
    return Plan(
        key,
        generation.retriever,
        generation.number,
        generation.watermark,
        generation.manifest["documents"],
        new=tuple(sorted(added_since_training(generation))),
        mark=Watermark.at(project, generation.watermark).mark,
        origin=_origin(generation),
    )


def is_of_another_collection(project: Project, plan: Plan) -> bool:
    """Whether the plan was made of a ledger or a live collection that was deleted meanwhile: its key says nothing."""
    if plan.mark and not plan.contained.here(project):
        return True
    collection = Collection(project.live, plan.retriever)
    same = [one for one in collection.generations() if one.number == plan.generation]  # none if it was not kept
    return bool(plan.origin and same and _origin(same[0]) != plan.origin)


def _origin(generation: Generation) -> str:
    return hash_path(generation.folder / MANIFEST)


def read_plan(project: Project, key: str) -> Plan | None:
    """The plan of a retrain that began before; None if there is none of this key."""
    path = folder_of(project, key) / PLAN
    if not path.is_file():
        return None
    stated = read_json(path)
    plan = Plan(**{**stated, "new": tuple(stated["new"])})
    return plan if plan.mark else replace(plan, mark=Watermark.at(project, plan.watermark).mark)


def unread_plans(project: Project) -> list[Plan]:
    """The plans of retrains that have not copied their documents yet."""
    keys = sorted(path.parent.name for path in (project.state / FOLDER).glob(f"*/{PLAN}"))
    plans = (read_plan(project, key) for key in keys if not snapshot_of(project, key).is_dir())
    return [plan for plan in plans if plan is not None]


def keep_plan(project: Project, plan: Plan) -> None:
    """Write the plan to the retrain's folder."""
    folder = folder_of(project, plan.key)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, asdict(plan))


def folder_of(project: Project, key: str) -> Path:
    """Where the retrain of a key works."""
    return project.state / FOLDER / key


def snapshot_of(project: Project, key: str) -> Path:
    """Where the retrain of a key keeps its copy of the documents."""
    return folder_of(project, key) / "snapshot"


def generation_of(project: Project, plan: Plan) -> Generation:
    """The generation that the plan names; FreshetError if it is deleted meanwhile."""
    return Collection(project.live, plan.retriever).read(plan.generation)
