"""Find the running service of a project, to ask it by a `freshet.client.Client` instead of working in this process.

`.freshet/service.json` says where it is, true as long as its lock is held. The lock is the system's, so that a service
which was killed leaves no false trace: its file stays, its lock does not. Only the standard library is imported here,
as a cold `freshet search` passes through.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from freshet.client import Client
from model_code.errors import FreshetError
from model_code.files import write_json

if TYPE_CHECKING:
    from orchestration.project import Project

FILE, LOCK = "service.json", "service.lock"
PATIENCE = 1.0  # seconds; a client that looks holds the lock for microseconds


@contextmanager
def registered(state: Path) -> Iterator[Registration]:
    """Be the one service of the project whose state folder is `state`; FreshetError if there is one already."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / LOCK).open("a") as stream:
        if not _lock(stream, fcntl.LOCK_EX, PATIENCE):
            service = running(state)
            where = f" at {service['url']} (process {service['pid']})" if service else ""
            raise FreshetError(f"this project is served already{where}; end that service first")
        registration = Registration(state / FILE)
        registration.withdraw()  # what a killed service left would be true again, now that the lock is held
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
    """`pid`, `url` and `started` of the project's service; None if none runs, or it is not ready for clients yet."""
    try:
        service = json.loads((state / FILE).read_text(encoding="utf-8"))
        with (state / LOCK).open("a") as stream:
            return None if _lock(stream, fcntl.LOCK_SH, 0.0) else service
    except FileNotFoundError:
        return None


def _lock(stream: IO[str], kind: int, patience: float) -> bool:
    """Whether the lock could be had within `patience` seconds; it is held until the stream is closed."""
    latest = time.monotonic() + patience
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(stream, kind | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= latest:
            return False
        time.sleep(0.02)


def client_of(project: Project) -> Client | None:
    """A client of the project's running service; None if there is none, and the caller does the work itself."""
    if (service := running(project.state)) is None:
        return None
    file = project.token_file
    return Client(service["url"], file.read_text().strip() if file.is_file() else None)
