"""Find the running service of a project, to ask it by a `freshet.client.Client` instead of working
in this process.

`.freshet/service.json` says where it is, true as long as its lock is held. The lock is the
system's, so that a service which was killed leaves no false trace: its file stays, its lock does
not. Nothing slow is imported here, as a cold `freshet search` passes through.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from freshet.client import Client
from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.project import Project

FILE, LOCK = "service.json", "service.lock"
PATIENCE = 1.0  # seconds; a client that looks holds the lock for microseconds


@contextmanager
def registered(state: Path) -> Iterator[Registration]:
    """Be the one service of the project whose state folder is `state`; FreshetError if there is one
    already.
    """
    try:
        lock = FileLock(state / LOCK, fallback_to_soft=False).acquire(timeout=PATIENCE)
    except Timeout:
        service = running(state)
        where = f" at {service['url']} (process {service['pid']})" if service else ""
        raise FreshetError(
            f"this project is served already{where}; end that service first"
        ) from None
    with lock:
        registration = Registration(state / FILE)
        # what a killed service left would be true again, now that the lock is held
        registration.withdraw()
        try:
            yield registration
        finally:
            registration.withdraw()


class Registration:
    """The file that says where the service is."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def announce(self, url: str, started: str) -> None:
        """Let clients come."""
        write_json(self.path, {"pid": os.getpid(), "url": url, "started": started})

    def withdraw(self) -> None:
        """Let no more clients come; those that are served are not disturbed."""
        self.path.unlink(missing_ok=True)


def running(state: Path) -> dict[str, Any] | None:
    """`pid`, `url` and `started` of the project's service; None if none runs, or it is not ready
    for clients yet.
    """
    try:
        service = json.loads((state / FILE).read_text(encoding="utf-8"))
        with (state / LOCK).open("a") as stream:
            # shared: who looks is not taken for the service
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return service
    return None


def client_of(project: Project) -> Client | None:
    """A client of the project's running service; None if there is none, and the caller does the
    work itself.
    """
    if (service := running(project.state)) is None:
        return None
    file = project.token_file
    return Client(service["url"], file.read_text().strip() if file.is_file() else None)
