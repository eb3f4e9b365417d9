"""Documents and changes to them. The whole project uses this class, from cleaning to search."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from model_code.errors import SettingsError
from model_code.files import hash_text

EXPIRES = "expires"
"""Field whose value is the date from which a document is not found."""

# Year, with or without a month, at the beginning of a date.
PARTIAL_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{2}))?(?=-|\Z)")


@dataclass(frozen=True)
class Document:
    """A document that can be indexed and shown.

    Attributes:
        document_id: Id of the document.
        title: Title; may be empty if there is a text.
        text: Text; may be empty if there is a title.
        fields: Named values that filters can ask for.
        queries: Known queries: texts that the document is known to answer. Retrievers that learn a
            vector per document train on them.
        date: Date of the document, in ISO format.

    Raises:
        SettingsError: If the id is empty, or both title and text are.
    """

    document_id: str
    title: str
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    queries: tuple[str, ...] = ()
    date: str | None = None

    def __post_init__(self) -> None:
        """Raise an error if the id is empty, or if both title and text are."""
        if not self.document_id:
            raise SettingsError("a document needs an id, and this one's is empty")
        if not self.title and not self.text:
            raise SettingsError(
                f"document {self.document_id!r} has neither title nor text to search"
            )

    @classmethod
    def from_payload(cls, document_id: str, payload: Mapping[str, Any]) -> Document:
        """Build a document from its id and its `payload`, which holds all its other values."""
        return cls(
            document_id=document_id,
            title=payload["title"],
            text=payload["text"],
            fields=payload["fields"],
            queries=tuple(payload["queries"]),
            date=payload.get("date"),
        )

    @property
    def payload(self) -> dict[str, Any]:
        """Everything but the id, as JSON values."""
        values: dict[str, Any] = {
            "title": self.title,
            "text": self.text,
            "fields": dict(self.fields),
            "queries": list(self.queries),
        }
        if self.date is not None:
            values["date"] = self.date
        return values

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of everything but the id, in hex, which is equal for equal contents.

        An empty string separates the queries from the date. No query is empty, so that a date
        cannot be mistaken for a query.

        >>> has_query = Document("a", "", "x", queries=("2020",))
        >>> has_date = Document("a", "", "x", date="2020")
        >>> has_query.content_hash == has_date.content_hash
        False
        """
        parts = [self.title, self.text, canonical_fields(self.fields), *self.queries]
        if self.date is not None:
            parts.extend(["", self.date])
        return hash_text("\0".join(parts))


@dataclass(frozen=True)
class Remove:
    """The removal of a document.

    Attributes:
        document_id: Id of the document.
        content_hash: None, because no content remains after the removal.
    """

    document_id: str
    content_hash: ClassVar[None] = None


Change = Document | Remove
"""A document to add or to replace, or the removal of a document."""

STATUSES = ("added", "updated", "deleted", "unchanged")
"""Possible effects of a change on its document."""


def status_of(change: Change, before: str | None) -> str:
    """Return the effect of a change on its document, one of `STATUSES`.

    Args:
        change: The change.
        before: Content hash of the present document. None if there is none.
    """
    if change.content_hash == before:
        # The content is equal, or there is no document before and after the change.
        return "unchanged"
    if change.content_hash is None:
        return "deleted"
    if before is None:
        return "added"
    return "updated"


def canonical_fields(fields: Mapping[str, Any]) -> str:
    """Serialise fields as tables store them: as JSON with sorted keys.

    Values that JSON does not support are written as text.

    >>> canonical_fields({"b": 1, "a": "x"})
    '{"a": "x", "b": 1}'
    """
    return json.dumps(fields, sort_keys=True, ensure_ascii=False, default=str)


def is_date(value: Any) -> bool:
    """Return whether a value is an ISO date or time, a month YYYY-MM or a year YYYY.

    >>> is_date("2030-06-01"), is_date("2030-06"), is_date(2030), is_date("soon")
    (True, True, True, False)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return parse_date(value) is not None
    partial_date = PARTIAL_DATE.match(value)
    if partial_date is None:
        return False
    if partial_date.end() == len(value):
        month = partial_date[2] or "01"
        value = f"{partial_date[1]}-{month}-01"
    return parse_date(value) is not None


def parse_date(value: Any) -> datetime.datetime | None:
    """Parse an ISO date, a `date` or a `datetime`. Without a time zone, UTC is assumed.

    Returns:
        The instant, or None for any other value.

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
    if instant.tzinfo is None:
        return instant.replace(tzinfo=datetime.UTC)
    return instant
