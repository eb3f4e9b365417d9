"""Another build becomes what users search, with every document that arrived since it was made already in it.

The build is made ready beside the current generation, as the collection's candidate, which nobody searches. The switch
of the pointer is the one commit point: before it the old generation is searched, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from orchestration.file_lock import file_lock
from orchestration.ledgers import WRITER_LOCK, existing_ledger
from orchestration.project import Project
from orchestration.reconciling import reopen, require_own, searched_instead, settle_interrupted, unknown

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger
    from model_code.ledger.records import Event
    from model_code.live.applied import Applied, Guard
    from model_code.live.collection import Collection
    from model_code.live.generation import Generation
    from model_code.live.writer import LiveWriter


def open_complete(project: Project, retriever: str, make: Callable[[], Generation]) -> Generation:
    """Search the candidate that `make` opens, and `retriever` by default, once the candidate has all that arrived.

    What was rolled back stays so, also if it was for the retriever that is searched until now. An error or a crash
    leaves the old generation current and the ledger as it was.
    """
    from model_code.live.collection import Collection, set_default_retriever

    with file_lock(project.live / WRITER_LOCK):
        searched, ledger = Collection(project.live, retriever), existing_ledger(project, retriever)
        if ledger is not None:
            settle_interrupted(ledger, searched)
        made = make()
        generation = searched.switch(made.number) if ledger is None else _complete(project, searched, made, ledger)
        set_default_retriever(project.live, retriever)
        return generation


def _complete(project: Project, searched: Collection, made: Generation, ledger: Ledger) -> Generation:
    """The build of `made` with what it lacks, current."""
    from model_code.live.collection import CANDIDATE, Collection

    require_own(ledger, made)
    opened = _least_undone(searched, made, ledger)
    if opened.number == searched.current_number() and searched_instead(opened) is None:
        return searched.switch(opened.number)
    candidate = Collection(searched.live, searched.retriever, CANDIDATE)
    if opened.number != made.number:
        candidate.switch(opened.number)
    applied = _add_lacking(project, candidate, ledger)
    generation = searched.switch(candidate.current().number)
    reopen(ledger, opened, unknown(ledger, opened))
    if applied is not None:
        ledger.settle(generation.watermark, generation.number, applied.statuses)
    return generation


def _least_undone(searched: Collection, made: Generation, ledger: Ledger) -> Generation:
    """`made`, or if it has documents that were rolled back since, the generation of its build that has the fewest."""
    undone_in = partial(ledger.undone_in, searched=searched_instead(made))
    if not undone_in(made.number):
        return made
    others = [one for one in reversed(searched.generations()) if one.build == made.build and one.whole]
    known = [one for one in others if ledger.knows(one.number)]
    return min((made, *known), key=lambda one: undone_in(one.number))


def _add_lacking(project: Project, candidate: Collection, ledger: Ledger) -> Applied | None:
    from model_code.live.guard import everything_is_found
    from orchestration.live.additions import writer_of

    opened = candidate.current()
    events = ledger.lacking(opened.number, unknown(ledger, opened), searched_instead(opened))
    if not events:
        return None
    writer = writer_of(project, candidate.retriever, candidate.pointer)
    return apply_events(writer, events, everything_is_found)


def apply_events(writer: LiveWriter, events: Sequence[Event], guard: Guard) -> Applied:
    """Make events, oldest first, the next generation, which says in its provenance where they came from."""
    current = writer.collection.current()
    watermark = max(events[-1].id, current.watermark)
    provenance = {"sources": sorted({event.source for event in events}), "events": [events[0].id, watermark]}
    return writer.apply([event.change for event in events], watermark, provenance, guard)
