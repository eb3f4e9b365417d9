"""Which events and queries a drift report is about: what came since the report before."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger


@dataclass(frozen=True)
class Batch:
    """The events `first` to `last`, and what was asked after `after` and up to `until`, in seconds since 1970."""

    first: int
    last: int
    after: float = 0.0
    until: float = inf


def batches(ledger: Ledger | None, window: int, watermark: int) -> list[Batch]:
    """The batches of the last `window` reports, oldest first, and what came after them up to the event `watermark`."""
    found, after, first = [], 0.0, 1
    for report in reversed(ledger.last_drift(window + 1) if ledger else []):
        found.append(Batch(report["first_event"], report["last_event"], after, report["recorded"]))
        after, first = report["recorded"], report["last_event"] + 1
    return [*found[-window:], Batch(first, watermark, after)]
