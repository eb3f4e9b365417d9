"""Protect the HTTP service and the pages of Dagster and MLflow against other sites and machines.

A page of another site that is open in the same browser must not change anything here. Browsers name
the origin of a request in headers that no page can forge: `Host`, `Origin` and `Sec-Fetch-Site`.
Programs such as curl do not send the last two and are allowed, because they already run as a user
of this machine. Where other machines can connect, every request needs a token, sent as
`Authorization: Bearer TOKEN` or as the password of HTTP basic authentication.

Starlette's TrustedHostMiddleware and FastAPI's security dependencies cover a part of this only. The
middleware does not accept IPv6 addresses such as `[::1]:8765` and does not reject WebSocket
handshakes. Dependencies do not apply to Dagster and MLflow, which are not FastAPI routes of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import resource
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from model_code.audit import ANONYMOUS_ACTOR, TOKEN_ACTOR, acting_as
from model_code.errors import FreshetError
from model_code.project import file_lock
from model_code.settings import require

# Addresses of this machine that no other machine can reach.
LOOPBACK_ADDRESSES = ("127.0.0.1", "localhost", "::1")
# The same addresses as they are written in a `Host` header.
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
# Environment variable with which `freshet ui` tells its pages to require the token in a file.
TOKEN_FILE_VARIABLE = "FRESHET_TOKEN_FILE"
BASIC_CHALLENGE = 'Basic realm="Freshet: any name, and the token as password"'
# Values of Sec-Fetch-Site for requests of the page itself and for addresses typed by a person.
SAME_SITE_VALUES = ("same-origin", "none")

# Seconds that a client may take to send the head or the body of a request, or to read the answer.
PHASE_TIMEOUT_SECONDS = {"head": 10.0, "body": 60.0, "answer": 30.0}
# Seconds between two checks whether the client of a connection takes too long.
PHASE_CHECK_SECONDS = 1.0
# Largest number of open connections. It is lower if the process may open few files; see
# `max_connections`.
MAX_CONNECTIONS = 512
# Largest size of the request line and headers of a request, in bytes. The query of a GET request
# has up to 10,000 characters, each up to nine bytes in the address.
MAX_HEAD_BYTES = 131_072


def local_address(host: str, port: int) -> str:
    """Return the address at which this machine reaches a server.

    Args:
        host: Address that the server listens on.
        port: Port that it listens on.

    >>> local_address("0.0.0.0", 3000), local_address("::1", 3000)
    ('http://127.0.0.1:3000', 'http://[::1]:3000')
    """
    # A client cannot connect to the addresses that mean "all interfaces".
    if host in ("0.0.0.0", "::"):
        host = LOOPBACK_ADDRESSES[0]
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}"


class BoundedConnection(H11Protocol):
    """An HTTP connection of uvicorn that a slow or idle client cannot hold forever.

    A connection is closed if the client exceeds `PHASE_TIMEOUT_SECONDS`. If there are too many
    connections, the one that has waited longest for the head of a request is closed.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start watching a new connection.

        If there are too many, the one that has waited longest for a request's head is closed.
        """
        super().connection_made(transport)
        self.phase: tuple[str, int] = ("head", 0)
        self.phase_start = self.loop.time()
        self._timer = self.loop.call_later(PHASE_CHECK_SECONDS, self._check_phase)

        # An aborted connection stays in the set for two more rounds of the event loop. It is not
        # counted.
        open_connections = [
            connection for connection in self.connections if not connection.transport.is_closing()
        ]
        if len(open_connections) > max_connections():
            # The set may contain WebSockets, which have no phase. The new connection waits for a
            # head, so the list is never empty.
            waiting = []
            for connection in open_connections:
                is_http = isinstance(connection, BoundedConnection)
                if is_http and connection.phase[0] == "head":
                    waiting.append(connection)
            oldest = min(waiting, key=lambda connection: connection.phase_start)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching a closed connection."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _check_phase(self) -> None:
        """Close the connection if the client takes too long for the present phase of a request.

        The check repeats itself every `PHASE_CHECK_SECONDS` as long as the connection is open.
        """
        if self not in self.connections:
            # The connection was upgraded to a WebSocket, which has no requests with phases.
            return

        phase = self._current_phase()
        if phase != self.phase:
            self.phase = phase
            self.phase_start = self.loop.time()

        # While the application computes, the client does not delay anything.
        phase_name = phase[0]
        timeout = PHASE_TIMEOUT_SECONDS.get(phase_name, float("inf"))
        if self.loop.time() - self.phase_start > timeout:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(PHASE_CHECK_SECONDS, self._check_phase)

    def _current_phase(self) -> tuple[str, int]:
        """Return the phase of the current request, and the identity of that request.

        The phases are "head", "body", "work" (the application computes) and "answer".
        """
        request = id(self.cycle)
        if self.transport.get_write_buffer_size():
            return "answer", request
        if self.cycle is None or self.cycle.response_complete:
            return "head", request
        if self.cycle.more_body:
            return "body", request
        return "work", request


def max_connections() -> int:
    """Return how many connections may be open: at most a third of the process's open files."""
    max_open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MAX_CONNECTIONS, max_open_files // 3)


def connection_limits() -> dict[str, Any]:
    """Return the options of uvicorn that enforce the limits on connections.

    The backlog is small so that file descriptors remain for the rest of the process.
    """
    return {
        "http": BoundedConnection,
        "loop": "asyncio",
        "backlog": max_connections() // 4,
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
    }


def json_line(
    content: Mapping[str, Any], status: int, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response that ends with a line break, for readers at a terminal."""
    body = json.dumps(content, ensure_ascii=False) + "\n"
    return Response(body, status, headers, "application/json")


def _is_start_page(path: str) -> bool:
    return path == "/"


class Guard:
    """ASGI middleware that checks every request and every WebSocket handshake.

    A request of another site is answered with one line and status 403. A request without the
    required token is answered with status 401.

    Args:
        app: The protected application.
        hosts: Names in the `Host` header, without port, that are allowed. This prevents DNS
            rebinding. None allows every name, for addresses that other machines reach.
        is_page: Function that returns whether a link of another site may open a path. A GET request
            for such a path must change nothing. By default, only the path "/" may be opened.
        token: Token that every request must have; None if no token is required.
        origins: Other sites whose pages may send requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str] | None = LOOPBACK_HOSTS,
        is_page: Callable[[str], bool] = _is_start_page,
        token: str | None = None,
        origins: Collection[str] = (),
    ) -> None:
        self.app = app
        self.hosts = hosts
        self.is_page = is_page
        self.token = token
        self.origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, or refuse it.

        A request from another site is refused with status 403, and a request without the token with
        status 401. A WebSocket is closed instead. The audit log gets the actor of the request.
        """
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return

        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        status = 403
        reason = self._origin_problem(scope, headers)
        if reason is None and not self._has_token(headers.get("authorization", "")):
            status = 401
            reason = (
                "the token is missing or wrong; send Authorization: Bearer TOKEN, "
                "with the token in the file .freshet/token"
            )

        if reason is None:
            actor = ANONYMOUS_ACTOR if self.token is None else TOKEN_ACTOR
            with acting_as(actor):
                await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            challenge = {"www-authenticate": BASIC_CHALLENGE} if status == 401 else None
            response = json_line({"error": reason}, status, challenge)
            await response(scope, receive, send)

    def _has_token(self, authorization: str) -> bool:
        """Return whether an `Authorization` header has the token.

        The comparison takes the same time for all wrong tokens, so that timing reveals nothing.
        """
        if self.token is None:
            return True
        scheme, _, credentials = authorization.partition(" ")
        if scheme.lower() == "basic":
            # A browser sends the token this way, after it has asked its user for a password.
            credentials = _basic_password(credentials)
        matches = secrets.compare_digest(credentials.encode(), self.token.encode())
        return matches and scheme.lower() in ("bearer", "basic")

    def _origin_problem(self, scope: Scope, headers: Mapping[str, str]) -> str | None:
        """Return the reason why the origin of a request is not allowed; None if it is allowed.

        A page of another site that is open in the same browser must not change anything here. A
        browser tells the origin by headers that the page cannot forge.

        Args:
            scope: The request, as ASGI describes it.
            headers: Headers of the request, with names in lower case.
        """
        host = headers.get("host", "")
        host_name = re.sub(r":\d+$", "", host)
        if self.hosts is not None and host_name not in self.hosts:
            return (
                "the address in the request is not one of this machine; "
                "open the page as http://127.0.0.1:PORT"
            )

        is_get = scope["type"] == "http" and scope["method"] == "GET"
        is_graphql_query = scope["path"].endswith("/graphql") and bool(scope["query_string"])
        if is_get and is_graphql_query:
            return "GraphQL queries need POST, because an image of any page could send a GET"

        origin = headers.get("origin")
        if origin is not None and origin in self.origins:
            return None

        # A program such as curl sends no origin.
        is_same_origin = origin is None or origin.partition("://")[2] == host
        if is_same_origin and self._is_allowed_fetch(scope, headers, is_get):
            return None
        return "the request comes from a page of another site, so nothing was done"

    def _is_allowed_fetch(self, scope: Scope, headers: Mapping[str, str], is_get: bool) -> bool:
        """Return whether the `Sec-Fetch` headers belong to this page or to a link to a page."""
        site = headers.get("sec-fetch-site")
        if site is None or site in SAME_SITE_VALUES:
            return True
        is_navigation = (
            headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        return is_get and is_navigation and self.is_page(scope["path"])


def _basic_password(credentials: str) -> str:
    """Return the password of base64-encoded `NAME:PASSWORD`; empty if it cannot be decoded.

    An empty password never equals the token.
    """
    try:
        decoded = base64.b64decode(credentials, validate=True).decode("latin-1")
    except ValueError:
        return ""
    return decoded.partition(":")[2]


def read_or_create_token(file: Path) -> str:
    """Return the token in `file`. The first call creates a token that only this user can read.

    Raises:
        FreshetError: If the file is empty, or other users can read it.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        # `freshet serve` and `freshet ui` may start at the same moment.
        with file_lock(file.with_name(f"{file.name}.lock")):
            if not file.exists():
                _create_token(file)

    token = file.read_text(encoding="ascii").strip()
    others_have_access = bool(file.stat().st_mode & 0o077)
    if others_have_access or not token:
        raise FreshetError(
            f"{file} is empty, or other users can read it; delete it, and a new token is created"
        )
    return token


def _create_token(file: Path) -> None:
    """Write a new token to a temporary file and move it in place, so that no half file is read."""
    temporary = file.with_name(f".token.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(secrets.token_urlsafe(32) + "\n")
    temporary.rename(file)


def required_token(host: str, file: Path, always: bool = False) -> str | None:
    """Return the token that requests to a server need.

    Args:
        host: Address that the server listens on.
        file: The token's file; created if a token is needed.
        always: Whether the token is also required at an address that only this machine reaches.

    Returns:
        The token; None if requests need none.
    """
    if always or host not in LOOPBACK_ADDRESSES:
        return read_or_create_token(file)
    return None


def check_origins(origins: Sequence[str]) -> None:
    """Raise `SettingsError` for a value that no browser sends as `Origin`, such as `*`."""
    for origin in origins:
        is_origin = re.fullmatch(r"https?://[a-z0-9.:\[\]-]+", origin) is not None
        require(
            is_origin,
            f"--cors-origin is {origin!r}; name one site, such as https://app.example:8443",
        )


def serve_dagster(host: str, port: int, workspace: Path) -> None:
    """Serve Dagster's web page behind the guard until the process is stopped.

    The guard refuses requests of other sites, and requests without the token. The command
    `dagster-webserver` does the same without it, and accepts no middleware.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        workspace: The file `workspace.yaml`, which names the code location.
    """
    from dagster import DagsterInstance
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget
    from dagster_webserver import cli
    from dagster_webserver.app import create_app_from_workspace_process_context
    from dagster_webserver.version import __version__

    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(
            cli.DEFAULT_DB_STATEMENT_TIMEOUT,
            cli.DEFAULT_POOL_RECYCLE,
            cli.DEFAULT_POOL_MAX_OVERFLOW,
        )
        target = WorkspaceFileTarget([str(workspace)])
        with WorkspaceProcessContext(instance, target, version=__version__) as context:
            app = create_app_from_workspace_process_context(context)
            guarded_app = _guard_page(app, is_page=_is_dagster_page)
            uvicorn.run(
                guarded_app, host=host, port=port, log_level="warning", **connection_limits()
            )


def _is_dagster_page(path: str) -> bool:
    """Return whether a link of another site may open a path of Dagster's page."""
    return not path.endswith("/graphql")


def mlflow_app() -> ASGIApp:
    """Return MLflow's server behind the guard.

    `mlflow server --app-name freshet` finds this function as an entry point.
    """
    from mlflow.server.fastapi_app import app

    return _guard_page(app)


def _guard_page(app: ASGIApp, is_page: Callable[[str], bool] = _is_start_page) -> Guard:
    """Wrap the web server of Dagster or MLflow in a `Guard`.

    `freshet ui` runs both servers, and tells them by `TOKEN_FILE_VARIABLE` if a token is required.
    Without a token, the `Host` header must name this machine as `localhost` or by its loopback
    address. With a token, other machines may connect, and they may know this machine by any name.
    The header may then have any name, because the token protects the server.

    Args:
        app: The web server.
        is_page: Function that returns whether a link of another site may open a path.
    """
    token_file = os.environ.get(TOKEN_FILE_VARIABLE)
    if token_file is None:
        return Guard(app, is_page=is_page)
    token = read_or_create_token(Path(token_file))
    return Guard(app, hosts=None, is_page=is_page, token=token)


def main() -> None:
    """Serve Dagster's page: `python -m orchestration.guard --host H --port P --workspace FILE`."""
    parser = argparse.ArgumentParser(description="Serve Dagster's web page behind the guard.")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workspace", type=Path, required=True)
    arguments = parser.parse_args()
    serve_dagster(arguments.host, arguments.port, arguments.workspace)


if __name__ == "__main__":
    main()
