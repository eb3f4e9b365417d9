"""What the service refuses, and how a refusal looks on the wire: a status, one line, and when to try again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_code.errors import FreshetError


class Refusal(FreshetError):
    """A request that is refused with HTTP `status`; `retry_after` (seconds) where waiting helps.

    details: what the answer says beside `error`.
    """

    status = 422
    retry_after: int | None = None
    details: Mapping[str, Any] = {}


class Busy(Refusal):
    """Too much waits already; the same request will be served a little later."""

    status, retry_after = 503, 1


class NotReady(Refusal):
    """There is no live collection to answer from yet."""

    status, retry_after = 503, 5


class TooLarge(Refusal):
    """The request is larger than the service takes."""

    status = 413


class NothingAccepted(Refusal):
    """Every row of the request was refused; `details` is the answer that says why."""

    def __init__(self, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.details = details


class NotFound(Refusal):
    """What the request names does not exist."""

    status = 404


class Failed(Refusal):
    """The documents are in the ledger, but could not be made searchable."""

    status, retry_after = 503, 5
