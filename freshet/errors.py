"""What can go wrong where a service is asked, each with one line that says why and what to do."""

from __future__ import annotations

from model_code.errors import FreshetError


class ServiceError(FreshetError):
    """The service refused, failed, or does not answer; `status` is HTTP's, None where no answer
    came.
    """

    status: int | None = None


class InvalidRequest(ServiceError):
    """The request makes no sense, such as a filter by a field that no document has."""

    exit_code = 2


class NotAuthorised(ServiceError):
    """The service demands a token, and this one is missing or wrong: `Client(url, token=...)`."""


class NotFoundError(ServiceError):
    """No such document or retriever."""


class Unavailable(ServiceError):
    """The service is busy, not ready, or does not answer; the same request may be served later."""


KINDS: dict[int, type[ServiceError]] = {
    401: NotAuthorised,
    404: NotFoundError,
    409: Unavailable,
    413: InvalidRequest,
    422: InvalidRequest,
    503: Unavailable,
}


def error_of(status: int, message: str) -> ServiceError:
    """The error that a refusal with this HTTP status is."""
    error = KINDS.get(status, ServiceError)(message)
    error.status = status
    return error
