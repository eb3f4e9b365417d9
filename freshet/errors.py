"""Errors of clients. Each message is one line that says what is wrong and what to do."""

from __future__ import annotations


class FreshetError(Exception):
    """A failure that the user can resolve.

    The command line prints the message as one line.

    Attributes:
        exit_code: Exit code of the command line.
    """

    exit_code = 1


class ServiceError(FreshetError):
    """The service refused a request, failed, or does not answer.

    Attributes:
        status: HTTP status; None if there was no answer.
    """

    status: int | None = None


class InvalidRequest(ServiceError):
    """The request is not valid, such as a filter by a field that no document has."""

    exit_code = 2


class NotAuthorised(ServiceError):
    """The service requires a token, and it is missing or wrong: use `Client(url, token=...)`."""


class NotFoundError(ServiceError):
    """The document or retriever does not exist."""


class Unavailable(ServiceError):
    """The service is busy, not ready, or does not answer. The same request may succeed later."""


ERROR_CLASSES: dict[int, type[ServiceError]] = {
    401: NotAuthorised,
    404: NotFoundError,
    409: Unavailable,
    413: InvalidRequest,
    422: InvalidRequest,
    503: Unavailable,
}


def error_for_status(status: int, message: str) -> ServiceError:
    """Return the exception for an HTTP error status."""
    error = ERROR_CLASSES.get(status, ServiceError)(message)
    error.status = status
    return error
