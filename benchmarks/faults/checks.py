"""Conditions that must hold after a crash, and the documents that are expected then."""

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

# The documents of a collection: the text of each document id.
State = dict[str, str]
# Version of a build that was live before any version was registered.
NO_VERSION = "none"


def apply_action(
    state: State, action: Mapping[str, Any], generations: Mapping[int, State]
) -> State:
    """Return the documents that are expected after an action of the worker.

    Args:
        state: Documents before the action.
        action: Action that `worker.draw` returned.
        generations: Documents of each generation, by number. A revert restores one of them.
    """
    kind = action["kind"]
    # Documents also arrive during a retrain.
    if kind in ("put", "retrain"):
        return {**state, **action["documents"]}
    if kind == "remove":
        remaining = dict(state)
        for document_id in action["ids"]:
            remaining.pop(document_id, None)
        return remaining
    if kind == "revert":
        return generations[action["to"]]
    return state


def is_recorded(live_index: LiveIndex, action: Mapping[str, Any], state: State) -> bool:
    """Return whether the ledger holds the documents or removals of an action.

    An action is recorded in one transaction. A recorded document may not be lost, even if the
    process was killed before it could acknowledge the document.

    Args:
        live_index: Live index whose ledger is read.
        action: Action that `worker.draw` returned.
        state: Documents before the action.
    """
    if action["kind"] in ("put", "retrain"):
        latest = live_index.ledger.latest(action["documents"])
        texts = {}
        for document_id, event in latest.items():
            # The event of a removal has no payload.
            if event.payload:
                texts[document_id] = event.payload["text"]
        return texts == action["documents"]

    # Removing an unknown document records no event. Other kinds of actions name no documents.
    known_ids = [document_id for document_id in action.get("ids", ()) if document_id in state]
    if not known_ids:
        return False
    latest = live_index.ledger.latest(known_ids)
    return all(
        document_id in latest and latest[document_id].kind == "remove" for document_id in known_ids
    )


def find_all_documents(live_index: LiveIndex) -> State:
    """Return all documents that a search finds, with their texts, from one whole generation.

    A generation is whole if every file has its checksum, no document is found twice, and the number
    of documents found equals the number in the manifest.

    Raises:
        FreshetError: If the generation is not whole.
    """
    from model_code.collection.generations.searcher import Searcher

    searcher = Searcher.open(live_index.project.live, live_index.retriever)
    generation = searcher.generation
    generation.verify_all()
    hit_ids = [hit.document_id for hit in searcher.search("the array of a string", k=10_000)]
    distinct_ids = set(hit_ids)
    expected_count = generation.manifest["documents"]
    if len(hit_ids) != len(distinct_ids) or len(hit_ids) != expected_count:
        raise FreshetError(
            f"generation {generation.number}: {len(hit_ids)} hits of {len(distinct_ids)} "
            f"documents, {expected_count} stated"
        )

    rows = document_rows(generation, hit_ids)
    texts = {document_id: row["text"] for document_id, row in rows.items()}
    if texts.keys() != distinct_ids:
        raise FreshetError(
            f"generation {generation.number}: a search finds other documents than those with a text"
        )
    return texts


def ledger_problem(live_index: LiveIndex, state: State, ids: Iterable[str]) -> str | None:
    """Describe where the ledger and `state` differ for `ids`; None if they agree.

    Args:
        live_index: Live index whose ledger is read. All its events must be applied.
        state: Documents that a search finds.
        ids: Ids of all documents that may exist.
    """
    if live_index.ledger_view.pending().changes:
        return "events are pending after they were applied"
    for document_id in ids:
        # Superseded and reverted events do not count. At most one event may be in effect.
        effective_events = [
            event
            for event in live_index.ledger_view.life(document_id)
            if event.state in ("live", "deleted", "absorbed")
        ]
        ledger_text = None
        if effective_events and effective_events[0].payload:
            ledger_text = effective_events[0].payload["text"]

        # A document of the base that was never changed has no event, so nothing can be compared.
        is_unchanged_base = not effective_events and not document_id.startswith("new-")
        differs = not is_unchanged_base and ledger_text != state.get(document_id)
        if len(effective_events) > 1 or differs:
            event_states = [event.state for event in effective_events]
            return (
                f"the ledger says of {document_id}: {event_states} {ledger_text!r}, "
                f"found: {state.get(document_id)!r}"
            )
    return None


def describe_difference(actual: State, expected: State) -> str:
    """Describe how two states differ."""
    missing = sorted(expected.keys() - actual.keys())
    unexpected = sorted(actual.keys() - expected.keys())
    common = expected.keys() & actual.keys()
    changed_texts = sorted(
        document_id for document_id in common if expected[document_id] != actual[document_id]
    )
    return f"missing {missing[:3]}, too many {unexpected[:3]}, other text {changed_texts[:3]}"


def champion_of(project: Project) -> str:
    """Return the champion's version, or `NO_VERSION`."""
    champion = versions.version_with_alias(project)
    return NO_VERSION if champion is None else champion.version


def live_version(generation: Generation) -> str:
    """Return the version of the build that a generation was opened from, or `NO_VERSION`."""
    build = Generation.read(generation.sibling(generation.build))
    return str(build.manifest["provenance"].get(MODEL_VERSION, NO_VERSION))


def version_problem(live_index: LiveIndex, before: str, finished: bool) -> str | None:
    """Describe an error in champion and live build; None if there is none.

    Both must be the old version or both the new one. They may differ if the retrain was killed
    between the switch to the new version and its alias.

    Args:
        live_index: Live index of the project.
        before: Version of both when the retrain began.
        finished: Whether the retrain was not killed, so that both must be another version.
    """
    champion = champion_of(live_index.project)
    live = live_version(live_index.generation)
    numbers = [version.version for version in versions.list_versions(live_index.project)]
    newest = max(numbers, key=int, default=NO_VERSION)

    if finished:
        is_correct = champion == live == newest and live != before
    else:
        # The new version goes live before it becomes champion.
        allowed_pairs = {(before, before), (before, newest), (newest, newest)}
        is_correct = (champion, live) in allowed_pairs
    if is_correct:
        return None
    return f"champion {champion}, live {live}; there was {before}, and the newest is {newest}"


def promotion_problem(live_index: LiveIndex, version: str) -> str | None:
    """Describe missing or repeated records of a finished promotion; None if there are none.

    The ledger and the history of promotions must each have exactly one record.
    """
    retrains = live_index.ledger.tasks.last(live_index.retriever, 1000, TaskKind.RETRAIN)
    ledger_count = 0
    for task in retrains:
        if task.state == TaskState.DONE and task.details["version"] == version:
            ledger_count += 1
    history_count = 0
    for entry in history.read(live_index.project):
        if entry["action"] == "promote" and entry["to"] == version:
            history_count += 1

    if ledger_count == 1 and history_count == 1:
        return None
    return (
        f"version {version} is promoted {ledger_count} times in the ledger "
        f"and {history_count} times in the history"
    )
