"""Find the running service of a project, and ask it instead of working in this process.

`.freshet/service.json` says where it is, true as long as its lock is held. The lock is the system's, so that a service
which was killed leaves no false trace: its file stays, its lock does not. Only the standard library is imported here,
as a cold `freshet search` passes through.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from model_code.errors import FreshetError
from model_code.files import write_json

if TYPE_CHECKING:
    from orchestration.project import Project

SEARCH_SECONDS, CHANGE_SECONDS = 60.0, 3600.0
USAGE = 422  # the status of a request that makes no sense
FILE, LOCK = "service.json", "service.lock"
PATIENCE = 1.0  # seconds; a client that looks holds the lock for microseconds


@contextmanager
def registered(state: Path) -> Iterator[Registration]:
    """Be the one service of the project whose state folder is `state`; FreshetError if there is one already."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / LOCK).open("a") as stream:
        if not _lock(stream, fcntl.LOCK_EX, PATIENCE):
            other = running(state)
            where = f" at {other['url']} (process {other['pid']})" if other else ""
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


class ServiceError(FreshetError):
    """The service refused, failed, or does not answer; the message says which."""


class ServiceClient:
    """The service at `url`; `token` is what it demands where other machines reach it."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    @classmethod
    def of(cls, project: Project) -> ServiceClient | None:
        """The project's running service; None if there is none, and the caller does the work itself."""
        service, file = running(project.state), project.token_file
        return cls(service["url"], file.read_text().strip() if file.is_file() else None) if service else None

    def search(self, text: str, k: int = 10, **options: Any) -> dict[str, Any]:
        """`retriever`, `generation` and `hits`, a list of what `freshet search --json` prints.

        options: `filters`, `hybrid`, `explain`, `retriever`, as in `POST /search`.
        """
        return self._call("POST", "/search", {"text": text, "k": k} | options, SEARCH_SECONDS)

    def add(self, rows: Sequence[Mapping[str, Any]], source: str, wait: bool = True) -> dict[str, Any]:
        """Add or update documents; the answer is that of `POST /documents`, also where every row was refused."""
        body = {"documents": list(rows), "source": source}
        return self._call("POST", f"/documents?wait={str(wait).lower()}", body, CHANGE_SECONDS)

    def delete(self, document_ids: Sequence[str], source: str, wait: bool = True) -> dict[str, Any]:
        """Delete documents; the answer is that of `POST /documents/delete`."""
        body = {"ids": list(document_ids), "source": source}
        return self._call("POST", f"/documents/delete?wait={str(wait).lower()}", body, CHANGE_SECONDS)

    def apply(self) -> dict[str, Any]:
        """Make searchable what the ledger has already; the answer is that of `POST /documents/apply`."""
        return self._call("POST", "/documents/apply", None, CHANGE_SECONDS)

    def status(self) -> dict[str, Any]:
        """Where the service stands, as `GET /status` says."""
        return self._call("GET", "/status", None, SEARCH_SECONDS)

    def _call(self, method: str, path: str, body: Any, seconds: float) -> dict[str, Any]:
        at = urlsplit(self.url)
        connection = HTTPConnection(at.hostname or "", at.port, timeout=seconds)
        sent = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        try:
            connection.request(method, quote(path, "/?=&"), sent, self._headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise ServiceError(
                f"the service at {self.url} does not answer ({reason}); end it or start it again"
            ) from None
        finally:
            connection.close()
        return _understood(answer.status, content, self.url)


def _understood(status: int, content: bytes, url: str) -> dict[str, Any]:
    """The answer, or what it says was wrong."""
    try:
        answer = json.loads(content)
    except ValueError:
        raise ServiceError(f"{url} answers with something that is no JSON (status {status}); is it Freshet?") from None
    if (
        status < 400 or "rejected" in answer
    ):  # a receipt, though every row was refused: the rows sent beside them may do
        return answer
    error = ServiceError(f"{answer.get('error', content[:200])} (answered by the service at {url})")
    error.exit_code = 2 if status == USAGE else 1
    raise error
