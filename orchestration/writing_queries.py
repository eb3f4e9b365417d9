"""A model writes queries for documents that arrived without any: a later update of what is searchable already.

Piece by piece, each in the ledger and searched before the next one is begun. A run that is killed goes on where it was:
within a piece the generator keeps its drafts. By the service, if it runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from model_code.additions.settings import MODEL
from model_code.errors import FreshetError
from model_code.ledger.records import Event, Receipt, Written
from model_code.progress import Progress, silent
from model_code.queries.filtering import normalised
from orchestration import parameters
from orchestration.additions import folder_of
from orchestration.changing import receipt_of
from orchestration.file_lock import file_lock
from orchestration.freshening import Freshener
from orchestration.project import Project
from orchestration.service.client import ServiceClient
from orchestration.unwritten_queries import Author, author_of, unwritten, why_none
from orchestration.upkeep import Upkeep

if TYPE_CHECKING:
    from model_code.queries.pseudo_query import QueryGenerator

PIECE = 256  # documents of one generation
SOURCE = "freshet write-queries"
LOCK, DRAFTS = "written_queries.lock", "written_queries"  # below the project's folder of additions
WAITING = "waiting for another freshet write-queries, or the job write_queries, that runs now"


@dataclass
class WritingOutcome:
    """How many documents got queries, and how many; what is left; the generation; who could not follow, and why."""

    documents: int = 0
    queries: int = 0
    left: int = 0
    generation: int | None = None
    behind: dict[str, str] = field(default_factory=dict)


def unwritten_now(project: Project, again: bool = False) -> int:
    """For how many documents `write_queries` would write; FreshetError if it cannot."""
    generation = Freshener(project).collection.current()
    _require(why_none(project, generation))
    return len(unwritten(project, generation, author_of(project), again))


def write_queries(
    project: Project, limit: int | None = None, again: bool = False, progress: Progress = silent
) -> WritingOutcome:
    """Write for at most `limit` of the documents that lack queries, oldest first, and make them found by these.

    again: see `Ledger.unwritten`. FreshetError if the settings let no model write, or it cannot be loaded.
    """
    freshener = Freshener(project)
    with file_lock(folder_of(project) / LOCK, WAITING):  # two that write at once would write the same
        _require(why_none(project, freshener.collection.current()))
        if ServiceClient.of(project) is None:
            freshener.apply_pending()  # what a run that was killed had written, too
        current = freshener.collection.current()
        author = author_of(project)
        lacking = unwritten(project, current, author, again)
        chosen = [one.event for one in lacking[:limit]]
        found = _write_all(freshener, author, chosen, progress)
        if ServiceClient.of(project) is None:
            found.behind = Upkeep(project, {freshener.retriever: freshener}.get).finish()
    found.left = len(lacking) - len(chosen)
    found.generation = freshener.collection.current().number
    return found


def outcome_text(outcome: WritingOutcome) -> str:
    """The outcome in a line, and a line for each retriever that is behind.

    >>> outcome_text(WritingOutcome(2, 9, 1, 5))
    '9 queries written for 2 documents (generation 5); 1 document is left without'
    >>> outcome_text(WritingOutcome(generation=4))
    'nothing to write (generation 4)'
    """
    done = f"{_count(outcome.queries, 'query', 'queries')} written for {_count(outcome.documents, 'document')}"
    end = "" if outcome.generation is None else f" (generation {outcome.generation})"
    left = f"{_count(outcome.left, 'document')} {'is' if outcome.left == 1 else 'are'} left without"
    first = [f"{done}{end}"] if outcome.documents else []
    line = "; ".join([*first, *([left] if outcome.left else [])]) or f"nothing to write{end}"
    return "\n".join([line, *(f"  behind    {name}  {why}" for name, why in sorted(outcome.behind.items()))])


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _write_all(freshener: Freshener, author: Author, events: Sequence[int], progress: Progress) -> WritingOutcome:
    from model_code.queries.generators import make_generator

    found, project = WritingOutcome(), freshener.project
    if not events:
        return found
    device = parameters.load(project.params_file).encoder.device
    generator = make_generator(MODEL, author.settings, author.trained, device)
    client = ServiceClient.of(project)
    for start in range(0, len(events), PIECE):
        read = freshener.ledger.events(events[start : start + PIECE])
        written = _written(freshener, generator, author, read, partial(_of_all, progress, start, len(events)))
        new = set(_sent(freshener, client, written).events)
        kept = [one.written for one in freshener.ledger.events(sorted(new)) if one.written]
        found.documents += len(kept)
        found.queries += sum(len(one.queries) for one in kept)
        shutil.rmtree(folder_of(project) / DRAFTS, ignore_errors=True)  # the ledger has them now
    return found


def _written(
    freshener: Freshener, generator: QueryGenerator, author: Author, events: Sequence[Event], progress: Progress
) -> list[Written]:
    """What the model writes for the documents of events; a document that it writes nothing of use for gets no query."""
    texts = {one.document_id: one.content.text or one.content.title for one in events if one.content}
    drafts = folder_of(freshener.project) / DRAFTS
    drafts.mkdir(parents=True, exist_ok=True)
    queries: dict[str, dict[str, str]] = {one: {} for one in texts}
    for draft in generator.generate(texts, author.seed, drafts, progress):
        if normalised(draft.text):
            queries[draft.document_id].setdefault(normalised(draft.text), draft.text)
    return [Written(one.id, author.name, tuple(queries[one.document_id].values())) for one in events if one.content]


def _of_all(progress: Progress, before: int, total: int, done: int, _: int, note: str) -> None:
    """The progress of a piece, as that of all documents."""
    progress(before + done, total, note)


def _sent(freshener: Freshener, client: ServiceClient | None, written: Sequence[Written]) -> Receipt:
    """Record and apply them, here or by the service."""
    if client is not None:
        return receipt_of(client.write_queries([asdict(one) for one in written], SOURCE), 0)
    receipt = freshener.receive_queries(written, SOURCE)
    freshener.apply_pending()
    return receipt


def _require(reason: str | None) -> None:
    if reason is not None:
        raise FreshetError(reason)
