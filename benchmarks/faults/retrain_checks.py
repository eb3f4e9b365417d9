"""What must hold after a kill in a retrain, beyond what must after any: champion and live build."""

from __future__ import annotations

from model_code.ledger.work import Kind, State
from model_code.live.generation import Generation
from orchestration.garbage import MODEL_VERSION
from orchestration.live.collection import LiveCollection
from orchestration.project import Project
from orchestration.registry import history, versions

NOBODY = "none"  # the version of a build that was live before anything was registered


def champion_of(project: Project) -> str:
    """The champion's version."""
    champion = versions.holder(project)
    return NOBODY if champion is None else champion.version


def live_version(generation: Generation) -> str:
    """The version that the build of a generation was opened as."""
    return str(_build(generation).manifest["provenance"].get(MODEL_VERSION, NOBODY))


def roles_problem(collection: LiveCollection, before: str, finished: bool) -> str | None:
    """What is wrong with champion and live build, in words; None if both are the old or both the new version, or the
    retrain was killed between the new one's switch and its alias.

    before: the version that was both when the retrain began. finished: it was not killed, so both must be another one.
    """
    champion, live = champion_of(collection.project), live_version(collection.generation)
    newest = max((one.version for one in versions.versions(collection.project)), key=int, default=NOBODY)
    allowed = {(newest, newest)} if finished else {(before, before), (before, newest), (newest, newest)}
    if (champion, live) in allowed and not (finished and live == before):
        return None
    return f"champion {champion}, live {live}; there was {before}, and the newest is {newest}"


def notes_problem(collection: LiveCollection, version: str) -> str | None:
    """What is missing or said twice of a promotion that ended, in the ledger and in the history; None if nothing is."""
    retrains = collection.ledger.work.last(collection.retriever, 1000, Kind.RETRAIN)
    of_ledger = sum(work.state == State.DONE and work.details["version"] == version for work in retrains)
    of_history = sum((line["action"], line["to"]) == ("promote", version) for line in history.read(collection.project))
    if (of_ledger, of_history) == (1, 1):
        return None
    return f"version {version} is promoted {of_ledger} times in the ledger and {of_history} times in the history"


def _build(generation: Generation) -> Generation:
    return Generation.read(generation.sibling(generation.build))
