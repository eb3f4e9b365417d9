"""What searches and changes answer, in this process, over HTTP and on the command line alike:
plain, frozen values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from model_code.retrieval.protocol import Hit

T = TypeVar("T")


def _described(text: str) -> Any:
    """A field with its description, which the OpenAPI page shows."""
    return field(metadata={"description": text})


def answer_of(kind: type[T], value: Any) -> T:
    """A service's answer as `kind`; what a newer service says more is passed over."""
    read: Any = answer_of
    if is_dataclass(kind):
        hints = _hints(kind)
        return kind(
            **{name: read(hints[name], value[name]) for name in hints.keys() & value.keys()}
        )
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType and value is not None:  # one kind, or None
        return read(inner[0], value)
    return origin(read(inner[0], each) for each in value) if origin in (list, tuple) else value


_hints = lru_cache(get_type_hints)


@dataclass(frozen=True)
class SearchResult:
    """The hits of one search, best first, and the one generation that all of them come from."""

    retriever: str
    generation: int
    hits: list[Hit]


@dataclass(frozen=True)
class StoredDocument:
    """A document as searches find it, whole."""

    document_id: str
    title: str
    text: str
    fields: Mapping[str, Any]
    date: str | None = _described("ISO, with its zone.")


@dataclass(frozen=True)
class DocumentPage:
    """Some documents in the order of their ids."""

    generation: int
    total: int = _described("Documents in all.")
    documents: list[StoredDocument]
    next: str | None = _described("What to give as `after` for the next page; null after the last.")


@dataclass(frozen=True)
class FieldValues:
    """The fields that documents have: of each its commonest values, and of how many documents they
    are.
    """

    generation: int
    fields: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class RejectedRow:
    """A row that was refused."""

    row: int = _described("Its number in the request, from 1.")
    document_id: str | None
    reason: str


@dataclass(frozen=True)
class ChangeResult:
    """What became of a change. With `searchable` false it is safe in the ledger and will be
    searchable soon.
    """

    searchable: bool
    generation: int | None = _described(
        "A generation that contains the change, once it is searchable."
    )
    received: int = _described("Rows that came: new events, unchanged and rejected ones.")
    unchanged: int = _described("Documents that are so already, or are gone already.")
    rejected: list[RejectedRow]
    events: list[int] = _described("The ledger's numbers of these changes.")


@dataclass(frozen=True)
class SyncResult:
    """What came of a sync, or of one that is tried only would come: the documents that changed, by
    their ids.
    """

    added: list[str]
    updated: list[str]
    deleted: list[str]
    waiting: list[str] = _described("Recorded changes that no search finds yet.")
    unchanged: int
    beside: int = _described("Documents of another origin, which stay.")
    kept: int = _described(
        "Documents that no row names, and that stay, as a row that cannot be read may be theirs."
    )
    rejected: list[RejectedRow] = _described(
        "Files and rows that cannot be read; their documents stay as they were."
    )
    generation: int | None = _described(
        "The one that holds what the source holds; null for a trial."
    )
