"""Which events and queries a drift report is about: what came since the report before."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from model_code.live.generation import Generation
from model_code.manifest import MANIFEST

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger


@dataclass(frozen=True)
class Batch:
    """The events `first` to `last`, and what was asked after `after` and up to `until`, in seconds since 1970."""

    first: int
    last: int
    after: float = 0.0
    until: float = inf


def batches(ledger: Ledger | None, window: int, watermark: int, trained: int = 0) -> list[Batch]:
    """The batches of the last `window` reports, oldest first, and what came after them up to the event `watermark`.

    trained: the last event whose document the retriever may have been trained with; none up to it is an arrival.
    """
    found, after, first = [], 0.0, 1
    for report in reversed(ledger.last_drift(window + 1) if ledger else []):
        found.append(Batch(max(report["first_event"], trained + 1), report["last_event"], after, report["recorded"]))
        after, first = report["recorded"], report["last_event"] + 1
    later = [batch for batch in found if batch.last > trained]
    return [*later[-window:], Batch(max(first, trained + 1), watermark, after)]


def trained_until(generation: Generation) -> int:
    """The last event of the ledger whose document the retriever may have been trained with: the watermark of the build
    that was opened, or of the base where that is deleted."""
    build = generation.sibling(generation.build)
    return Generation.read(build if (build / MANIFEST).is_file() else generation.sibling(generation.base)).watermark
