"""What can happen to a document of a live collection, and what several changes come to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from model_code.files import hash_text
from model_code.settings import require


@dataclass(frozen=True)
class Put:
    """Add a document, or replace the one that has its id.

    queries: texts that the document should be found by, if some are known; kinds that learn a vector per document use
    them.
    """

    document_id: str
    title: str
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    queries: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.document_id), "a document needs an id, and this one's is empty")
        require(bool(self.title or self.text), f"document {self.document_id!r} has neither title nor text to search")

    @property
    def content_hash(self) -> str:
        """SHA-256 of all but the id; two puts of equal content change a document once."""
        return content_hash(self.title, self.text, canonical_fields(self.fields), self.queries)


@dataclass(frozen=True)
class Remove:
    """Take a document out."""

    document_id: str


Change = Put | Remove


def net_effect(changes: Iterable[Change]) -> list[Change]:
    """The last change of each document, by ascending id: so the order of different documents does not matter.

    >>> net_effect([Put("b", "B", "old"), Remove("a"), Put("b", "B", "new")])
    [Remove(document_id='a'), Put(document_id='b', title='B', text='new', fields={}, queries=())]
    """
    last = {change.document_id: change for change in changes}
    return [last[document_id] for document_id in sorted(last)]


def canonical_fields(fields: Mapping[str, Any]) -> str:
    """Fields as the corpus keeps them: JSON with sorted keys, values that JSON lacks as text.

    >>> canonical_fields({"b": 1, "a": "x"})
    '{"a": "x", "b": 1}'
    """
    return json.dumps(fields, sort_keys=True, ensure_ascii=False, default=str)


def content_hash(title: str, text: str, fields: str, queries: Iterable[str] = ()) -> str:
    """SHA-256 of a document's content, in hex; without queries it is the corpus's `content_hash`."""
    return hash_text("\0".join((title, text, fields, *queries)))
