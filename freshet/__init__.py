"""The public interface of Freshet: clients of a service, a project in this process, and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshet.client import AsyncClient, Client
from freshet.errors import InvalidRequest, NotAuthorised, NotFoundError, ServiceError, Unavailable
from model_code.collection.results import (
    ChangeResult,
    DocumentPage,
    FieldValues,
    Hit,
    RejectedRow,
    SearchResult,
    StoredDocument,
    SyncResult,
)
from model_code.errors import FreshetError

if TYPE_CHECKING:
    from freshet.project import LocalProject as Project

__all__ = [
    "AsyncClient",
    "ChangeResult",
    "Client",
    "DocumentPage",
    "FieldValues",
    "FreshetError",
    "Hit",
    "InvalidRequest",
    "NotAuthorised",
    "NotFoundError",
    "Project",
    "RejectedRow",
    "SearchResult",
    "ServiceError",
    "StoredDocument",
    "SyncResult",
    "Unavailable",
]


def __getattr__(name: str) -> Any:
    """Import `Project` when it is first used, because it needs torch and a client does not."""
    if name != "Project":
        raise AttributeError(f"module 'freshet' has no attribute {name!r}")
    from freshet.project import LocalProject

    return LocalProject
