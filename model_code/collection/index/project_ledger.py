"""The ledger of a project: where it lies, opening it, and whether a generation belongs to it."""

from __future__ import annotations

import os
from collections.abc import Collection as Ids
from pathlib import Path

from model_code.collection.generations.generation import Generation, document_rows
from model_code.collection.ledger.database import open_database_if_exists, sqlite_file
from model_code.collection.ledger.events import ANOTHER, Feedback, LedgerCursor
from model_code.collection.ledger.ledger import DocumentContents, Ledger
from model_code.collection.ledger.states import Backlog
from model_code.collection.segments.documents import document_from_row
from model_code.errors import FreshetError
from model_code.project import Project, sqlite_url

URL = "FRESHET_LEDGER"


WRITER_LOCK = "writer.lock"  # in the folder of the live collections; held by whoever changes one


def ledger_url(project: Project) -> str:
    """The environment's `FRESHET_LEDGER` (any SQLAlchemy URL), else SQLite beside the live
    collections.

    A relative file of SQLite is meant from the project's root, wherever a command is called and in
    a workspace, too.
    """
    url = os.environ.get(URL) or sqlite_url(project.live / "ledger.sqlite")
    kind, separator, file = url.partition(":///")
    if (
        kind.startswith("sqlite")
        and separator
        and file
        and not file.startswith(("/", ":", "file:"))
    ):
        return f"{kind}{sqlite_url(project.home or project.root).removeprefix('sqlite')}/{file}"
    return url


def ledger_file(project: Project) -> Path | None:
    """The ledger's file; None where it is on a server."""
    return sqlite_file(ledger_url(project))


def open_ledger(project: Project, retriever: str = "") -> Ledger:
    """The project's log, made if there is none. `with` closes it.

    retriever: whose drift reports are meant.
    """
    return Ledger.open(ledger_url(project), retriever)


def open_ledger_if_exists(project: Project, retriever: str = "") -> Ledger | None:
    """The project's log, or None if no document ever arrived: looking makes none."""
    database = open_database_if_exists(ledger_url(project))
    return None if database is None else Ledger(database, retriever)


def read_feedback(project: Project) -> list[Feedback]:
    """What people said of hits, oldest first; looking makes no ledger."""
    ledger = open_ledger_if_exists(project)
    return [] if ledger is None else ledger.feedback()


def backlog_of(ledger: Ledger, generation: Generation) -> Backlog | None:
    """What waits for a generation; None where nothing does, or the log is not the one that it
    stands in.
    """
    cursor = generation.cursor
    if ledger.mismatch(cursor.position) is not None:
        return None
    backlog = ledger.view_at(cursor).backlog()
    return backlog if backlog.number else None


def require_sound(ledger: Ledger, generation: Generation) -> LedgerCursor:
    """Where a generation stands; FreshetError if that is not in this log: whoever goes on would
    lose documents.
    """
    cursor = generation.cursor
    if (reason := ledger.mismatch(cursor.position)) is not None:
        raise FreshetError(_lost(generation, f"this is {reason}"))
    return cursor


def require_no_log(generation: Generation) -> None:
    """FreshetError if a generation stands in a log, so that it says what it holds: there is none
    here.
    """
    if in_a_log(generation):
        raise FreshetError(_lost(generation, "there is none here"))


def open_matching_ledger(project: Project, generation: Generation) -> Ledger | None:
    """The log that a generation stands in; None if no document ever arrived. FreshetError if it is
    lost, or another.
    """
    ledger = open_ledger_if_exists(project, generation.retriever)
    if ledger is None:
        require_no_log(generation)
        return None
    try:
        require_sound(ledger, generation)
    except FreshetError:
        ledger.close()
        raise
    return ledger


def in_a_log(generation: Generation) -> bool:
    """Whether a generation stands in a log, so that it says what it holds."""
    return generation.cursor.position.log is not None


def _lost(generation: Generation, reason: str) -> str:
    """What to tell who would go on with a log that is not a generation's own, and why it is not."""
    consent = " --adopt" if ANOTHER in reason else ""
    return (
        f"generation {generation.number} of {generation.retriever!r} holds the documents up to event "
        f"{generation.watermark} of its log, but {reason}: name its log in {URL}, bring it back from a backup, or "
        f"go on without it by freshet repair{consent}, which keeps all documents"
    )


def contents(generation: Generation, ids: Ids[str]) -> DocumentContents:
    """Read those of some documents that a generation holds, by id."""
    rows = document_rows(generation, ids)
    return {document_id: document_from_row(row) for document_id, row in rows.items()}
