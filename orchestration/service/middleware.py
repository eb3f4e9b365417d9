"""Around every request: a bound on its size, and a count of its outcome."""

from __future__ import annotations

from prometheus_client import Counter
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestration.service.errors import error


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
