"""Errors of the service: exceptions with HTTP status, and responses with one line of JSON."""

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

# Longer error messages are cut to this length.
MAX_MESSAGE_CHARACTERS = 1000


class Refusal(FreshetError):
    """A request that is refused with an HTTP status.

    Args:
        message: What is wrong, and what to do.
        status: HTTP status. None: the status of the class.
        retry_after: Seconds after which the same request may succeed. None: the value of the class,
            which is None if the request cannot succeed later.
        details: Further keys of the response.
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
        if status is not None:
            self.status = status
        if retry_after is not None:
            self.retry_after = retry_after


class Busy(Refusal):
    """Too many requests wait. The same request may succeed a little later."""

    status = 503
    retry_after = 1


class NotReady(Refusal):
    """There is no live index yet, or documents of the ledger could not be made searchable."""

    status = 503
    retry_after = 5


class NothingAccepted(Refusal):
    """All rows of a request were refused. `details` has the reasons."""


class NotFound(Refusal):
    """A document or retriever does not exist."""

    status = 404


def add_handlers(app: FastAPI) -> None:
    """Answer exceptions of the routes with JSON."""
    app.add_exception_handler(FreshetError, _answer_freshet_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_request)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(Exception, _answer_unexpected_error)


def error_response(
    status: int, message: str, retry_after: int | None = None, details: Mapping[str, Any] = {}
) -> Response:
    """Return a response with the key `error`.

    Args:
        status: HTTP status.
        message: Value of `error`; cut to `MAX_MESSAGE_CHARACTERS`.
        retry_after: Value of the header `Retry-After`, in seconds.
        details: Further keys of the response.
    """
    headers = None
    if retry_after is not None:
        headers = {"Retry-After": str(retry_after)}
    content = {"error": printable(message, MAX_MESSAGE_CHARACTERS), **details}
    return json_line(content, status, headers)


async def _answer_freshet_error(request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return error_response(error.status, str(error), error.retry_after, error.details)
    return error_response(422, str(error))


async def _answer_invalid_request(request: Request, error: Exception) -> Response:
    """Answer a request that does not match its schema: 422 with the first wrong field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    content_type = request.headers.get("content-type", "")
    # If the content type is not JSON, FastAPI reads the body as one string, and its own message
    # would not name the cause.
    if first["loc"] == ("body",) and "json" not in content_type:
        return error_response(
            422,
            f"the content type of the body is {content_type or 'missing'}; "
            "send JSON with Content-Type: application/json",
        )

    # `loc` is the way to the wrong value, such as ("body", "documents", 0).
    path = [str(part) for part in first["loc"] if part not in ("body", "query")]
    field = ".".join(path) or "the body"
    # Only the first letter changes, because the rest may be a pattern such as [A-Z].
    reason = first["msg"][:1].lower() + first["msg"][1:]
    return error_response(422, f"{printable(field)}: {reason}; see /docs")


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Answer an error of FastAPI itself, such as an unknown path, with its status as JSON."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400 and _is_form(request):
        return error_response(422, f"the uploaded files cannot be read: {error.detail}; see /docs")
    if error.status_code == 400:
        # FastAPI raises this error if it cannot parse the bytes of a body.
        return error_response(
            422,
            "the body cannot be read: it is not JSON in UTF-8, or its values are nested too "
            "deeply; see /docs",
        )
    message = f"{error.detail}: {request.method} {request.url.path}; see /docs"
    response = error_response(error.status_code, message)
    for name, value in (error.headers or {}).items():
        response.headers.setdefault(name, value)
    return response


def _is_form(request: Request) -> bool:
    """Return whether the body of a request is a form, such as an upload of files."""
    return request.headers.get("content-type", "").startswith("multipart/")


async def _answer_unexpected_error(request: Request, error: Exception) -> Response:
    """Answer with the type of the error. The server logs the traceback."""
    return error_response(
        500, f"the service failed ({type(error).__name__}); its log has the traceback"
    )
