"""Find the running service of a project, so that commands can use it instead of loading an encoder.

`.freshet/service.json` says where the service is. It is valid as long as the service holds the lock
`.freshet/service.lock`. The operating system releases the lock when its process ends. The file of a
killed service therefore remains, but is not taken for a running one.

Nothing slow is imported here, because every cold `freshet search` passes through this module.
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

REGISTRATION_FILE = "service.json"
LOCK_FILE = "service.lock"
# Seconds that a starting service waits for the lock. A client that looks for a service holds the
# lock as well, but only for microseconds.
LOCK_TIMEOUT_SECONDS = 1.0


@contextmanager
def register_service(state: Path) -> Iterator[Registration]:
    """Hold the lock of the project's only service while the context is open.

    Args:
        state: State folder of the project, `.freshet`.

    Yields:
        The registration, with which the service announces its address.

    Raises:
        FreshetError: If the project has a running service already.
    """
    try:
        lock = FileLock(state / LOCK_FILE, fallback_to_soft=False)
        acquired = lock.acquire(timeout=LOCK_TIMEOUT_SECONDS)
    except Timeout:
        raise FreshetError(_already_served_message(state)) from None

    with acquired:
        registration = Registration(state / REGISTRATION_FILE)
        # A killed service may have left its file, which would count as valid while the lock is
        # held.
        registration.withdraw()
        try:
            yield registration
        finally:
            registration.withdraw()


class NoRegistration:
    """Stands for the registration of a service whose project is read-only.

    A registration is a file in the project, by which commands find the running service. Such a
    service cannot write the file, so commands do not find it.
    """

    def announce(self, url: str, started: str) -> None:
        """Do nothing, because no file can be written."""

    def withdraw(self) -> None:
        """Do nothing, because there is no file to remove."""


def _already_served_message(state: Path) -> str:
    service = service_registration(state)
    address = ""
    if service is not None:
        address = f" at {service['url']} (process {service['pid']})"
    return f"this project is served already{address}; end that service first"


class Registration:
    """The file that tells clients the address of the service."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def announce(self, url: str, started: str) -> None:
        """Write the file, so that clients find the service."""
        write_json(self.path, {"pid": os.getpid(), "url": url, "started": started})

    def withdraw(self) -> None:
        """Delete the file, so that no new client comes. Running requests are not affected."""
        self.path.unlink(missing_ok=True)


def service_registration(state: Path) -> dict[str, Any] | None:
    """Return `pid`, `url` and `started` of the project's running service.

    Args:
        state: State folder of the project, `.freshet`.

    Returns:
        The registration; None if no service is running, or it does not accept clients yet.
    """
    try:
        service = json.loads((state / REGISTRATION_FILE).read_text(encoding="utf-8"))
        # A reader needs no permission to write for a shared lock.
        with (state / LOCK_FILE).open("rb") as stream:
            # The lock is shared, so that a client which is looking is not taken for a service.
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        # The lock is taken, so the service that holds it is running.
        return service
    return None


def find_running_service(project: Project) -> Client | None:
    """Return a client of the project's running service; None if no service is running."""
    service = service_registration(project.state)
    if service is None:
        return None

    token = None
    if project.token_file.is_file():
        token = project.token_file.read_text().strip()
    return Client(service["url"], token)
