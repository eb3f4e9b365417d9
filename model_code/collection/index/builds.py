"""Make a finished build searchable, together with all documents that arrived since its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from model_code.collection.generations.build import BuildArtifacts, add_build
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import (
    GenerationStore,
    set_default_retriever,
)
from model_code.collection.generations.live_queries import live_known_queries
from model_code.collection.index.builder_factory import make_generation_builder
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.pending_changes import apply_pending
from model_code.collection.index.project_ledger import (
    WRITER_LOCK,
    has_ledger_position,
    open_ledger_if_exists,
    read_later_evidence,
)
from model_code.collection.ledger.events import LedgerCursor, Position
from model_code.collection.ledger.ledger import Ledger
from model_code.project import Project, file_lock
from model_code.text.passages import TextRules

# Key in the provenance of a generation: the registered version of the build that was made live.
MODEL_VERSION = "model_version"


def open_build(
    project: Project,
    retriever: str,
    artifacts: BuildArtifacts,
    provenance: Mapping[str, Any],
    text: TextRules | None,
    snapshot: Position,
) -> Generation:
    """Make a build searchable, and make its retriever the default one.

    Documents that arrived after the build's training are added to it. If the build was opened
    before, its newest generation is used instead of a new copy. After an error or a crash, the
    earlier generation is still current.

    Args:
        project: The project.
        retriever: Name of the retriever that was built.
        artifacts: Artifacts of the build.
        provenance: Origin of the build for the manifest, such as its model version.
        text: Rules by which the build cut documents into passages. None if they are unknown.
        snapshot: Ledger position of the documents that the build was trained on.

    Returns:
        The generation that is current now.

    Raises:
        FreshetError: If the artifacts do not belong together, a file is damaged, or a new document
            is not found by its own vector.
    """
    generation = _open_build(project, retriever, artifacts, provenance, text, snapshot)
    _prepare_additions(project, retriever, generation)
    return generation


def _open_build(
    project: Project,
    retriever: str,
    artifacts: BuildArtifacts,
    provenance: Mapping[str, Any],
    text: TextRules | None,
    snapshot: Position,
) -> Generation:
    """Make a build current while nobody else changes the index; see `open_build`."""
    store = GenerationStore(project.live, retriever)
    with ExitStack() as resources:
        resources.enter_context(file_lock(project.live / WRITER_LOCK))
        ledger = open_ledger_if_exists(project, retriever)
        if ledger is not None:
            resources.enter_context(ledger)
        # A process that was changing the collection may have been killed. `recover` completes its
        # work, and creates a ledger if there is none. A project without a ledger must stay without
        # one, so `recover` is only called if the project or its generation uses a ledger.
        if store.current_number() is not None:
            uses_ledger = ledger is not None or has_ledger_position(store.current())
            if uses_ledger:
                LiveIndex(project, retriever).recover()

        cursor = _build_cursor(ledger, snapshot)
        choose = partial(_choose_generation, ledger, store)
        opened = add_build(store, artifacts, provenance, text, cursor, choose)
        generation = _apply_and_publish(project, store, opened, ledger)
        set_default_retriever(project.live, retriever)
        return generation


def _prepare_additions(project: Project, retriever: str, generation: Generation) -> None:
    """Compute and cache what IncDSI needs, so that the first addition does not wait for it.

    IncDSI needs the known queries of the build, which are searched once. The build is searchable
    meanwhile, and changes without queries are added to it.

    Args:
        project: The project.
        retriever: Name of the retriever.
        generation: Generation of the build that is current now.
    """
    # Preparing loads the encoder, which takes seconds. It is not needed without known queries.
    if not live_known_queries(generation):
        return
    with ExitStack() as resources:
        # The ledger tells which queries a person asked to forget.
        ledger = open_ledger_if_exists(project, retriever)
        if ledger is not None:
            resources.enter_context(ledger)
        builder = make_generation_builder(project, retriever, lambda: ledger)
        if builder.solves_vectors:
            builder.prepare()


def registered_builds(store: GenerationStore) -> list[Generation]:
    """Return the generations that are copies of a registered version's build.

    The version may have been deleted from the registry since.

    Args:
        store: Generations of a retriever.
    """
    builds: list[Generation] = []
    for generation in store.generations():
        if MODEL_VERSION in generation.manifest["provenance"]:
            builds.append(generation)
    return builds


def _build_cursor(ledger: Ledger | None, snapshot: Position) -> LedgerCursor:
    """Return the cursor of a build: the part of the ledger that the build contains.

    If the snapshot belongs to another ledger, it is unknown which events the build contains. Then
    all events of this ledger are applied.

    Args:
        ledger: Ledger of the project. None if there is none.
        snapshot: Ledger position of the documents that the build was trained on.
    """
    if ledger is None:
        return LedgerCursor()
    if ledger.mismatch(snapshot) is not None:
        return LedgerCursor(ledger.position(0), replay=True)
    return LedgerCursor(ledger.position(snapshot.event), trained=snapshot.event)


def _choose_generation(
    ledger: Ledger | None, store: GenerationStore, copies: Sequence[Generation]
) -> Generation | None:
    """Choose an existing generation of a build, from which changes continue.

    So a build that is opened again needs no second copy of its files.

    Args:
        ledger: Ledger of the project. None if there is none.
        store: Generations of the retriever.
        copies: Generations of the same build, oldest first.

    Returns:
        The generation that contains the most events of this ledger. None if no generation belongs
        to this ledger. Without a ledger, the current generation if it is in `copies`, else the
        newest copy.
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
        # Copies are in the order of their numbers. So `>=` prefers the newer of two generations
        # with the same position.
        if chosen is None or position.event >= chosen.cursor.position.event:
            chosen = generation
    return chosen


def _apply_and_publish(
    project: Project, store: GenerationStore, opened: Generation, ledger: Ledger | None
) -> Generation:
    """Apply pending events to a build, and make the result the current generation.

    Pending events are those that the build does not contain, because they arrived after its
    training. Feedback and forgotten queries are in no build, so they are applied in any case.

    Args:
        project: The project.
        store: Generations of the retriever.
        opened: Generation of the build.
        ledger: Ledger of the project. None if there is none.
    """
    cursor = opened.cursor
    if ledger is not None:
        pending = ledger.view_at(cursor).pending()
        if pending.events:
            builder = make_generation_builder(project, store.retriever, lambda: ledger, opened)
            builder.opened = opened
            return apply_pending(builder, cursor, pending).generation
        if read_later_evidence(ledger):
            builder = make_generation_builder(project, store.retriever, lambda: ledger, opened)
            builder.opened = opened
            generation = builder.update_known_queries(cursor)
            if generation != opened:
                return generation

    current_number = store.current_number()
    is_older = current_number is not None and opened.number < current_number
    if is_older:
        # The number of the current generation only rises, so the older one gets a new number.
        return store.publish_again(opened, cursor, {})
    opened.verify_all()
    return store.set_current(opened)
