"""Builds that become what is searched: opened with every document that arrived since they were
made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_code.collection.generations.build import Parts, add_build
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import Collection, set_default_retriever
from model_code.collection.index.live_index import LiveIndex, apply_pending, make_generation_builder
from model_code.collection.index.project_ledger import (
    WRITER_LOCK,
    in_a_log,
    open_ledger_if_exists,
    standing_of,
)
from model_code.collection.ledger.events import Position, Standing
from model_code.collection.ledger.ledger import Ledger
from model_code.project import Project, file_lock
from model_code.text.passages import TextRules

# in the provenance of a build: which version of the registry it was opened as
MODEL_VERSION = "model_version"


def open_build(
    project: Project,
    retriever: str,
    parts: Parts,
    provenance: Mapping[str, Any],
    text: TextRules | None,
    snapshot: Position,
) -> Generation:
    """Search a build, and `retriever` by default, once it has all that arrived.

    snapshot: the position of the documents that it was trained on; see `add_build` for the others.
    One that was opened before goes on from its newest generation. An error or a crash leaves the
    old generation current.
    """
    collection = Collection(project.live, retriever)
    with file_lock(project.live / WRITER_LOCK):
        ledger = open_ledger_if_exists(project, retriever)
        if collection.current_number() is not None and (
            ledger is not None or in_a_log(collection.current())
        ):
            LiveIndex(project, retriever).begin()
        standing = _standing(ledger, snapshot)
        opened = add_build(
            collection,
            parts,
            provenance,
            text,
            standing,
            lambda copies: _newest(ledger, collection, copies),
        )
        generation = _complete(project, collection, opened, ledger)
        set_default_retriever(project.live, retriever)
        return generation


def registered_builds(collection: Collection) -> list[Generation]:
    """The generations that a registered version was opened as, whether the registry still has it or
    not.
    """
    return [
        each for each in collection.generations() if MODEL_VERSION in each.manifest["provenance"]
    ]


def _standing(ledger: Ledger | None, snapshot: Position) -> Standing:
    """Where a build stands. Of a snapshot of another log nothing is known: all that this one has is
    applied to it.
    """
    if ledger is None:
        return Standing()
    if ledger.unsound(snapshot) is not None:
        return Standing(ledger.position(0), replay=True)
    return Standing(ledger.position(snapshot.event), trained=snapshot.event)


def _newest(
    ledger: Ledger | None, collection: Collection, copies: Sequence[Generation]
) -> Generation | None:
    """The generation of a build to go on from: the one that stands furthest in this log."""
    if ledger is None:
        current = [
            generation for generation in copies if generation.number == collection.current_number()
        ]
        return (current or copies or [None])[-1]
    standings = ((standing_of(ledger, generation).position, generation) for generation in copies)
    sound = [
        (position.event, each.number, each)
        for position, each in standings
        if ledger.unsound(position) is None
    ]
    return max(sound, key=lambda each: each[:2])[2] if sound else None


def _complete(
    project: Project, collection: Collection, opened: Generation, ledger: Ledger | None
) -> Generation:
    """The build, or what it was continued by, with what it lacks, current."""
    standing = opened.standing or Standing() if ledger is None else standing_of(ledger, opened)
    if ledger is not None:
        pending = ledger.seen_from(standing).pending()
        if pending.events:
            writer = make_generation_builder(project, collection.retriever)
            writer.opened = opened
            return apply_pending(writer, standing, pending).generation
    current = collection.current_number()
    if current is not None and opened.number < current:
        return collection.publish_again(opened, standing, {})
    opened.verify_all()
    return collection.switch(opened)
