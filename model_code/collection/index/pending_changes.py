"""Apply pending events of the ledger to a retriever.

An event is pending if it is recorded in the ledger and no generation contains it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from model_code.collection.generations.generation_builder import ApplyResult, GenerationBuilder
from model_code.collection.generations.verification import verify_searchable
from model_code.collection.ledger.events import EventKind, LedgerCursor
from model_code.collection.ledger.states import Event, Pending
from model_code.text.documents import Change, Document, Remove


def apply_pending(
    builder: GenerationBuilder, cursor: LedgerCursor, pending: Pending
) -> ApplyResult:
    """Apply pending events: build a new generation, and make it the current one.

    The provenance, a record of the generation's origin, names the sources and the ids of the
    events.

    Args:
        builder: Builder of the retriever's generations.
        cursor: Cursor of the generation that the events are applied to.
        pending: At least one event.

    Returns:
        The new generation and the documents that changed.

    Raises:
        FreshetError: If a document would not be found by its own vector. Nothing is changed then.
    """
    events = pending.events
    provenance = {
        "sources": sorted({event.source for event in events}),
        "events": [events[0].id, events[-1].id],
    }
    changes, solve_for = collect_changes(builder, events)
    new_cursor = replace(cursor, position=pending.position, replay=False)
    return builder.apply(
        changes, new_cursor, provenance, guard=verify_searchable, solve_for=solve_for
    )


def collect_changes(
    builder: GenerationBuilder, events: Sequence[Event]
) -> tuple[list[Change], dict[str, frozenset[str]]]:
    """Translate events to changes of documents, in their order.

    A solve event asks IncDSI to solve the vector of a document again, because its known queries
    changed. It becomes a put of the unchanged document. Solve events are ignored if they belong to
    another retriever, the builder does not solve vectors, or the document is removed.

    Args:
        builder: Builder of the retriever's generations.
        events: The events.

    Returns:
        The changes, and the hashes of the queries to solve vectors for, by document id; see
        `GenerationBuilder.apply`.
    """
    retriever = builder.collection.retriever
    relevant: list[Event] = []
    for event in events:
        is_solved_here = builder.solves_vectors and event.solves_for(retriever)
        if event.kind != EventKind.SOLVE or is_solved_here:
            relevant.append(event)
    # The last change of each document before the event that the loop below looks at.
    last_changes: dict[str, Change] = {}
    solved_ids = [event.document_id for event in relevant if event.kind == EventKind.SOLVE]
    if solved_ids:
        last_changes.update(builder.searcher.documents(solved_ids))

    changes: list[Change] = []
    solve_for: dict[str, frozenset[str]] = {}
    for event in relevant:
        document_id = event.document_id
        if event.kind == EventKind.SOLVE:
            document = last_changes.get(document_id)
            if isinstance(document, Document):
                changes.append(document)
                solve_for[document_id] = event.solved_queries
        else:
            change = change_of(event)
            last_changes[document_id] = change
            changes.append(change)
            # Earlier solve events have no effect now. The vector of the new content is solved for
            # the queries of its row.
            solve_for.pop(document_id, None)
    return changes, solve_for


def change_of(event: Event) -> Change:
    """Return the change of an event that puts or removes a document.

    The put of a document that was erased has no content any more. It counts as a removal.
    """
    return event.document or Remove(event.document_id)
