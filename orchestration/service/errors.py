"""What the service refuses, and every error as one line of JSON with the HTTP status that fits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from model_code.corpus.rows import printable
from model_code.errors import FreshetError
from orchestration.guard import json_line

MOST_CHARACTERS = 1000  # of an error


class Refusal(FreshetError):
    """A request that is refused with HTTP `status`; `retry_after` (seconds) where waiting helps.

    details: what the answer says beside `error`.
    """

    status = 422
    retry_after: int | None = None

    def __init__(
        self,
        message: str,
        status: int | None = None,
        retry_after: int | None = None,
        details: Mapping[str, Any] = {},
    ) -> None:
        super().__init__(message)
        self.details = details
        self.status, self.retry_after = status or self.status, retry_after or self.retry_after


class Busy(Refusal):
    """Too much waits already; the same request will be served a little later."""

    status, retry_after = 503, 1


class NotReady(Refusal):
    """No live collection to answer from yet, or documents in the ledger that could not be made
    searchable.
    """

    status, retry_after = 503, 5


class NothingAccepted(Refusal):
    """A request of which every row was refused; `details` is the answer that says why."""


class NotFound(Refusal):
    """What the request names does not exist."""

    status = 404


def add_handlers(app: FastAPI) -> None:
    """Answer what the routes raise."""
    app.add_exception_handler(FreshetError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def error(
    status: int, message: str, retry_after: int | None = None, details: Mapping[str, Any] = {}
) -> Response:
    """The response `{"error": message}`, with `details` beside it; of a long message, the
    beginning.
    """
    headers = {"Retry-After": str(retry_after)} if retry_after is not None else None
    return json_line(
        {"error": printable(message, MOST_CHARACTERS)} | dict(details), status, headers
    )


async def _refused(request: Request, refused: Exception) -> Response:
    """A `Refusal` knows its status; any other `FreshetError` is a request that the collection
    cannot answer.
    """
    if isinstance(refused, Refusal):
        return error(refused.status, str(refused), refused.retry_after, refused.details)
    return error(422, str(refused))


async def _invalid(request: Request, invalid: Exception) -> Response:
    assert isinstance(invalid, RequestValidationError)
    first = invalid.errors()[0]
    stated = request.headers.get("content-type", "")
    if first["loc"] == ("body",) and "json" not in stated:  # FastAPI takes the body for a text then
        return error(
            422,
            f"the body is {stated or 'of no stated type'}; send JSON with Content-Type: application/json",
        )
    where = (
        ".".join(str(part) for part in first["loc"] if part not in ("body", "query")) or "the body"
    )
    return error(422, f"{printable(where)}: {first['msg'].lower()}; see /docs")


async def _http(request: Request, raised: Exception) -> Response:
    assert isinstance(raised, HTTPException)
    message = f"{raised.detail}: {request.method} {request.url.path}; see /docs"
    retry_after = (raised.headers or {}).get("Retry-After")
    return error(raised.status_code, message, int(retry_after) if retry_after else None)


async def _unexpected(request: Request, raised: Exception) -> Response:
    """Answer what is ours to mend: the server prints the traceback, the client gets its kind."""
    return error(500, f"the service failed ({type(raised).__name__}); its log has the traceback")
