"""`freshet delete --erase`: the texts of deleted documents leave the generations of every retriever, and the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from model_code.errors import FreshetError
from model_code.live.collection import retrievers
from model_code.live.documents import read_columns
from model_code.live.generation import DOCUMENTS
from orchestration.live.collection import LiveCollection
from orchestration.live.commands import Outcome, delete_documents
from orchestration.live.ledger import ledger_file
from orchestration.live.repair import DAMAGED
from orchestration.live.retrain_plan import planned
from orchestration.project import Project


def erase_documents(live: LiveCollection, document_ids: Sequence[str], source: str = "freshet delete") -> Outcome:
    """Delete documents, and then remove their texts from the generations of every retriever, and from the log.

    FreshetError names what still holds one of them: everything else is done then, and asked again, it goes on.
    """
    outcome = delete_documents(live, document_ids, source)
    refused = {row["document_id"] for row in outcome.rejected}
    outcome.erased = [each for each in dict.fromkeys(document_ids) if each not in refused]
    others = (name for name in retrievers(live.project.live) if name != live.retriever)
    collections = [live, *(LiveCollection(live.project, name) for name in others)]
    left = [line for each in collections for line in _erase(each, outcome.erased)]
    live.ledger.erase(outcome.erased)
    left += [f"{path}, which was set aside: delete it if you miss nothing" for path in _set_aside(live.project)]
    if left:
        raise FreshetError("deleted, and no search finds them; but texts remain: " + "; ".join(left))
    return outcome


def _erase(live: LiveCollection, document_ids: Sequence[str]) -> Iterator[str]:
    """Delete a retriever's generations that hold the texts of deleted documents; tells those that have to stay."""
    live.apply()
    live.compact()
    holders = _holders(live, document_ids)
    free = {each.number for each in live.collection.generations() if not each.needs & holders}
    live.collect_garbage(1, free | planned(live.project, live.retriever))
    for number in sorted(_holders(live, document_ids)):
        reason = "which is read just now: do the same again later"
        if number in live.generation.needs:
            reason = "the build that is searched: take them out of the corpus's source, and build again"
        yield f"generation {number} of {live.retriever}, {reason}"


def _set_aside(project: Project) -> list[Path]:
    """Copies of the ledger, and generations, that an upgrade or a repair kept, which may hold any text."""
    file = ledger_file(project)
    copies = file.parent.glob(f"{file.name}.*") if file else ()
    return sorted([*copies, *project.live.glob(f"*/{DAMAGED}")])


def _holders(live: LiveCollection, document_ids: Sequence[str]) -> set[int]:
    """The numbers of the generations whose own files hold one of the documents."""
    asked = set(document_ids)
    return {
        each.number
        for each in live.collection.generations()
        if (file := each.folder / DOCUMENTS).is_file() and not asked.isdisjoint(read_columns(file, "document_id")[0])
    }
