"""The ledger of a project: its address, opening it, and whether a generation belongs to it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from model_code.collection.generations.generation import Generation, document_rows
from model_code.collection.ledger.database import open_database_if_exists, sqlite_file
from model_code.collection.ledger.events import ANOTHER, Feedback, LedgerCursor
from model_code.collection.ledger.ledger import DocumentContents, Ledger
from model_code.collection.ledger.states import Backlog
from model_code.collection.segments.documents import document_from_row
from model_code.collection.segments.known_overrides import LaterEvidence, evidence_of_feedback
from model_code.errors import FreshetError
from model_code.project import Project, sqlite_url
from model_code.text.documents import Document

# Environment variable with the SQLAlchemy URL of the ledger.
LEDGER_URL_VARIABLE = "FRESHET_LEDGER"

# Lock file in the folder of the live collections. Whoever changes one of them holds it.
WRITER_LOCK = "writer.lock"


def ledger_url(project: Project) -> str:
    """Return the SQLAlchemy URL of a project's ledger.

    The environment variable `FRESHET_LEDGER` names it. Without that it is an SQLite file beside the
    live collections. A relative path of an SQLite file is relative to the project's root, in any
    working directory and also in a workspace of the project.

    Args:
        project: The project.
    """
    url = os.environ.get(LEDGER_URL_VARIABLE) or sqlite_url(project.live / "ledger.sqlite")
    driver, separator, path = url.partition(":///")
    if not driver.startswith("sqlite") or not separator or not path:
        return url
    if path.startswith(("/", ":", "file:")):
        return url

    root_url = sqlite_url(project.home or project.root)
    return f"{driver}{root_url.removeprefix('sqlite')}/{path}"


def ledger_file(project: Project) -> Path | None:
    """Return the file of the ledger, or None if the ledger is on a server."""
    return sqlite_file(ledger_url(project))


def open_ledger(project: Project, retriever: str = "") -> Ledger:
    """Open the ledger of a project, which is made if it does not exist. `with` closes it.

    Args:
        project: The project.
        retriever: Retriever whose drift reports are read and written.

    Raises:
        FreshetError: If the project is a copy that follows a writer, which has the only ledger.
    """
    if project.is_follower:
        raise FreshetError(
            f"{project.root} is a copy of a published collection, and only its writer can be "
            "changed; send documents and feedback there"
        )
    return Ledger.open(ledger_url(project), retriever)


def open_ledger_if_exists(project: Project, retriever: str = "") -> Ledger | None:
    """Open the ledger of a project, or return None if no document ever arrived.

    Args:
        project: The project.
        retriever: Retriever whose drift reports are read and written.
    """
    database = open_database_if_exists(ledger_url(project))
    if database is None:
        return None
    return Ledger(database, retriever)


def open_matching_ledger(project: Project, generation: Generation) -> Ledger | None:
    """Open the ledger that a generation belongs to, or return None if no document ever arrived.

    Args:
        project: The project.
        generation: A generation of one of its retrievers.

    Raises:
        FreshetError: If the generation belongs to another ledger, or to one that is missing.
    """
    ledger = open_ledger_if_exists(project, generation.retriever)
    if ledger is None:
        # The ledger of a copy is with its writer.
        if not project.is_follower:
            refuse_missing_ledger(generation)
        return None
    try:
        require_matching_ledger(ledger, generation)
    except FreshetError:
        ledger.close()
        raise
    return ledger


def read_later_evidence(project: Project) -> LaterEvidence:
    """Return what became known about queries after their documents were indexed."""
    ledger = open_ledger_if_exists(project)
    if ledger is None:
        return LaterEvidence()
    return LaterEvidence(evidence_of_feedback(ledger.feedback()), ledger.forgotten_queries())


def read_feedback(project: Project) -> list[Feedback]:
    """Return all opinions about hits, oldest first. Does not make a ledger."""
    ledger = open_ledger_if_exists(project)
    if ledger is None:
        return []
    return ledger.feedback()


def backlog_of(ledger: Ledger, generation: Generation) -> Backlog | None:
    """Return the events that a generation has not applied yet.

    Args:
        ledger: The ledger.
        generation: The generation.

    Returns:
        The backlog; None if it is empty, or if the generation belongs to another ledger.
    """
    cursor = generation.cursor
    if ledger.mismatch(cursor.position) is not None:
        return None
    backlog = ledger.view_at(cursor).backlog()
    if backlog.number == 0:
        return None
    return backlog


def has_ledger_position(generation: Generation) -> bool:
    """Return whether a ledger existed when the generation was made, so that it belongs to one."""
    return generation.cursor.position.log is not None


def require_matching_ledger(ledger: Ledger, generation: Generation) -> LedgerCursor:
    """Check that a generation belongs to a ledger, and return its cursor.

    Applying events of any other ledger would lose documents.

    Args:
        ledger: The ledger.
        generation: The generation.

    Raises:
        FreshetError: If the ledger is another one, or an older copy.
    """
    cursor = generation.cursor
    mismatch = ledger.mismatch(cursor.position)
    if mismatch is not None:
        raise FreshetError(_mismatch_message(generation, f"this is {mismatch}"))
    return cursor


def refuse_missing_ledger(generation: Generation) -> None:
    """Check that a generation needs no ledger, because the project has none.

    Args:
        generation: The generation.

    Raises:
        FreshetError: If the generation belongs to a ledger, which is missing.
    """
    if has_ledger_position(generation):
        raise FreshetError(_mismatch_message(generation, "there is none here"))


def read_contents(generation: Generation, ids: Collection[str]) -> DocumentContents:
    """Read documents from the files of a generation. Documents that it does not have are left out.

    Args:
        generation: The generation.
        ids: Ids of the documents.

    Returns:
        The documents, by id.
    """
    contents: dict[str, Document] = {}
    for document_id, row in document_rows(generation, ids).items():
        contents[document_id] = document_from_row(row)
    return contents


def _mismatch_message(generation: Generation, reason: str) -> str:
    command = "freshet repair"
    if ANOTHER in reason:
        command = "freshet repair --adopt"
    return (
        f"generation {generation.number} of {generation.retriever!r} holds the documents up to "
        f"event {generation.watermark} of its ledger, but {reason}: name its ledger in "
        f"{LEDGER_URL_VARIABLE}, restore it from a backup, or go on without it by {command}, which "
        "keeps all documents"
    )
