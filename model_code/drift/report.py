"""A drift report: every measure of a batch, and of the last batches together, judged as one family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from model_code.drift.calibration import Calibration
from model_code.drift.measured import Measured, Observation, judge
from model_code.drift.observations import Arrivals, Unmeasured, observe
from model_code.drift.quality import Paired, observe_protected
from model_code.drift.settings import DriftSettings, draws_needed
from model_code.drift.shares import measure_growth


@dataclass(frozen=True)
class Report:
    """What was measured of the newest batch (`documents`) and of the last `batches` together (`window_documents`).

    queries: how many logged queries of the newest batch were looked at. reference: a note on what it is compared with.
    """

    documents: int
    batches: int
    window_documents: int
    alpha: float
    measures: tuple[Measured, ...]
    unmeasured: tuple[Unmeasured, ...] = ()
    queries: int = 0
    reference: str = ""

    @property
    def tripped(self) -> tuple[Measured, ...]:
        """The measures beyond their thresholds."""
        return tuple(one for one in self.measures if one.tripped)

    def of(self, *names: str) -> tuple[Measured, ...]:
        """The measures of these names, whether of the batch or of the window."""
        return tuple(one for one in self.measures if one.name in names)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-able values."""
        return asdict(self)


def make_report(
    calibration: Calibration,
    batches: Sequence[Arrivals],
    added: int,
    protected: Mapping[str, Paired] | None = None,
) -> Report:
    """Measure the newest of `batches`, oldest first, and the last `drift.window` of them together.

    added: documents added since the last training, those of `batches` included. protected: by group ("old", "new")
    the scores of queries before and after the additions; fewer than `drift.minimum_batch` are not measured. The chance
    that any measure trips although nothing has changed is at most `drift.alpha`, growth aside, which is counted and
    not tested.
    """
    settings = calibration.settings
    newest, last = batches[-1], batches[-settings.window :]
    found = list(observe(calibration, newest, "batch"))
    if len(last) > 1:
        found += observe(calibration, pooled(last), "window")
    found += [_protected(group, scores, settings) for group, scores in sorted((protected or {}).items())]
    found = list(_testable(found, settings.alpha))
    measures = judge([one for one in found if isinstance(one, Observation)], settings.alpha)
    growth = measure_growth(added, calibration.reference.trained, settings.growth_limit)
    return Report(
        len(newest.vectors),
        len(last),
        sum(len(one.vectors) for one in last),
        settings.alpha,
        (*measures, growth),
        tuple(one for one in found if isinstance(one, Unmeasured)),
        0 if newest.queries is None else len(newest.queries),
        calibration.reference.note,
    )


def _protected(group: str, scores: Paired, settings: DriftSettings) -> Observation | Unmeasured:
    if (count := max(len(scores.before), len(scores.after))) >= settings.minimum_batch:
        return observe_protected(group, scores, settings.quality_margin, settings.draws, settings.seed)
    why = f"{count} protected queries (dev queries whose answers are live as they were) are fewer than"
    return Unmeasured(f"protected_{group}", f"{why} drift.minimum_batch = {settings.minimum_batch}")


def _testable(found: Sequence[Observation | Unmeasured], alpha: float) -> Iterator[Observation | Unmeasured]:
    """Without observations whose null is too short for their share of alpha: a reference lends few runs in order."""
    least = draws_needed(alpha, sum(isinstance(one, Observation) for one in found))
    for one in found:
        if isinstance(one, Unmeasured) or len(one.null) >= least:
            yield one
            continue
        why = f"the reference lends {len(one.null)} runs of so many documents, fewer than {least}: raise"
        yield Unmeasured(one.name, f"{why} drift.reference_documents, or set drift.batches to random", one.scope)


def pooled(batches: Sequence[Arrivals]) -> Arrivals:
    """Batches of one encoder as one."""
    return replace(
        batches[-1],
        vectors=np.concatenate([one.vectors for one in batches]),
        quality=_joined([one.quality for one in batches]),
        asked=_joined([one.asked for one in batches]),
        statuses=tuple(status for one in batches for status in one.statuses),
        queries=_joined([one.queries for one in batches]),
    )


def _joined(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if given else None
