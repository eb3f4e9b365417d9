"""Conditions that hold after a crash, and the plain model of documents they are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from model_code.collection.generations.generation import Generation
from model_code.collection.index.builds import MODEL_VERSION
from model_code.collection.index.live_index import LiveIndex, document_rows
from model_code.collection.ledger.tasks import TaskKind, TaskState
from model_code.errors import FreshetError
from model_code.project import Project
from orchestration.registry import history, versions

# Text of each document id.
State = dict[str, str]
# Version of a build that was live before any version was registered.
NOBODY = "none"


def changed(state: State, action: Mapping[str, Any], generations: Mapping[int, State]) -> State:
    """Return the documents after an action of the worker."""
    # Documents also arrive during a retrain.
    if action["kind"] in ("put", "retrain"):
        return state | action["documents"]
    if action["kind"] == "remove":
        return {one: text for one, text in state.items() if one not in action["ids"]}
    return generations[action["to"]] if action["kind"] == "revert" else state


def received(collection: LiveIndex, action: Mapping[str, Any], state: State) -> bool:
    """Return whether the ledger has the documents of an action, by its last events.

    They were recorded in one transaction, so from then on none may be lost, even if the process was
    killed before it could acknowledge them.
    """
    if action["kind"] in ("put", "retrain"):
        last = collection.ledger.latest(action["documents"])
        texts = {one: event.payload["text"] for one, event in last.items() if event.payload}
        return texts == action["documents"]
    known = [one for one in action.get("ids", ()) if one in state]
    last = collection.ledger.latest(known)
    return bool(known) and all(one in last and last[one].kind == "remove" for one in known)


def searched(collection: LiveIndex) -> State:
    """Return all documents that a search finds, with their texts, from one whole generation.

    A generation is whole if every file has its checksum, no document is found twice, and the number
    of documents found equals the number in the manifest.

    Raises:
        FreshetError: If the generation is not whole.
    """
    from model_code.collection.generations.searcher import Searcher

    searcher = Searcher.open(collection.project.live, collection.retriever)
    generation = searcher.generation
    generation.verify_all()
    found = [hit.document_id for hit in searcher.search("the array of a string", k=10_000)]
    if len(found) != len(set(found)) or len(found) != generation.manifest["documents"]:
        stated = generation.manifest["documents"]
        raise FreshetError(
            f"generation {generation.number}: {len(found)} hits of {len(set(found))} documents, "
            f"{stated} stated"
        )
    texts = {one: row["text"] for one, row in document_rows(generation, found).items()}
    if texts.keys() != set(found):
        raise FreshetError(
            f"generation {generation.number}: a search finds other documents than those with a text"
        )
    return texts


def ledger_problem(collection: LiveIndex, state: State, ids: Iterable[str]) -> str | None:
    """Describe where the ledger and `state` differ for `ids`; None if they agree."""
    if collection.ledger_view.pending().changes:
        return "events are pending after they were applied"
    for one in ids:
        last = [
            event
            for event in collection.ledger_view.life(one)
            if event.state in ("live", "deleted", "absorbed")
        ]
        text = last[0].payload["text"] if last and last[0].payload else None
        if len(last) > 1 or (last or one.startswith("new-")) and text != state.get(one):
            states = [event.state for event in last]
            return f"the ledger says of {one}: {states} {text!r}, found: {state.get(one)!r}"
    return None


def difference(found: State, expected: State) -> str:
    """Describe how two states differ."""
    lost, doubled = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    other = sorted(one for one in expected.keys() & found.keys() if expected[one] != found[one])
    return f"missing {lost[:3]}, too many {doubled[:3]}, other text {other[:3]}"


def champion_of(project: Project) -> str:
    """Return the champion's version."""
    champion = versions.version_with_alias(project)
    return NOBODY if champion is None else champion.version


def live_version(generation: Generation) -> str:
    """Return the version of the build that a generation was opened from."""
    return str(_build(generation).manifest["provenance"].get(MODEL_VERSION, NOBODY))


def roles_problem(collection: LiveIndex, before: str, finished: bool) -> str | None:
    """Describe an error in champion and live build; None if there is none.

    Both must be the old version or both the new one. They may differ if the retrain was killed
    between the switch to the new version and its alias.

    Args:
        collection: Live index of the project.
        before: Version of both when the retrain began.
        finished: Whether the retrain was not killed, so that both must be another version.
    """
    champion, live = champion_of(collection.project), live_version(collection.generation)
    newest = max(
        (one.version for one in versions.list_versions(collection.project)), key=int, default=NOBODY
    )
    allowed = (
        {(newest, newest)} if finished else {(before, before), (before, newest), (newest, newest)}
    )
    if (champion, live) in allowed and not (finished and live == before):
        return None
    return f"champion {champion}, live {live}; there was {before}, and the newest is {newest}"


def notes_problem(collection: LiveIndex, version: str) -> str | None:
    """Describe missing or repeated records of a finished promotion; None if there are none.

    The records are in the ledger and in the history.
    """
    retrains = collection.ledger.tasks.last(collection.retriever, 1000, TaskKind.RETRAIN)
    of_ledger = sum(
        work.state == TaskState.DONE and work.details["version"] == version for work in retrains
    )
    of_history = sum(
        (line["action"], line["to"]) == ("promote", version)
        for line in history.read(collection.project)
    )
    if (of_ledger, of_history) == (1, 1):
        return None
    return (
        f"version {version} is promoted {of_ledger} times in the ledger "
        f"and {of_history} times in the history"
    )


def _build(generation: Generation) -> Generation:
    return Generation.read(generation.sibling(generation.build))
