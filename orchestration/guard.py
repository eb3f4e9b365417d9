"""The guard at every door: a page of another site that happens to be open in the browser drives
nothing here.

A browser says for whom it asks, in headers that no page can forge: `Host`, `Origin`,
`Sec-Fetch-Site`. Programs that send none of the last two, such as curl, are let through: they run
as somebody who is on this machine already. Where other machines reach the door, who asks has to
know a token: `Authorization: Bearer`, or as a page's password.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import resource
import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from model_code.errors import FreshetError
from model_code.settings import require

LOOPBACK = ("127.0.0.1", "localhost", "::1")
THIS_MACHINE = ("127.0.0.1", "localhost", "[::1]")  # the same in an address
TOKEN_FILE = "FRESHET_TOKEN_FILE"  # tells the processes of `freshet ui` that a token is demanded
CHALLENGE = 'Basic realm="Freshet: any name, and the token as password"'
# Sec-Fetch-Site of what the page itself, or the person, asks for
OF_THIS_PAGE = ("same-origin", "none")
# for a request to come, its body, and its answer to be taken
SECONDS = {"head": 10.0, "body": 60.0, "answer": 30.0}
LOOK_SECONDS = 1.0
MOST_CONNECTIONS = 512  # less where the system gives the process few files
HEAD_BYTES = 131_072  # a search in an address has up to 10,000 characters, of nine bytes each


class BoundedConnection(H11Protocol):
    """A connection that is closed when it keeps its server waiting for longer than `SECONDS`; of
    too many, that which has been waited for longest.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to look after it."""
        super().connection_made(transport)
        self.phase: tuple[str, int] = ("head", 0)
        self.since = self.loop.time()
        self._timer = self.loop.call_later(LOOK_SECONDS, self._look)
        # What was aborted stays among them for two rounds of the loop, and so may a WebSocket,
        # which has no phase.
        opened = [each for each in self.connections if not each.transport.is_closing()]
        if len(opened) > most_connections():
            waiting = [
                each
                for each in opened
                if isinstance(each, BoundedConnection) and each.phase[0] == "head"
            ]
            min(waiting, key=lambda each: each.since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop looking after it."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self not in self.connections:  # a WebSocket by now
            return
        phase = self._phase()
        if phase != self.phase:
            self.phase, self.since = phase, self.loop.time()
        if self.loop.time() - self.since > SECONDS.get(phase[0], float("inf")):
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(LOOK_SECONDS, self._look)

    def _phase(self) -> tuple[str, int]:
        """What is waited for, and in which request: its head, its body, us, or that the answer is
        taken.
        """
        if self.transport.get_write_buffer_size():
            return "answer", id(self.cycle)
        if self.cycle is None or self.cycle.response_complete:
            return "head", id(self.cycle)
        return "body" if self.cycle.more_body else "work", id(self.cycle)


def most_connections() -> int:
    """How many connections may be open: at most a third of the files that this process may have."""
    return min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 3)


def bounds() -> dict[str, Any]:
    """The options by which uvicorn keeps them; so few are taken in at once that there are files
    left for the rest.
    """
    return {
        "http": BoundedConnection,
        "loop": "asyncio",
        "backlog": most_connections() // 4,
        "h11_max_incomplete_event_size": HEAD_BYTES,
    }


def line(
    content: Mapping[str, Any], status: int, headers: Mapping[str, str] | None = None
) -> Response:
    """JSON that ends as a line does, so that a terminal's prompt stands below it."""
    return Response(
        json.dumps(content, ensure_ascii=False) + "\n", status, headers, "application/json"
    )


class Guard:
    """An ASGI application behind a check of each request and each WebSocket handshake; a refusal is
    one line of 403, or of 401 where the token is missing.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str] | None = THIS_MACHINE,
        page: Callable[[str], bool] = "/".__eq__,
        token: str | None = None,
        origins: Collection[str] = (),
    ) -> None:
        """hosts: the names that requests may be addressed to, without ports; None: any, where
        others may listen.

        page: tells the paths that may be opened by a link from elsewhere, since looking at them
        changes nothing. token: what whoever asks has to know. origins: the other sites whose pages
        may ask all the same.
        """
        self.app, self.hosts, self.page, self.token, self.origins = app, hosts, page, token, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one connection, or the application's own life cycle."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        reason, status = self._objection(scope, headers), 403
        if reason is None and not self._knows_token(headers.get("authorization", "")):
            reason, status = (
                "say the token that lies in .freshet/token: Authorization: Bearer TOKEN",
                401,
            )
        if reason is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            ask = {"www-authenticate": CHALLENGE} if status == 401 else None
            await line({"error": reason}, status, ask)(scope, receive, send)

    def _knows_token(self, authorization: str) -> bool:
        """Whether the header states the token, compared in a time that does not tell how much of it
        is right.
        """
        if self.token is None:
            return True
        scheme, _, stated = authorization.partition(" ")
        if scheme.lower() == "basic":  # what a browser sends after it has asked for a password
            stated = _password(stated)
        matches = secrets.compare_digest(stated.encode(), self.token.encode())
        return matches and scheme.lower() in ("bearer", "basic")

    def _objection(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """Why the request is refused, whoever asks; None if it is not."""
        host, origin, site = (
            headers.get("host", ""),
            headers.get("origin"),
            headers.get("sec-fetch-site"),
        )
        if self.hosts is not None and re.sub(r":\d+$", "", host) not in self.hosts:
            return "this address is not one of this machine's own; open the page as http://127.0.0.1:PORT"
        reads = scope["type"] == "http" and scope["method"] == "GET"
        if reads and scope["path"].endswith("/graphql") and scope["query_string"]:
            return "GraphQL is asked by POST here: a GET could be made by any page's image"
        if origin is not None and origin in self.origins:
            return None
        opened = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == (
            "navigate",
            "document",
        )
        # a person followed one, to what only shows something
        link = reads and opened and self.page(scope["path"])
        same_site = site is None or site in OF_THIS_PAGE or link
        if same_site and (origin is None or origin.partition("://")[2] == host):
            return None
        return "a page of another site asked for this; nothing was done"


def _password(encoded: str) -> str:
    """The password of `NAME:PASSWORD` in base64; an empty one if it is no such thing, which is
    never the token.
    """
    try:
        return base64.b64decode(encoded, validate=True).decode("latin-1").partition(":")[2]
    except ValueError:
        return ""


def token_of(file: Path) -> str:
    """The token in `file`, made at the first call, for this user alone; FreshetError if others may
    read it.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".token.{os.getpid()}")
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(secrets.token_urlsafe(32) + "\n")
        aside.rename(file)
    token = file.read_text(encoding="ascii").strip()
    if file.stat().st_mode & 0o077 or not token:
        raise FreshetError(
            f"{file} is empty, or others than you may read it: delete it, and a new token is made"
        )
    return token


def token_to_demand(host: str, file: Path, demanded: bool = False) -> str | None:
    """The token for a door at `host`; none on this machine's own addresses, unless it is `demanded`
    there, too.
    """
    return token_of(file) if demanded or host not in LOOPBACK else None


def require_origins(origins: Sequence[str]) -> None:
    """Refuse what no browser sends as `Origin`, such as `*`, by a `SettingsError`."""
    for origin in origins:
        is_site = re.fullmatch(r"https?://[a-z0-9.:\[\]-]+", origin) is not None
        require(
            is_site, f"--cors-origin is {origin!r}; name one site, such as https://app.example:8443"
        )


def dagster_webserver() -> None:
    """Run Dagster's webserver, whose arguments follow on the command line, behind the guard."""
    # like MLflow below, for its own process alone: the service has neither
    from dagster_webserver.cli import main

    run = uvicorn.run
    page = lambda path: not path.endswith("/graphql")  # noqa: E731
    uvicorn.run = lambda app, **options: run(_guarded(app, page), **options | bounds())
    main()


def mlflow_app() -> ASGIApp:
    """Make MLflow's server behind the guard; `mlflow server --app-name freshet` finds it as an
    entry point.
    """
    from mlflow.server.fastapi_app import app

    return _guarded(app)


def _guarded(app: ASGIApp, page: Callable[[str], bool] = "/".__eq__) -> Guard:
    """A page of `freshet ui`; where a token is demanded, it may be addressed by any name."""
    if TOKEN_FILE not in os.environ:
        return Guard(app, page=page)
    return Guard(app, None, page, token_of(Path(os.environ[TOKEN_FILE])))


if __name__ == "__main__":
    sys.argv[0] = "dagster-webserver"
    dagster_webserver()
