"""The quarantine: every malformed row is kept with its reason and counted; too many of them fail the stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

import pandas as pd

from model_code.corpus.rows import Malformed, Row, Table, Unfit, printable
from model_code.corpus.tables import frame
from model_code.errors import FreshetError

T = TypeVar("T")
SHOWN_OFFENDERS = 3
MOST_LEVELS = 100  # of values inside of values; how many more Python can read and write depends on who calls


class Quarantine:
    """Counts the rows read from each table and keeps those that were refused; no row leaves by another door."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.refused: list[Malformed] = []

    def admit(self, rows: Iterable[Row | Malformed], check: Callable[[Row], T]) -> Iterator[T]:
        """Yield `check(row)` of each sound row, in order; what is malformed, or raises `Unfit`, is quarantined."""
        for row in rows:
            self.read[row.table] += 1
            if isinstance(row, Malformed):
                self.refused.append(row)
                continue
            if _is_deeper(row.values, MOST_LEVELS):
                detail = f"values are nested more than {MOST_LEVELS} deep"
                self.refused.append(Malformed(row.table, row.location, "bad JSON", detail, ""))
                continue
            try:
                yield check(row)
            except Unfit as unfit:
                self.refuse(row, unfit)

    def refuse(self, row: Row, unfit: Unfit) -> None:
        """Quarantine a row that was read, for the reason in `unfit`."""
        record_id = row.values.get("id", row.values.get("query_id"))
        known = None if record_id is None else printable(record_id) or None
        excerpt = printable(dict(row.values))
        self.refused.append(
            Malformed(row.table, row.location, unfit.reason, printable(unfit.detail, 300), excerpt, known)
        )

    def count(self, table: Table) -> int:
        """How many rows of `table` are in quarantine."""
        return sum(row.table == table for row in self.refused)

    def reasons(self) -> dict[str, int]:
        """How many rows were refused for each reason that occurred, as {"documents: empty text": 2}."""
        return dict(sorted(Counter(f"{row.table}: {row.reason}" for row in self.refused).items()))

    def frame(self) -> pd.DataFrame:
        """The quarantine table, in the order in which rows were refused."""
        return frame("quarantine", [asdict(row) for row in self.refused])

    def enforce(self, limit: float) -> None:
        """Raise `FreshetError` naming the first offenders if of any table more than the share `limit` was refused."""
        for table in ("documents", "queries", "qrels"):
            refused = [row for row in self.refused if row.table == table]
            if len(refused) > limit * self.read[table]:
                first = "; ".join(f"{row.location} {row.reason} ({row.detail})" for row in refused[:SHOWN_OFFENDERS])
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
        inside = [one for one in inside if isinstance(one, (dict, list, tuple))]
        if not inside:
            return False
        inside = [each for one in inside for each in (one.values() if isinstance(one, dict) else one)]
    return True
