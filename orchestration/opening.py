"""Another build becomes what users search, with every document that arrived since it was made already in it.

The build is made ready beside the current generation, as the collection's candidate, which nobody searches. The switch
of the pointer is the one commit point: before it the old generation is searched, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orchestration.file_lock import file_lock
from orchestration.ledgers import WRITER_LOCK, existing_ledger
from orchestration.project import Project
from orchestration.reconciling import reconcile, require_own

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger
    from model_code.ledger.records import Event
    from model_code.live.applied import Applied, Guard
    from model_code.live.collection import Collection
    from model_code.live.generation import Generation
    from model_code.live.writer import LiveWriter


def open_complete(project: Project, retriever: str, make: Callable[[], Generation]) -> Generation:
    """Search the candidate that `make` opens, and `retriever` by default, once the candidate has all that arrived.

    While it is made ready, the ledger calls what it lacks pending. An error leaves the old generation current, and the
    ledger as it was; so does a crash, after the next writer has come.
    """
    from model_code.live.collection import Collection, set_default_retriever

    with file_lock(project.live / WRITER_LOCK):
        searched = Collection(project.live, retriever)
        before, made = searched.current_number(), make()
        generation = searched.switch(before) if made.number == before else _complete(project, searched)
        set_default_retriever(project.live, retriever)
        return generation


def _complete(project: Project, searched: Collection) -> Generation:
    """The candidate with what it lacks, current."""
    from model_code.live.collection import CANDIDATE, Collection

    candidate = Collection(searched.live, searched.retriever, CANDIDATE)
    ledger = existing_ledger(project, searched.retriever)
    if ledger is None:
        return searched.switch(candidate.current().number)
    require_own(ledger, candidate.current())
    try:
        reconcile(ledger, candidate.current())
        applied = _add_pending(project, candidate, ledger)
        generation = searched.switch(candidate.current().number)
    except BaseException:
        if searched.current_number() is not None:
            reconcile(ledger, searched.current())
        raise
    if applied is not None:
        ledger.settle(generation.watermark, generation.number, applied.statuses)
    return generation


def _add_pending(project: Project, candidate: Collection, ledger: Ledger) -> Applied | None:
    from model_code.live.guard import everything_is_found
    from orchestration.additions import writer_of

    events = ledger.pending()
    if not events:
        return None
    writer = writer_of(project, candidate.retriever, candidate.pointer)
    return apply_events(writer, events, everything_is_found)


def apply_events(writer: LiveWriter, events: Sequence[Event], guard: Guard) -> Applied:
    """Make events, oldest first, the next generation, which says in its provenance where they came from."""
    watermark = max(events[-1].id, writer.collection.current().watermark)
    provenance = {"sources": sorted({event.source for event in events}), "events": [events[0].id, watermark]}
    return writer.apply([event.change for event in events], watermark, provenance, guard)
