"""The FastAPI application of one project."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from fastapi import FastAPI

from model_code.live.searcher import Searcher
from orchestration.guard import THIS_MACHINE, Guard
from orchestration.project import Project
from orchestration.service import document_routes, search_routes, state_routes
from orchestration.service.errors import add_handlers
from orchestration.service.middleware import BodyLimit, RequestCount
from orchestration.service.models import ErrorResponse
from orchestration.service.service import Service
from orchestration.service.settings import ServiceSettings

PAGES = ("/docs", "/redoc")  # which a link from elsewhere may open
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DESCRIPTION = """Search, and add, update and delete documents, of one Freshet project. Every answer names the one
generation that it comes from. Refusals are `{"error": "one line"}`; a 503 says in Retry-After when to come again."""
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        404: "There is no such retriever or document",
        413: "The request is too large",
        422: "The request makes no sense",
        503: "Too busy, or not ready; see Retry-After",
    }.items()
}


def create_app(
    project: Project,
    settings: ServiceSettings,
    open_collection: Callable[[str], Any] | None = None,
    opener: Callable[[Path, str], Searcher] | None = None,
) -> FastAPI:
    """The service of `project` as an ASGI application; its life cycle starts and stops what works behind it.

    open_collection, opener: stand-ins for the real `LiveCollection` and `Searcher.open`.
    """
    service = Service(project, settings, open_collection, opener)
    app = FastAPI(
        title="Freshet", description=DESCRIPTION, lifespan=_life_cycle(service), responses=REFUSALS, version="1"
    )
    app.state.service = service
    for routes in (search_routes, document_routes, state_routes):
        app.include_router(routes.router)
    add_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    hosts = (*THIS_MACHINE, "testserver") if settings.host in LOOPBACK else None
    app.add_middleware(Guard, hosts=hosts, page=PAGES.__contains__)
    app.add_middleware(RequestCount, requests=service.metrics.requests)
    return app


def _life_cycle(service: Service) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def life_cycle(app: FastAPI) -> AsyncIterator[None]:
        await run_sync(service.start)
        yield
        await run_sync(service.stop)

    return life_cycle
