"""The FastAPI application of one project: its routes, the bounds around every request, its life
cycle.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import run_sync
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from prometheus_client import Counter
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_code.project import Project
from orchestration.guard import LOOPBACK_ADDRESSES, LOOPBACK_HOSTS, Guard
from orchestration.service import routes
from orchestration.service.errors import add_handlers, error
from orchestration.service.models import ErrorResponse
from orchestration.service.service import Service

# of pages of other sites
METHODS, HEADERS = ("GET", "POST", "DELETE"), ("Authorization", "Content-Type")
PAGES = ("/", "/docs", "/redoc")  # which a link from elsewhere may open
DESCRIPTION = """Search, and add, update and delete documents, of one Freshet project. Every answer names the one
generation that it comes from. Refusals are `{"error": "one line"}`; a 503 says in Retry-After when to come again."""
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        401: "The token is missing, where one is demanded",
        404: "There is no such retriever or document",
        409: "The generation that the search demands is not searchable yet",
        413: "The request is too large",
        422: "The request makes no sense",
        503: "Too busy, or not ready; see Retry-After",
    }.items()
}
MAX_BODY_BYTES = 64_000_000
MAX_BODIES_BYTES = 4 * MAX_BODY_BYTES  # of all requests together
# in one request: a list of nothing takes three bytes on the way and 64 in memory
MAX_VALUES = 4_000_000


class BodyLimit:
    """Refuse a body of more than `MAX_BODY_BYTES` or `MAX_VALUES`, by what its header says, else by
    what has come so far; and any while the bodies that come at once have more than
    `MAX_BODIES_BYTES`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.coming = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if stated.isdigit() and int(stated) > MAX_BODY_BYTES:
            await error(413, self._message())(scope, receive, send)
            return
        size = values = 0  # of what has come of the body: bytes, and at most how many values

        async def counted() -> Message:
            """The next piece of the body; HTTPException once too much has come."""
            nonlocal size, values
            message = await receive()
            piece = message.get("body", b"")
            size += len(piece)
            self.coming += len(piece)
            # in texts, too, which are not told apart
            values += sum(map(piece.count, (b"[", b"{", b",")))
            if size > MAX_BODY_BYTES or values > MAX_VALUES:
                # the one kind of error that FastAPI passes on from here
                raise HTTPException(413, self._message())
            if self.coming > MAX_BODIES_BYTES:
                raise HTTPException(
                    503, "too many bytes come at once; try again in a second", {"Retry-After": "1"}
                )
            return message

        try:
            await self.app(scope, counted, send)
        finally:
            self.coming -= size

    def _message(self) -> str:
        most = f"{MAX_BODY_BYTES:,} bytes or {MAX_VALUES:,} values"
        return f"the request has more than the {most} that are taken at once; send it in parts"


class RequestCount:
    """Count requests by route and status; paths that are no route count as one, whatever they are."""

    def __init__(self, app: ASGIApp, requests: Counter) -> None:
        self.app, self.requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; nothing else that comes has a response that starts."""

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                self.requests.labels(f"{scope['method']} {route}", str(message["status"])).inc()
            await send(message)

        await self.app(scope, receive, counting)


def create_app(
    project: Project, host: str = "127.0.0.1", token: str | None = None, origins: Sequence[str] = ()
) -> FastAPI:
    """The service of `project` as an ASGI application; its life cycle starts and stops what works
    behind it.

    token: what whoever asks has to know; origins: other sites whose pages may ask, see `Guard`.
    """
    service = Service(project)

    @asynccontextmanager
    async def life_cycle(app: FastAPI) -> AsyncIterator[None]:
        await run_sync(service.start)
        yield
        await run_sync(service.stop)

    app = FastAPIOffline(  # its pages fetch nothing from elsewhere
        title="Freshet",
        description=DESCRIPTION,
        lifespan=life_cycle,
        responses=REFUSALS,
        version="1",
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service = service
    app.include_router(routes.router)
    add_handlers(app)
    app.add_middleware(BodyLimit)
    hosts = (*LOOPBACK_HOSTS, "testserver") if host in LOOPBACK_ADDRESSES else None
    app.add_middleware(Guard, hosts=hosts, is_page=PAGES.__contains__, token=token, origins=origins)
    if origins:  # before the guard, since a browser asks whether it may without the token
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=METHODS, allow_headers=HEADERS
        )
    app.add_middleware(RequestCount, requests=service.metrics.requests)
    return app
