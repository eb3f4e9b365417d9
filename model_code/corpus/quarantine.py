"""The quarantine: refused rows with their reasons, and the number of rows that were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from model_code.corpus.cleaning import read_id
from model_code.corpus.rows import RefusedRow, Row, RowError, Table, printable
from model_code.errors import FreshetError

T = TypeVar("T")

# Deepest nesting of the values of a row, in levels. A fixed limit refuses the same rows everywhere.
# Python's own recursion limit depends on how deep the caller is.
MAX_NESTING_LEVELS = 100

# Longest detail of a refusal that is kept, in characters.
MAX_DETAIL_CHARACTERS = 300

# Number of refused rows that the error of `Quarantine.enforce` shows.
OFFENDERS_IN_ERROR = 3


class Quarantine:
    """Collects refused rows, so that every row that is read is either admitted or listed here.

    Attributes:
        read: Number of rows that were read, by table.
        refused: Rows that were refused, in the order in which they were read.
    """

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.refused: list[RefusedRow] = []

    def admit(self, rows: Iterable[Row | RefusedRow], check: Callable[[Row], T]) -> Iterator[T]:
        """Yield the result of `check(row)` for each row that is not refused, in order.

        A row is quarantined if it was refused before, if its values are nested too deep, or if
        `check` raises `RowError`.
        """
        for row in rows:
            self.read[row.table] += 1
            if isinstance(row, RefusedRow):
                self.refused.append(row)
                continue
            if _is_deeper(row.values, MAX_NESTING_LEVELS):
                self._refuse_deep(row)
                continue
            try:
                yield check(row)
            except RowError as error:
                self.refuse(row, error)

    def refuse(self, row: Row, error: RowError) -> None:
        """Quarantine a row, with the reason and the detail of `error`."""
        record_id, has_valid_id = _identify(row.values)
        self.refused.append(
            RefusedRow(
                row.table,
                row.location,
                error.reason,
                detail=printable(error.detail, MAX_DETAIL_CHARACTERS),
                excerpt=printable(dict(row.values)),
                record_id=record_id,
                has_valid_id=has_valid_id,
            )
        )

    def extend(self, table: Table, rows_read: int, refused: Sequence[RefusedRow]) -> None:
        """Add the refused rows of a table that was cleaned already, and its number of rows."""
        self.read[table] += rows_read
        self.refused.extend(refused)

    def reasons(self) -> dict[str, int]:
        """Return the number of refused rows by reason, such as {"documents: empty text": 2}."""
        counts = Counter(f"{row.table}: {row.reason}" for row in self.refused)
        return dict(sorted(counts.items()))

    def enforce(self, limit: float) -> None:
        """Check that each table has few enough refused rows.

        Args:
            limit: The largest share of refused rows, `corpus.quarantine_limit`.

        Raises:
            FreshetError: If a table has a larger share. The message shows the first refused rows.
        """
        for table in ("documents", "queries", "qrels"):
            refused = [row for row in self.refused if row.table == table]
            if len(refused) <= limit * self.read[table]:
                continue
            first_rows = refused[:OFFENDERS_IN_ERROR]
            offenders = "; ".join(
                f"{row.location} {row.reason} ({row.detail})" for row in first_rows
            )
            raise FreshetError(
                f"{len(refused):,} of {self.read[table]:,} rows of {table} are malformed, more "
                f"than the share corpus.quarantine_limit = {limit} allows. First: {offenders}. "
                "Correct the source and run `freshet ingest`, or raise the limit."
            )

    def _refuse_deep(self, row: Row) -> None:
        """Quarantine a row that is nested too deep, without an excerpt.

        Formatting such a row could exceed Python's recursion limit.
        """
        record_id, has_valid_id = _identify(row.values)
        detail = f"values are nested more than {MAX_NESTING_LEVELS} deep"
        self.refused.append(
            RefusedRow(
                row.table,
                row.location,
                "bad JSON",
                detail,
                excerpt="",
                record_id=record_id,
                has_valid_id=has_valid_id,
            )
        )


def _identify(values: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Return the id of a row, and whether it is a valid id.

    An invalid id is returned as printable text, or as None if there is none.
    """
    name = "id" if "id" in values else "query_id"
    value = values.get(name)
    if value is None or _is_deeper(value, MAX_NESTING_LEVELS):
        return None, False
    try:
        return read_id(values, name), True
    except RowError:
        return printable(value) or None, False


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether objects and lists are nested in each other more than `levels` deep.

    The value is searched level by level, because recursion could exceed Python's limit.

    >>> _is_deeper({"fields": [1]}, 2), _is_deeper({"fields": [{}]}, 2)
    (False, True)
    """
    level_values = [value]
    for _ in range(levels + 1):
        containers = [item for item in level_values if isinstance(item, (dict, list, tuple))]
        if not containers:
            return False
        level_values = []
        for container in containers:
            items = container.values() if isinstance(container, dict) else container
            level_values.extend(items)
    return True
