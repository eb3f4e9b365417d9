"""Open a build: make it searchable, with all documents that arrived since it was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
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
    has_ledger_position,
    open_ledger_if_exists,
)
from model_code.collection.ledger.events import LedgerCursor, Position
from model_code.collection.ledger.ledger import Ledger
from model_code.project import Project, file_lock
from model_code.text.passages import TextRules

# Key in a build's provenance: the registered version that the build was opened as.
MODEL_VERSION = "model_version"


def open_build(
    project: Project,
    retriever: str,
    artifacts: BuildArtifacts,
    provenance: Mapping[str, Any],
    text: TextRules | None,
    snapshot: Position,
) -> Generation:
    """Make a build searchable with all documents that arrived, and `retriever` the default one.

    A build that was opened before continues from its newest generation. After an error or a crash
    the old generation is still current.

    Args:
        project: The project.
        retriever: Name of the retriever that was built.
        artifacts: Parts of the build.
        provenance: What the manifest says about the build, such as its model version.
        text: Rules by which the build cut documents into passages; None if unknown.
        snapshot: Ledger position of the documents that the build was trained on.

    Returns:
        The generation that is current now.

    Raises:
        FreshetError: If the parts do not belong together, a file is damaged, or a new document
            cannot be found.
    """
    store = GenerationStore(project.live, retriever)
    with file_lock(project.live / WRITER_LOCK):
        ledger = open_ledger_if_exists(project, retriever)
        if store.current_number() is not None:
            if ledger is not None or has_ledger_position(store.current()):
                LiveIndex(project, retriever).recover()

        cursor = _build_cursor(ledger, snapshot)
        choose = partial(_choose_generation, ledger, store)
        opened = add_build(store, artifacts, provenance, text, cursor, choose)
        generation = _apply_and_publish(project, store, opened, ledger)
        set_default_retriever(project.live, retriever)
        return generation


def registered_builds(store: GenerationStore) -> list[Generation]:
    """Return the generations that were opened as a registered version.

    The registry may have deleted the version since.

    Args:
        store: Generations of a retriever.
    """
    builds: list[Generation] = []
    for generation in store.generations():
        if MODEL_VERSION in generation.manifest["provenance"]:
            builds.append(generation)
    return builds


def _build_cursor(ledger: Ledger | None, snapshot: Position) -> LedgerCursor:
    """Return the ledger cursor of a build.

    If the snapshot belongs to another ledger, nothing is known about the build's documents, and
    all events of this ledger are applied.
    """
    if ledger is None:
        return LedgerCursor()
    if ledger.mismatch(snapshot) is not None:
        return LedgerCursor(ledger.position(0), replay=True)
    return LedgerCursor(ledger.position(snapshot.event), trained=snapshot.event)


def _choose_generation(
    ledger: Ledger | None, store: GenerationStore, copies: Sequence[Generation]
) -> Generation | None:
    """Choose the generation of a build to continue from, out of those that exist.

    Args:
        ledger: The project's ledger; None if there is none.
        store: Generations of the retriever.
        copies: Generations of the same build, oldest first.

    Returns:
        The generation that has applied the most events of this ledger, or None. Without a ledger,
        the current generation if it is one of them, else the newest.
    """
    if ledger is None:
        current_number = store.current_number()
        for generation in copies:
            if generation.number == current_number:
                return generation
        return copies[-1] if copies else None

    chosen: Generation | None = None
    for generation in copies:
        position = generation.cursor.position
        if ledger.mismatch(position) is not None:
            continue
        # Copies ascend by number, so the newest of those with the same position is chosen.
        if chosen is None or position.event >= chosen.cursor.position.event:
            chosen = generation
    return chosen


def _apply_and_publish(
    project: Project, store: GenerationStore, opened: Generation, ledger: Ledger | None
) -> Generation:
    """Apply pending events to an opened build, and make the result the current generation."""
    cursor = opened.cursor
    if ledger is not None:
        pending = ledger.view_at(cursor).pending()
        if pending.events:
            builder = make_generation_builder(project, store.retriever, opened)
            builder.opened = opened
            return apply_pending(builder, cursor, pending).generation

    current_number = store.current_number()
    if current_number is not None and opened.number < current_number:
        return store.publish_again(opened, cursor, {})
    opened.verify_all()
    return store.set_current(opened)
