"""The guard at every door: a page of another site that happens to be open in the browser drives nothing here.

A browser says for whom it asks, in headers that no page can forge: `Host`, `Origin`, `Sec-Fetch-Site`. Programs that
send none of the last two, such as curl, are let through: they run as somebody who is on this machine already.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

THIS_MACHINE = ("127.0.0.1", "localhost", "[::1]")
OF_THIS_PAGE = ("same-origin", "none")  # Sec-Fetch-Site of what the page itself, or the person, asks for


class Guard:
    """An ASGI application behind a check of each request and each WebSocket handshake; a refusal is one line of 403."""

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] | None = THIS_MACHINE, page: Callable[[str], bool] = "/".__eq__
    ) -> None:
        """hosts: the names that requests may be addressed to, without ports; None: any, where others may listen.

        page: tells the paths that may be opened by a link from elsewhere, since looking at them changes nothing.
        """
        self.app, self.hosts, self.page = app, hosts, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one connection, or the application's own life cycle."""
        reason = None if scope["type"] == "lifespan" else self._objection(scope)
        if reason is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            body = json.dumps({"error": reason}).encode() + b"\n"
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def _objection(self, scope: Scope) -> str | None:
        """Why the request is refused; None if it is not."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin, site = headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")
        if self.hosts is not None and _without_port(host) not in self.hosts:
            return "this address is not one of this machine's own; open the page as http://127.0.0.1:PORT"
        if (
            scope["type"] == "http"
            and scope["method"] == "GET"
            and scope["path"].endswith("/graphql")
            and scope["query_string"]
        ):
            return "GraphQL is asked by POST here: a GET could be made by any page's image"
        if origin is not None and origin.partition("://")[2] != host:
            return "a page of another site asked for this; nothing was done"
        if site is not None and site not in OF_THIS_PAGE and not self._is_link(scope, headers):
            return "a page of another site asked for this; nothing was done"
        return None

    def _is_link(self, scope: Scope, headers: dict[str, str]) -> bool:
        """Whether a person followed a link to a page that only shows something."""
        opened = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
        return scope["type"] == "http" and scope["method"] == "GET" and opened and self.page(scope["path"])


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def dagster_webserver() -> None:
    """Run Dagster's webserver, whose arguments follow on the command line, behind the guard."""
    import uvicorn
    from dagster_webserver.cli import main

    run = uvicorn.run
    uvicorn.run = lambda app, **options: run(Guard(app, page=partial(_is_no_path_of, "/graphql")), **options)
    main()


def mlflow_app() -> ASGIApp:
    """Make MLflow's server behind the guard; `mlflow server --app-name freshet` finds it as an entry point."""
    from mlflow.server.fastapi_app import app

    return Guard(app)


def _is_no_path_of(last: str, path: str) -> bool:
    return not path.endswith(last)


if __name__ == "__main__":
    sys.argv[0] = "dagster-webserver"
    dagster_webserver()
