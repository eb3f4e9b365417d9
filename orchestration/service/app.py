"""The FastAPI application of one project: routes, limits around every request, and life cycle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import run_sync
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from prometheus_client import Counter
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_code.collection.follow.follower import Follower
from model_code.project import Project
from orchestration.guard import LOOPBACK_ADDRESSES, LOOPBACK_HOSTS, Guard
from orchestration.service import routes
from orchestration.service.apply_process import ApplyProcess
from orchestration.service.errors import add_handlers, error_response
from orchestration.service.models import ErrorResponse
from orchestration.service.service import Service
from orchestration.service.telemetry import Telemetry, TraceRequests

# Methods and headers that pages of other sites may use, if the user has named the sites.
CORS_METHODS = ("GET", "POST", "DELETE")
CORS_HEADERS = ("Authorization", "Content-Type")
# Pages that a link of another site may open.
PAGES = ("/", "/docs", "/redoc", "/drift")
DESCRIPTION = """Search, add, update and delete the documents of one Freshet project.
Every answer comes from one generation, an immutable snapshot of the index, and names it.
Errors are `{"error": "one line"}`.
The header Retry-After of a 503 says when to try again."""
ERROR_DESCRIPTIONS = {
    401: "The required token is missing",
    404: "The retriever or document does not exist",
    409: "The requested generation is not searchable yet",
    413: "The request is too large",
    422: "The request is not valid",
    503: "The service is too busy, or not ready; see Retry-After",
}
# Status of the answer to a request that failed by an unexpected error.
UNEXPECTED_ERROR_STATUS = 500
# Largest size of the body of one request, in bytes.
MAX_BODY_BYTES = 64_000_000
# Largest total size of the bodies of all requests that are received at the same time, in bytes.
MAX_TOTAL_BODY_BYTES = 4 * MAX_BODY_BYTES
# Largest number of JSON values in the body of one request. It limits the memory: an empty list
# takes three bytes as JSON, but 64 bytes in memory.
MAX_BODY_VALUES = 4_000_000


class BodyLimit:
    """ASGI middleware that refuses large request bodies.

    A body may have at most `MAX_BODY_BYTES` bytes and `MAX_BODY_VALUES` JSON values. All bodies
    that arrive at the same time may have at most `MAX_TOTAL_BODY_BYTES` bytes together. A body is
    refused at once if its header `Content-Length` is too large. The bytes are also counted while
    they arrive, because the header may be missing or wrong.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.total_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count its body.

        A body that is too large is refused with status 413. A body that arrives together with too
        many others is refused with status 503.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        headers = dict(scope["headers"])
        # In an uploaded file, brackets and commas do not begin JSON values.
        is_json = not headers.get(b"content-type", b"").startswith(b"multipart/")
        declared_length = headers.get(b"content-length", b"0")
        # A header that is not a number is ignored here. The bytes are counted in any case.
        if declared_length.isdigit() and int(declared_length) > MAX_BODY_BYTES:
            response = error_response(413, _too_large_message())
            await response(scope, receive, send)
            return

        body_bytes = 0
        body_values = 0

        async def receive_counted() -> Message:
            """Receive the next part of the body, and raise an error if a limit is exceeded."""
            nonlocal body_bytes, body_values
            message = await receive()
            chunk = message.get("body", b"")
            body_bytes += len(chunk)
            self.total_bytes += len(chunk)
            if is_json:
                body_values += _count_values(chunk)

            # The exception must be an HTTPException. FastAPI replaces any other exception that is
            # raised while it reads a body by a general error.
            if body_bytes > MAX_BODY_BYTES or body_values > MAX_BODY_VALUES:
                raise HTTPException(413, _too_large_message())
            if self.total_bytes > MAX_TOTAL_BODY_BYTES:
                raise HTTPException(
                    503,
                    "too many bytes arrive at the same time; try again in a second",
                    {"Retry-After": "1"},
                )
            return message

        try:
            await self.app(scope, receive_counted, send)
        finally:
            # The request has ended, so the body of this request is no longer in memory.
            self.total_bytes -= body_bytes


def _count_values(chunk: bytes) -> int:
    """Return an upper bound of the number of JSON values in a part of a JSON text.

    It is an upper bound because brackets and commas inside strings are counted as well.
    """
    return chunk.count(b"[") + chunk.count(b"{") + chunk.count(b",")


def _too_large_message() -> str:
    return (
        f"the request has more than the {MAX_BODY_BYTES:,} bytes or {MAX_BODY_VALUES:,} values "
        "that are accepted at once; send it in parts"
    )


class HeadRequests:
    """ASGI middleware that answers a HEAD request like a GET request, without the body.

    Monitoring systems send HEAD requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a HEAD request on as a GET request, and leave out the body of the answer."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = dict(message, body=b"")
            await send(message)

        get_scope = dict(scope, method="GET")
        await self.app(get_scope, receive, send_without_body)


class RequestCount:
    """ASGI middleware that counts requests by route and status.

    Paths that belong to no route are counted together. Otherwise a client could create any number
    of metrics by requests for unknown paths.
    """

    def __init__(self, app: ASGIApp, requests: Counter) -> None:
        self.app = app
        self.requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count it when its response starts.

        An unexpected error of a route passes through all middleware, and is answered outside of it
        with status 500. So it is counted here when it passes.
        """
        has_started = False

        def count(status: int) -> None:
            # The router has put the matching route into the scope; none for unknown paths.
            route = getattr(scope.get("route"), "path", "none")
            self.requests.labels(f"{scope['method']} {route}", str(status)).inc()

        async def send_counted(message: Message) -> None:
            """Send a part of the response, and count the request at the first part."""
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                count(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_counted)
        except Exception:
            if scope["type"] == "http" and not has_started:
                count(UNEXPECTED_ERROR_STATUS)
            raise


def create_app(
    project: Project,
    host: str = "127.0.0.1",
    token: str | None = None,
    origins: Sequence[str] = (),
    follower: Follower | None = None,
    telemetry: Telemetry | None = None,
    apply_process: ApplyProcess | None = None,
    search_processes: int = 0,
) -> FastAPI:
    """Return the service of a project as an ASGI application.

    Args:
        project: The project.
        host: Address that the service listens on.
        token: Token that every request needs; None if no token is required.
        origins: Other sites whose pages may send requests.
        follower: Updates the project from a published collection. None if the project is not a
            copy of one.
        telemetry: Receives spans and metrics; None if OpenTelemetry is off.
        apply_process: Applies changes in a separate process. None: a thread of this process applies
            them.
        search_processes: Number of processes that search. 0: threads of this process search.
    """
    service = Service(project, follower, telemetry, apply_process, search_processes)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_sync(service.start)
        yield
        await run_sync(service.stop)

    # FastAPIOffline serves /docs without fetching files from the internet.
    app = FastAPIOffline(
        title="Freshet",
        description=DESCRIPTION,
        lifespan=lifespan,
        responses=_error_responses(),
        version="1",
        generate_unique_id_function=_operation_id,
    )
    app.state.service = service
    app.include_router(routes.router)
    add_handlers(app)

    # The middleware that is added last runs first.
    hosts = None
    if host in LOOPBACK_ADDRESSES:
        # "testserver" is the name that the test client of FastAPI uses.
        hosts = (*LOOPBACK_HOSTS, "testserver")
    app.add_middleware(BodyLimit)
    app.add_middleware(Guard, hosts=hosts, is_page=PAGES.__contains__, token=token, origins=origins)
    if origins:
        # CORS runs before the guard, because a browser asks for permission without the token.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=CORS_METHODS,
            allow_headers=CORS_HEADERS,
        )
    app.add_middleware(RequestCount, requests=service.metrics.requests)
    app.add_middleware(HeadRequests)
    if telemetry is not None:
        app.add_middleware(TraceRequests, telemetry=telemetry)
    return app


def _error_responses() -> dict[int | str, dict[str, Any]]:
    """Return the errors of all routes, for the OpenAPI page."""
    responses: dict[int | str, dict[str, Any]] = {}
    for status, description in ERROR_DESCRIPTIONS.items():
        responses[status] = {"model": ErrorResponse, "description": description}
    return responses


def _operation_id(route: APIRoute) -> str:
    return route.name
