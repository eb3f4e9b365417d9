"""What searches and changes answer, in this process, over HTTP and on the command line alike: plain, frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from model_code.retriever import Hit, TokenMatch

__all__ = [
    "ChangeResult",
    "DocumentPage",
    "FieldValues",
    "Hit",
    "RejectedRow",
    "SearchResult",
    "StoredDocument",
    "SyncResult",
]


def _told(text: str) -> Any:
    """A field with its description, which the OpenAPI page shows."""
    return field(metadata={"description": text})


def known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `values` that `kind` has fields for: a newer service may say more."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


@dataclass(frozen=True)
class SearchResult:
    """The hits of one search, best first, and the one generation that all of them come from."""

    retriever: str
    generation: int
    hits: list[Hit]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """What a service answered."""
        return cls(values["retriever"], values["generation"], [_hit(hit) for hit in values["hits"]])


def _hit(values: Mapping[str, Any]) -> Hit:
    tokens = values.get("tokens")
    plain = known(Hit, values) | {
        "marks": tuple((start, end) for start, end in values["marks"]),
        "path": tuple(values["path"]),
        "topics": tuple(values.get("topics", ())),
        "tokens": tokens and tuple(TokenMatch(**known(TokenMatch, token)) for token in tokens),
    }
    return Hit(**plain)


@dataclass(frozen=True)
class StoredDocument:
    """A document as searches find it, whole."""

    document_id: str
    title: str
    text: str
    fields: Mapping[str, Any]
    date: str | None = _told("ISO, with its zone.")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """What a service answered."""
        return cls(**known(cls, values))


@dataclass(frozen=True)
class DocumentPage:
    """Some documents in the order of their ids."""

    generation: int
    total: int = _told("Documents in all.")
    documents: list[StoredDocument]
    next: str | None = _told("What to give as `after` for the next page; null after the last.")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """What a service answered."""
        return cls(**known(cls, values) | {"documents": [StoredDocument.of(one) for one in values["documents"]]})


def all_documents(page: Callable[[str], DocumentPage]) -> Iterator[StoredDocument]:
    """The documents of all pages; page: gives those beyond an id."""
    after: str | None = ""
    while after is not None:
        found = page(after)
        yield from found.documents
        after = found.next


@dataclass(frozen=True)
class FieldValues:
    """The fields that documents have: of each its commonest values, and of how many documents they are."""

    generation: int
    fields: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """What a service answered."""
        return cls(**known(cls, values))


@dataclass(frozen=True)
class RejectedRow:
    """A row that was refused."""

    row: int = _told("Its number in the request, from 1.")
    document_id: str | None
    reason: str


@dataclass(frozen=True)
class ChangeResult:
    """What became of a change. With `searchable` false it is safe in the ledger and will be searchable soon."""

    searchable: bool
    generation: int | None = _told("A generation that contains the change, once it is searchable.")
    received: int = _told("Rows that came: new events, unchanged and rejected ones.")
    unchanged: int = _told("Documents that are so already, or are gone already.")
    rejected: list[RejectedRow]
    events: list[int] = _told("The ledger's numbers of these changes.")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """What a service answered."""
        return cls(**known(cls, values) | {"rejected": _rejected(values)})


@dataclass(frozen=True)
class SyncResult:
    """What came of a sync, or of one that is tried only would come: the documents that changed, by their ids."""

    added: list[str]
    updated: list[str]
    deleted: list[str]
    waiting: list[str] = _told("Recorded changes that no search finds yet.")
    unchanged: int
    beside: int = _told("Documents of another origin, which stay.")
    rejected: list[RejectedRow] = _told("Files and rows that cannot be read; their documents stay as they were.")
    generation: int | None = _told("The one that holds what the source holds; null for a trial.")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """What a service answered."""
        return cls(**known(cls, values) | {"rejected": _rejected(values)})


def _rejected(values: Mapping[str, Any]) -> list[RejectedRow]:
    return [RejectedRow(**known(RejectedRow, row)) for row in values["rejected"]]
