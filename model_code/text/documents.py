"""A document, as it is cleaned, recorded, indexed and shown: one class, one identity of its
content, its changes.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from model_code.errors import SettingsError
from model_code.files import hash_text


@dataclass(frozen=True)
class Document:
    """What is searched and shown of a document, the queries that it is known to answer, and its ISO
    date.

    queries: texts that it should be found by; kinds that learn a vector per document use them.
    SettingsError if it has no id, or nothing to search.
    """

    document_id: str
    title: str
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    queries: tuple[str, ...] = ()
    date: str | None = None

    def __post_init__(self) -> None:
        """Check that it can be named and found."""
        if not self.document_id:
            raise SettingsError("a document needs an id, and this one's is empty")
        if not (self.title or self.text):
            raise SettingsError(
                f"document {self.document_id!r} has neither title nor text to search"
            )

    @classmethod
    def from_payload(cls, document_id: str, payload: Mapping[str, Any]) -> Document:
        """The document that has this `payload`."""
        queries = tuple(payload["queries"])
        return cls(
            document_id,
            payload["title"],
            payload["text"],
            payload["fields"],
            queries,
            payload.get("date"),
        )

    @property
    def payload(self) -> dict[str, Any]:
        """Everything but the id, as values that JSON can hold."""
        values = {
            "title": self.title,
            "text": self.text,
            "fields": dict(self.fields),
            "queries": list(self.queries),
        }
        return values if self.date is None else values | {"date": self.date}

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of all but the id, in hex: equal exactly for equal contents.

        No query is empty, so an empty one tells a date from a query.

        >>> Document("a", "", "x", queries=("2020",)).content_hash == Document("a", "", "x", date="2020").content_hash
        False
        """
        dated = () if self.date is None else ("", self.date)
        return hash_text(
            "\0".join((self.title, self.text, canonical_fields(self.fields), *self.queries, *dated))
        )


@dataclass(frozen=True)
class Remove:
    """Take a document out; `content_hash`: that of what is there then, nothing."""

    document_id: str
    content_hash: ClassVar[None] = None


Change = Document | Remove
"""A document to add, or to put in the place of the one that has its id; or one to take out."""

STATUSES = ("added", "updated", "deleted", "unchanged")


def status_of(change: Change, before: str | None) -> str:
    """What a change makes of its document, one of `STATUSES`; before: the content hash, None where
    there was none.
    """
    if change.content_hash == before:
        return "unchanged"
    return "deleted" if change.content_hash is None else "added" if before is None else "updated"


def canonical_fields(fields: Mapping[str, Any]) -> str:
    """Fields as tables keep them: JSON with sorted keys, values that JSON lacks as text.

    >>> canonical_fields({"b": 1, "a": "x"})
    '{"a": "x", "b": 1}'
    """
    return json.dumps(fields, sort_keys=True, ensure_ascii=False, default=str)


def parse_date(value: Any) -> datetime.datetime | None:
    """The instant that an ISO date, a `date` or a `datetime` names (UTC where it names no zone);
    None for all else.

    >>> parse_date("2025-01-31").isoformat()
    '2025-01-31T00:00:00+00:00'
    >>> parse_date("last spring")
    """
    if isinstance(value, datetime.date):
        value = value.isoformat()
    try:
        instant = datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=datetime.UTC)
