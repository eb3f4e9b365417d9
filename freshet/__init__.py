"""The public interface of Freshet: clients of a service, a project in this process, and results.

Names are imported when they are first used. A client therefore needs the standard library alone,
and the engine, which shares errors and result types, does not import the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freshet.client import AsyncClient, Client
    from freshet.errors import (
        FreshetError,
        InvalidRequest,
        NotAuthorised,
        NotFoundError,
        ServiceError,
        Unavailable,
    )
    from freshet.project import LocalProject as Project
    from freshet.results import (
        ChangeResult,
        DocumentPage,
        FieldValues,
        Hit,
        RejectedRow,
        SearchResult,
        StoredDocument,
        SyncResult,
    )

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

_CLIENTS = ("AsyncClient", "Client")
_ERRORS = (
    "FreshetError",
    "InvalidRequest",
    "NotAuthorised",
    "NotFoundError",
    "ServiceError",
    "Unavailable",
)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'freshet' has no attribute {name!r}")
    if name == "Project":
        return import_module("freshet.project").LocalProject
    if name in _CLIENTS:
        module = "freshet.client"
    elif name in _ERRORS:
        module = "freshet.errors"
    else:
        module = "freshet.results"
    return getattr(import_module(module), name)
