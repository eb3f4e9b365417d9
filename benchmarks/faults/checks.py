"""What must hold after a crash, and the plain model of documents that it is compared with."""

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

State = dict[str, str]  # document id -> text
NOBODY = "none"  # the version of a build that was live before anything was registered


def changed(state: State, action: Mapping[str, Any], generations: Mapping[int, State]) -> State:
    """The documents after an action of the worker."""
    if action["kind"] in ("put", "retrain"):  # documents arrive while it is trained
        return state | action["documents"]
    if action["kind"] == "remove":
        return {one: text for one, text in state.items() if one not in action["ids"]}
    return generations[action["to"]] if action["kind"] == "revert" else state


def received(collection: LiveIndex, action: Mapping[str, Any], state: State) -> bool:
    """Whether the log has the documents of an action, as its last events tell without what they
    came to.

    They came in one transaction, so that none may be lost from here on, whoever was killed before
    he could say so.
    """
    if action["kind"] in ("put", "retrain"):
        last = collection.ledger.latest(action["documents"])
        texts = {one: event.payload["text"] for one, event in last.items() if event.payload}
        return texts == action["documents"]
    known = [one for one in action.get("ids", ()) if one in state]
    last = collection.ledger.latest(known)
    return bool(known) and all(one in last and last[one].kind == "remove" for one in known)


def searched(collection: LiveIndex) -> State:
    """All documents that a search finds, with their texts, from one whole generation; FreshetError
    if it is not whole.

    Whole: every file has its checksum, no document is found twice, and as many are found as the
    manifest says.
    """
    from model_code.collection.generations.searcher import Searcher

    searcher = Searcher.open(collection.project.live, collection.retriever)
    generation = searcher.generation
    generation.verify_all()
    found = [hit.document_id for hit in searcher.search("the array of a string", k=10_000)]
    if len(found) != len(set(found)) or len(found) != generation.manifest["documents"]:
        stated = generation.manifest["documents"]
        raise FreshetError(
            f"generation {generation.number}: {len(found)} hits of {len(set(found))} documents, {stated} stated"
        )
    texts = {one: row["text"] for one, row in document_rows(generation, found).items()}
    if texts.keys() != set(found):
        raise FreshetError(
            f"generation {generation.number}: a search finds other documents than those with a text"
        )
    return texts


def ledger_problem(collection: LiveIndex, state: State, ids: Iterable[str]) -> str | None:
    """What the ledger says of `ids` that is not so in `state`, in words; None if all agrees."""
    if collection.ledger_view.pending().events:
        return "events are pending after they were applied"
    for one in ids:
        last = [
            event
            for event in collection.ledger_view.life(one)
            if event.state in ("live", "deleted", "absorbed")
        ]
        text = last[0].payload["text"] if last and last[0].payload else None
        if len(last) > 1 or (last or one.startswith("new-")) and text != state.get(one):
            return f"the ledger says of {one}: {[event.state for event in last]} {text!r}, found: {state.get(one)!r}"
    return None


def difference(found: State, expected: State) -> str:
    """In words, how two states differ."""
    lost, doubled = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    other = sorted(one for one in expected.keys() & found.keys() if expected[one] != found[one])
    return f"missing {lost[:3]}, too many {doubled[:3]}, other text {other[:3]}"


def champion_of(project: Project) -> str:
    """The champion's version."""
    champion = versions.version_with_alias(project)
    return NOBODY if champion is None else champion.version


def live_version(generation: Generation) -> str:
    """The version that the build of a generation was opened as."""
    return str(_build(generation).manifest["provenance"].get(MODEL_VERSION, NOBODY))


def roles_problem(collection: LiveIndex, before: str, finished: bool) -> str | None:
    """What is wrong with champion and live build, in words; None if both are the old or both the
    new version, or the retrain was killed between the new one's switch and its alias.

    before: the version that was both when the retrain began. finished: it was not killed, so both
    must be another one.
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
    """What is missing or said twice of a promotion that ended, in the ledger and in the history;
    None if nothing is.
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
    return f"version {version} is promoted {of_ledger} times in the ledger and {of_history} times in the history"


def _build(generation: Generation) -> Generation:
    return Generation.read(generation.sibling(generation.build))
