"""What must hold after a crash, and the plain model of documents that it is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from model_code.errors import FreshetError
from orchestration.live.collection import LiveCollection
from orchestration.live.ledger import held

State = dict[str, str]  # document id -> text


def changed(state: State, action: Mapping[str, Any], generations: Mapping[int, State]) -> State:
    """The documents after an action of the worker."""
    if action["kind"] in ("put", "retrain"):  # documents arrive while it is trained
        return state | action["documents"]
    if action["kind"] == "remove":
        return {one: text for one, text in state.items() if one not in action["ids"]}
    return generations[action["to"]] if action["kind"] == "switch" else state


def searched(collection: LiveCollection) -> State:
    """All documents that a search finds, with their texts, from one whole generation; FreshetError if it is not whole.

    Whole: every file has its checksum, no document is found twice, and as many are found as the manifest says.
    """
    from model_code.live.searcher import Searcher

    searcher = Searcher.open(collection.project.live, collection.retriever)
    generation = searcher.generation
    generation.verify_all()
    found = [hit.document_id for hit in searcher.search("the array of a string", k=10_000)]
    if len(found) != len(set(found)) or len(found) != generation.manifest["documents"]:
        stated = generation.manifest["documents"]
        raise FreshetError(
            f"generation {generation.number}: {len(found)} hits of {len(set(found))} documents, {stated} stated"
        )
    texts = {one: row["text"] for one, row in held(generation, found).items()}
    if texts.keys() != set(found):
        raise FreshetError(f"generation {generation.number}: a search finds other documents than those with a text")
    return texts


def ledger_problem(collection: LiveCollection, state: State, ids: Iterable[str]) -> str | None:
    """What the ledger says of `ids` that is not so in `state`, in words; None if all agrees."""
    if collection.seen.pending().events:
        return "events are pending after they were applied"
    for one in ids:
        last = [event for event in collection.seen.life(one) if event.state in ("live", "deleted", "absorbed")]
        text = last[0].payload["text"] if last and last[0].payload else None
        if len(last) > 1 or (last or one.startswith("new-")) and text != state.get(one):
            return f"the ledger says of {one}: {[event.state for event in last]} {text!r}, found: {state.get(one)!r}"
    return None


def difference(found: State, expected: State) -> str:
    """In words, how two states differ."""
    lost, doubled = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    other = sorted(one for one in expected.keys() & found.keys() if expected[one] != found[one])
    return f"missing {lost[:3]}, too many {doubled[:3]}, other text {other[:3]}"
