"""The FastAPI application of one project: its routes, the bounds around every request, its life cycle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from fastapi import FastAPI
from prometheus_client import Counter
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_code.live.searcher import Searcher
from orchestration.guard import LOOPBACK, THIS_MACHINE, Guard
from orchestration.project import Project
from orchestration.service import routes
from orchestration.service.errors import add_handlers, error
from orchestration.service.models import ErrorResponse
from orchestration.service.service import Service

METHODS, HEADERS = ("GET", "POST", "DELETE"), ("Authorization", "Content-Type")  # of pages of other sites
PAGES = ("/docs", "/redoc")  # which a link from elsewhere may open
DESCRIPTION = """Search, and add, update and delete documents, of one Freshet project. Every answer names the one
generation that it comes from. Refusals are `{"error": "one line"}`; a 503 says in Retry-After when to come again."""
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        401: "The token is missing, where one is demanded",
        404: "There is no such retriever or document",
        413: "The request is too large",
        422: "The request makes no sense",
        503: "Too busy, or not ready; see Retry-After",
    }.items()
}
MAX_BODY_BYTES = 64_000_000


class BodyLimit:
    """Refuse a body of more than `max_bytes` bytes, by what its header says, else by what has come so far."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if stated.isdigit() and int(stated) > self.max_bytes:
            await error(413, self._message())(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        come = 0

        async def counted() -> Message:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > self.max_bytes:
                raise HTTPException(413, self._message())  # the one kind of error that FastAPI passes on from here
            return message

        return counted

    def _message(self) -> str:
        return f"the request has more than the {self.max_bytes:,} bytes that are taken at once; send it in parts"


class RequestCount:
    """Count requests by route and status; paths that are no route count as one, whatever they are."""

    def __init__(self, app: ASGIApp, requests: Counter) -> None:
        self.app, self.requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                self.requests.labels(f"{scope['method']} {route}", str(message["status"])).inc()
            await send(message)

        await self.app(scope, receive, counting)


def create_app(
    project: Project,
    host: str = "127.0.0.1",
    query_log: bool = False,
    open_collection: Callable[[str], Any] | None = None,
    opener: Callable[[Path, str], Searcher] | None = None,
    token: str | None = None,
    origins: Sequence[str] = (),
) -> FastAPI:
    """The service of `project` as an ASGI application; its life cycle starts and stops what works behind it.

    open_collection, opener: stand-ins for the real `LiveCollection` and `Searcher.open`. token: what whoever asks has
    to know; origins: other sites whose pages may ask, see `Guard`.
    """
    service = Service(project, query_log, open_collection, opener)
    app = FastAPI(
        title="Freshet", description=DESCRIPTION, lifespan=_life_cycle(service), responses=REFUSALS, version="1"
    )
    app.state.service = service
    app.include_router(routes.router)
    add_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    hosts = (*THIS_MACHINE, "testserver") if host in LOOPBACK else None
    app.add_middleware(Guard, hosts=hosts, page=PAGES.__contains__, token=token, origins=origins)
    if origins:  # before the guard, since a browser asks whether it may without the token
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=METHODS, allow_headers=HEADERS)
    app.add_middleware(RequestCount, requests=service.metrics.requests)
    return app


def _life_cycle(service: Service) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def life_cycle(app: FastAPI) -> AsyncIterator[None]:
        await run_sync(service.start)
        yield
        await run_sync(service.stop)

    return life_cycle
