"""What was rolled back in one live retriever, and other live ones still have: whoever goes back must know."""

from __future__ import annotations

from collections.abc import Iterator

from model_code.documents import Document
from model_code.ledger.records import ROLLED_BACK
from orchestration.ledgers import existing_ledger
from orchestration.live.collection import forecast
from orchestration.project import Project

NAMED = 5  # documents


def still_held(project: Project, retriever: str) -> dict[str, list[str]]:
    """By each other live retriever that has any: the ids of documents that it finds as they were rolled back in
    `retriever` behind its current generation, ascending.
    """
    from model_code.live.collection import Collection, retrievers

    ledger = existing_ledger(project, retriever)
    if ledger is None:
        return {}
    try:
        current = Collection(project.live, retriever).current()
        events = ledger.between(current.watermark + 1, ledger.watermark())
    finally:
        ledger.close()
    undone = (event for event in events if event.state == ROLLED_BACK)
    gone = [event.document for event in undone if event.document is not None]
    others = (name for name in retrievers(project.live) if name != retriever)
    found = {name: _held(project, name, gone) for name in others}
    return {name: documents for name, documents in found.items() if documents}


def _held(project: Project, retriever: str, gone: list[Document]) -> list[str]:
    """The documents that a retriever finds as they are in `gone`."""
    from model_code.live.collection import Collection

    return forecast(Collection(project.live, retriever).current(), gone)["unchanged"]


def still_held_lines(project: Project, retriever: str) -> Iterator[str]:
    """What to tell after a rollback of `retriever`: who still has what was rolled back, and what becomes of it."""
    from model_code.live.collection import default_retriever

    searched = default_retriever(project.live) == retriever
    for name, documents in still_held(project, retriever).items():
        shown = ", ".join(documents[:NAMED]) + ", ..." * (len(documents) > NAMED)
        what = "until it takes over, which takes them away there, too" if searched else "and keeps them"
        yield f"{name} still finds {len(documents):,} of the documents that were rolled back ({shown}), {what}"
