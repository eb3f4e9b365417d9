"""What a source yields: rows with their place of origin, and lines that could not even be read as a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Table = Literal["documents", "queries", "qrels"]
Reason = Literal[
    "bad JSON",
    "bad line",
    "invalid UTF-8",
    "missing column",
    "wrong type",
    "missing id",
    "bad id",
    "duplicate id",
    "empty text",
    "huge text",
    "bad date",
    "bad relevance",
    "bad split",
    "conflicting split",
    "dangling qrel",
]


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a table and where it stands, such as `corpus.jsonl:17`.

    Sources name the values as we do: documents `id, title, text, date, fields`, queries `id, text, answers`, qrels
    `query_id, document_id, relevance, split`. Values are as found: nothing is checked yet.
    """

    table: Table
    location: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A row that is refused: why (`reason`, a closed vocabulary), what exactly (`detail`), and how it begins."""

    table: Table
    location: str
    reason: Reason
    detail: str
    excerpt: str
    record_id: str | None = None


class Unfit(Exception):
    """Raised by the code that checks a row, to say why it is refused."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


def printable(value: Any, length: int = 120) -> str:
    """The beginning of `value` as text that any file or database can hold: what is no UTF-8, and NUL, become "?".

    >>> printable("caf\\udce9 au lait", 6)
    'caf? a'
    """
    return str(value)[:length].replace("\0", "?").encode("utf-8", "replace").decode("utf-8")
