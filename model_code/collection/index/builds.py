"""Builds that become what is searched: opened with every document that arrived since they were
made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_code.collection.generations.build import BuildArtifacts, add_build
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import (
    GenerationStore,
    set_default_retriever,
)
from model_code.collection.index.live_index import LiveIndex, apply_pending, make_generation_builder
from model_code.collection.index.project_ledger import (
    WRITER_LOCK,
    in_a_log,
    open_ledger_if_exists,
)
from model_code.collection.ledger.events import LedgerCursor, Position
from model_code.collection.ledger.ledger import Ledger
from model_code.project import Project, file_lock
from model_code.text.passages import TextRules

# in the provenance of a build: which version of the registry it was opened as
MODEL_VERSION = "model_version"


def open_build(
    project: Project,
    retriever: str,
    parts: BuildArtifacts,
    provenance: Mapping[str, Any],
    text: TextRules | None,
    snapshot: Position,
) -> Generation:
    """Search a build, and `retriever` by default, once it has all that arrived.

    snapshot: the position of the documents that it was trained on; see `add_build` for the others.
    One that was opened before goes on from its newest generation. An error or a crash leaves the
    old generation current.
    """
    collection = GenerationStore(project.live, retriever)
    with file_lock(project.live / WRITER_LOCK):
        ledger = open_ledger_if_exists(project, retriever)
        if collection.current_number() is not None and (
            ledger is not None or in_a_log(collection.current())
        ):
            LiveIndex(project, retriever).begin()
        cursor = _standing(ledger, snapshot)
        opened = add_build(
            collection,
            parts,
            provenance,
            text,
            cursor,
            lambda copies: _newest(ledger, collection, copies),
        )
        generation = _complete(project, collection, opened, ledger)
        set_default_retriever(project.live, retriever)
        return generation


def registered_builds(collection: GenerationStore) -> list[Generation]:
    """The generations that a registered version was opened as, whether the registry still has it or
    not.
    """
    return [
        each for each in collection.generations() if MODEL_VERSION in each.manifest["provenance"]
    ]


def _standing(ledger: Ledger | None, snapshot: Position) -> LedgerCursor:
    """Where a build stands. Of a snapshot of another log nothing is known: all that this one has is
    applied to it.
    """
    if ledger is None:
        return LedgerCursor()
    if ledger.mismatch(snapshot) is not None:
        return LedgerCursor(ledger.position(0), replay=True)
    return LedgerCursor(ledger.position(snapshot.event), trained=snapshot.event)


def _newest(
    ledger: Ledger | None, collection: GenerationStore, copies: Sequence[Generation]
) -> Generation | None:
    """The generation of a build to go on from: the one that stands furthest in this log."""
    if ledger is None:
        current = [
            generation for generation in copies if generation.number == collection.current_number()
        ]
        return (current or copies or [None])[-1]
    standings = ((generation.cursor.position, generation) for generation in copies)
    sound = [
        (position.event, each.number, each)
        for position, each in standings
        if ledger.mismatch(position) is None
    ]
    return max(sound, key=lambda each: each[:2])[2] if sound else None


def _complete(
    project: Project, collection: GenerationStore, opened: Generation, ledger: Ledger | None
) -> Generation:
    """The build, or what it was continued by, with what it lacks, current."""
    cursor = opened.cursor
    if ledger is not None:
        pending = ledger.view_at(cursor).pending()
        if pending.events:
            writer = make_generation_builder(project, collection.retriever)
            writer.opened = opened
            return apply_pending(writer, cursor, pending).generation
    current = collection.current_number()
    if current is not None and opened.number < current:
        return collection.publish_again(opened, cursor, {})
    opened.verify_all()
    return collection.set_current(opened)
