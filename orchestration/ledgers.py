"""Where a project's ledger is, and opening it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orchestration.project import Project

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger

URL = "FRESHET_LEDGER"
WRITER_LOCK = "writer.lock"  # in the folder of the live collections; held by whoever changes one


def ledger_url(project: Project) -> str:
    """The environment's `FRESHET_LEDGER` (any SQLAlchemy URL), else SQLite beside the live collections.

    A relative file of SQLite is meant from the project's root, wherever a command is called and in a workspace, too.
    """
    url = os.environ.get(URL) or f"sqlite:///{project.live / 'ledger.sqlite'}"
    kind, separator, file = url.partition(":///")
    if kind.startswith("sqlite") and separator and file and not file.startswith((":", "file:")):
        return f"{kind}:///{(project.home or project.root) / file}"  # which leaves an absolute one as it is
    return url


def open_ledger(project: Project, retriever: str) -> Ledger:
    """The project's ledger, made if there is none."""
    from model_code.ledger.ledger import Ledger

    return Ledger.open(ledger_url(project), retriever)


def existing_ledger(project: Project, retriever: str) -> Ledger | None:
    """The project's ledger, or None if no document ever arrived: looking makes none."""
    from model_code.ledger.database import is_there

    return open_ledger(project, retriever) if is_there(ledger_url(project)) else None


def first_free_number(project: Project, retriever: str) -> int:
    """The least number of a generation that the ledger knows no other one by, though its folder may be gone."""
    ledger = existing_ledger(project, retriever)
    if ledger is None:
        return 0
    try:
        newest = ledger.newest_generation()
    finally:
        ledger.close()
    return 0 if newest is None else newest + 1
