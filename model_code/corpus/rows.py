"""What a source yields: rows with their place of origin and our names for its columns, and those
that are refused, kept with their reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from model_code.corpus.settings import ColumnSettings
from model_code.errors import FreshetError

_ID = "_id"  # the default of columns.document_id and query_id, in whose place `id` will do
RELEVANCE = "relevance"  # our name for it, and the usual one of qrels that do not call it `score`
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
    "bad relevance",
    "bad split",
    "binary file",
    "huge file",
    "unreadable file",
    "conflicting split",
    "dangling qrel",
]


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a table and where it stands, as NAME:NUMBER, such as `corpus.jsonl:17`.

    Sources name the values as we do: documents `id, title, text, date, fields`, queries `id, text,
    answers`, qrels `query_id, document_id, relevance, split`. Values are as found: nothing is
    checked yet.
    """

    table: Table
    location: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that is refused: why (`reason`, a closed vocabulary), what exactly (`detail`), and how
    it begins.
    """

    table: Table
    location: str
    reason: Reason
    detail: str
    excerpt: str
    record_id: str | None = None


@dataclass(frozen=True)
class Rejection:
    """A row that was refused: its number in its source (from 1), the id that it seems to have, and
    why.
    """

    row: int
    document_id: str | None
    reason: str


def map_columns(row: Row | RefusedRow, columns: ColumnSettings) -> Row | RefusedRow:
    """The row with our names for its columns; a document's remaining columns are gathered under
    `fields`.

    An id may also be called `id`. A query's answers may also lie in a mapping `metadata`, as BEIR's
    queries.jsonl keeps what is beside the text. Where no setting names the column of the relevance
    and `score` is missing, it is `relevance`: read as 1, a 0 would count.
    """
    if isinstance(row, RefusedRow):
        return row
    names = columns.of(row.table)
    if "id" in row.values and names.get("id") == _ID and _ID not in row.values:
        names["id"] = "id"
    values = {ours: row.values[theirs] for ours, theirs in names.items() if theirs in row.values}
    if (
        row.table == "qrels"
        and columns.relevance == ColumnSettings().relevance
        and RELEVANCE in row.values
    ):
        values.setdefault(RELEVANCE, row.values[RELEVANCE])
    if row.table == "documents":
        values["fields"] = {
            key: value for key, value in row.values.items() if key not in names.values()
        }
    if "answers" in names and values.get("answers") is None:
        beside = row.values.get("metadata")
        if isinstance(beside, Mapping) and names["answers"] in beside:
            values["answers"] = beside[names["answers"]]
    return Row(row.table, row.location, values)


def require_columns(
    rows: Iterable[Row | RefusedRow],
    table: Table,
    columns: ColumnSettings,
    name: str,
    any_id: bool = False,
) -> None:
    """Raise `FreshetError` unless each column that `columns` expects of `table` occurs in one of
    its rows.

    rows: as they are found, under the source's own names, read only until all are seen; without any
    there is nothing to say. name: what the error calls the table. any_id: a column `id` will do for
    the id, whatever the settings call it.
    """
    missing, headers = columns.expected(table), dict[str, None]()
    for row in rows:
        if isinstance(row, RefusedRow):
            continue
        # where a query's answers may be
        beside = row.values.get("metadata") if table == "queries" else None
        headers |= dict.fromkeys([*row.values, *(beside if isinstance(beside, Mapping) else ())])
        called_id = any_id or (columns.of(table).get("id") == _ID and _ID not in headers)
        has_id = "id" in headers and called_id
        satisfied = {*headers, columns.of(table)["id"]} if has_id else headers
        missing = {key: column for key, column in missing.items() if column not in satisfied}
        if not missing:
            return
    if headers:
        sought = ", ".join(f"{column!r} (corpus.columns.{key})" for key, column in missing.items())
        raise FreshetError(
            f"{name} has no column {sought}; it has: {printable(', '.join(map(str, headers)), 300)}. "
            "Say under corpus.columns in params.yaml which column holds what"
        )


class RowError(Exception):
    """The reason why a row is refused, raised by the code that checks it."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


def printable(value: Any, length: int = 120) -> str:
    """The beginning of `value` as text that any file or database can hold: what is no UTF-8, and
    NUL, become "?".

    >>> printable("caf\\udce9 au lait", 6)
    'caf? a'
    """
    return str(value)[:length].replace("\0", "?").encode("utf-8", "replace").decode("utf-8")


T = TypeVar("T")
SHOWN_OFFENDERS = 3
# of values inside of values; how many more Python can read and write depends on who calls
MOST_LEVELS = 100


class Quarantine:
    """The rows that were refused, and how many were read from each table; no row leaves by another
    door.
    """

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.refused: list[RefusedRow] = []

    def admit(self, rows: Iterable[Row | RefusedRow], check: Callable[[Row], T]) -> Iterator[T]:
        """Yield `check(row)` of each sound row, in order; what is malformed, or raises `RowError`, is
        quarantined.
        """
        for row in rows:
            self.read[row.table] += 1
            if isinstance(row, RefusedRow):
                self.refused.append(row)
                continue
            if _is_deeper(row.values, MOST_LEVELS):
                detail = f"values are nested more than {MOST_LEVELS} deep"
                self.refused.append(RefusedRow(row.table, row.location, "bad JSON", detail, ""))
                continue
            try:
                yield check(row)
            except RowError as unfit:
                self.refuse(row, unfit)

    def refuse(self, row: Row, unfit: RowError) -> None:
        """Quarantine a row that was read, for the reason in `unfit`."""
        record_id = row.values.get("id", row.values.get("query_id"))
        shown_id = None if record_id is None else printable(record_id) or None
        detail, excerpt = printable(unfit.detail, 300), printable(dict(row.values))
        self.refused.append(
            RefusedRow(row.table, row.location, unfit.reason, detail, excerpt, shown_id)
        )

    def reasons(self) -> dict[str, int]:
        """How many rows were refused for each reason that occurred, as {"documents: empty text":
        2}.
        """
        return dict(sorted(Counter(f"{row.table}: {row.reason}" for row in self.refused).items()))

    def enforce(self, limit: float) -> None:
        """Raise `FreshetError` naming the first offenders if of any table more than the share
        `limit` was refused.
        """
        for table in ("documents", "queries", "qrels"):
            refused = [row for row in self.refused if row.table == table]
            if len(refused) > limit * self.read[table]:
                first = "; ".join(
                    f"{row.location} {row.reason} ({row.detail})"
                    for row in refused[:SHOWN_OFFENDERS]
                )
                raise FreshetError(
                    f"{len(refused):,} of {self.read[table]:,} rows of {table} are malformed, more than the share "
                    f"corpus.quarantine_limit = {limit} allows. First: {first}. "
                    "Mend the source and run `freshet ingest`, or raise the limit."
                )


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether more than `levels` objects and lists lie in each other.

    >>> _is_deeper({"fields": [1]}, 2), _is_deeper({"fields": [{}]}, 2)
    (False, True)
    """
    inside = [value]
    for _ in range(levels + 1):
        inside = [node for node in inside if isinstance(node, (dict, list, tuple))]
        if not inside:
            return False
        inside = [
            child
            for node in inside
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    return True
