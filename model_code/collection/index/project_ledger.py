"""Open the ledger of a project, and check that generations belong to it.

The ledger is the append-only log of changes. A generation, a snapshot of the index, records up to
which event of which ledger it contains the changes.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from model_code.audit import AuditLog
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

# Name of the lock file in the folder of the live collections. A process holds the lock while it
# changes one of them.
WRITER_LOCK = "writer.lock"


def ledger_url(project: Project) -> str:
    """Return the SQLAlchemy URL of a project's ledger.

    It is the value of the environment variable `FRESHET_LEDGER`. Without this variable, the ledger
    is a SQLite file in the folder of the live collections. A relative path of a SQLite file is
    relative to the root of the project, not to the working directory. Workspaces of retrains use
    the root of their project, too.

    Args:
        project: The project.
    """
    default_url = sqlite_url(project.live / "ledger.sqlite")
    url = os.environ.get(LEDGER_URL_VARIABLE) or default_url
    driver, separator, path = url.partition(":///")
    names_sqlite_file = driver.startswith("sqlite") and separator != "" and path != ""
    # Absolute paths, databases in memory and URLs of files are complete.
    is_complete = path.startswith(("/", ":", "file:"))
    if not names_sqlite_file or is_complete:
        return url

    # The driver of the given URL is kept, because it may differ from the default, as in
    # sqlite+pysqlite.
    root_url = sqlite_url(project.home or project.root)
    return f"{driver}{root_url.removeprefix('sqlite')}/{path}"


def ledger_file(project: Project) -> Path | None:
    """Return the file of the ledger, or None if the ledger is on a server."""
    return sqlite_file(ledger_url(project))


def open_ledger(project: Project, retriever: str = "") -> Ledger:
    """Open the ledger of a project. It is created if it does not exist.

    The ledger is the append-only log of changes, feedback and tasks.

    Args:
        project: The project.
        retriever: Name of the retriever whose drift reports are read and written.

    Returns:
        The ledger. A `with` statement closes it.

    Raises:
        FreshetError: If the project is a copy of a published collection. Only the original project
            has a ledger.
    """
    if project.is_follower:
        raise FreshetError(
            f"{project.root} is a copy of a published collection, and only its writer can be "
            "changed; send documents and feedback there"
        )
    return Ledger.open(ledger_url(project), retriever, AuditLog(project.audit))


def open_ledger_if_exists(project: Project, retriever: str = "") -> Ledger | None:
    """Open the ledger of a project, or return None if there is none.

    A project has no ledger before the first document arrives after its build.

    Args:
        project: The project.
        retriever: Name of the retriever whose drift reports are read and written.
    """
    database = open_database_if_exists(ledger_url(project))
    if database is None:
        return None
    return Ledger(database, retriever, AuditLog(project.audit))


def has_ledger(project: Project) -> bool:
    """Return whether a project has a ledger. No connection to its database stays open."""
    ledger = open_ledger_if_exists(project)
    if ledger is None:
        return False
    ledger.close()
    return True


def open_matching_ledger(project: Project, generation: Generation) -> Ledger | None:
    """Open the ledger of a project, and check that a generation was made from it.

    The ledger is the log of changes. A generation, a snapshot of the index, contains the changes up
    to one of its events.

    Args:
        project: The project.
        generation: Generation of one of its retrievers.

    Returns:
        The ledger. None if there is none and the generation needs none.

    Raises:
        FreshetError: If the generation was made from another ledger, or its ledger is missing.
    """
    ledger = open_ledger_if_exists(project, generation.retriever)
    if ledger is None:
        # A project that follows a published collection has no ledger, and needs none.
        if not project.is_follower:
            refuse_missing_ledger(generation)
        return None
    try:
        require_matching_ledger(ledger, generation)
    except FreshetError:
        ledger.close()
        raise
    return ledger


def read_later_evidence(ledger: Ledger | None) -> LaterEvidence:
    """Return the evidence about known queries that arrived after documents were indexed.

    These are thumbs up and down, and queries to forget. Clicks are no evidence. Every change of the
    index reads the evidence, so clicks, of which there can be many, are not even loaded.

    Args:
        ledger: The ledger of the project. None if there is none, and so no evidence.
    """
    if ledger is None:
        return LaterEvidence()
    return LaterEvidence(evidence_of_feedback(ledger.thumbs()), ledger.forgotten_queries())


def read_feedback(project: Project) -> list[Feedback]:
    """Return all opinions about hits, oldest first. This does not create a ledger."""
    ledger = open_ledger_if_exists(project)
    if ledger is None:
        return []
    with ledger:
        return ledger.feedback()


def read_forgotten_queries(project: Project) -> frozenset[str]:
    """Return the hashes of the queries that a person asked to forget; see `query_hash`.

    This does not create a ledger.
    """
    ledger = open_ledger_if_exists(project)
    if ledger is None:
        return frozenset()
    with ledger:
        return ledger.forgotten_queries()


def backlog_of(ledger: Ledger, generation: Generation) -> Backlog | None:
    """Return number and age of the events that a generation does not contain yet.

    Such events are recorded in the ledger, and not searchable yet.

    Args:
        ledger: The ledger.
        generation: The generation.

    Returns:
        The backlog. None if it is empty, or if the generation was made from another ledger.
    """
    cursor = generation.cursor
    if ledger.mismatch(cursor.position) is not None:
        return None
    backlog = ledger.view_at(cursor).backlog()
    if backlog.number == 0:
        return None
    return backlog


def has_ledger_position(generation: Generation) -> bool:
    """Return whether a generation records a ledger position.

    It does if there was a ledger when the generation was made. Then it needs this ledger.
    """
    return generation.cursor.position.log is not None


def require_matching_ledger(ledger: Ledger, generation: Generation) -> LedgerCursor:
    """Check that a generation was made from a ledger, and return the generation's cursor.

    The cursor names the part of the ledger that the generation contains.

    If events of another ledger were applied to the generation, documents would be lost.

    Args:
        ledger: The ledger.
        generation: The generation.

    Raises:
        FreshetError: If the generation was made from another ledger, or the ledger is an older
            copy of the right one.
    """
    cursor = generation.cursor
    mismatch = ledger.mismatch(cursor.position)
    if mismatch is not None:
        raise FreshetError(_mismatch_message(generation, f"this is {mismatch}"))
    return cursor


def refuse_missing_ledger(generation: Generation) -> None:
    """Raise an error if a generation needs a ledger. Call this if the project has none.

    Args:
        generation: The generation.

    Raises:
        FreshetError: If the generation was made from a ledger.
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
    """Return the error message for a generation that was not made from the project's ledger.

    Args:
        generation: The generation.
        reason: What is wrong with the project's ledger, after the word "but".
    """
    command = "freshet repair"
    if ANOTHER in reason:
        command = "freshet repair --adopt"
    return (
        f"generation {generation.number} of {generation.retriever!r} holds the documents up to "
        f"event {generation.watermark} of its ledger, but {reason}: name its ledger in "
        f"{LEDGER_URL_VARIABLE}, restore it from a backup, or go on without it by {command}, which "
        "keeps all documents"
    )
