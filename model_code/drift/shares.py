"""Measures that count: additions whose constraints conflict, and growth since the last training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_code.drift.measured import Measured, Observation, Scope, limited

CONFLICTING = (  # names of model_code.incdsi.documents.Status; queries are left out only where a conflict was proven
    "INFEASIBLE",
    "FITS_WITHOUT_SOME_QUERIES",
    "COMPROMISE_WITHOUT_SOME_QUERIES",
)
REFINED = ("FITS", "COMPROMISE", *CONFLICTING)


def refined(statuses: Sequence[str]) -> list[str]:
    """The statuses, in capitals, of additions that IncDSI refined: others have no constraints to conflict.

    >>> refined(["fits", "NOT_REFINED", "infeasible"])
    ['FITS', 'INFEASIBLE']
    """
    return [status.upper() for status in statuses if status.upper() in REFINED]


def conflict_share(statuses: Sequence[str]) -> float:
    """Share of conflicting ones among refined additions, of which there is at least one.

    >>> conflict_share(["FITS", "FITS", "INFEASIBLE", "NOT_REFINED"]).__round__(3)
    0.333
    """
    chosen = refined(statuses)
    return sum(status in CONFLICTING for status in chosen) / len(chosen)


def observe_conflicts(
    statuses: Sequence[str], limit: float, draws: int, seed: int, scope: Scope = "batch"
) -> Observation:
    """The share beside what chance makes of `limit`: as many additions that each conflict with that probability."""
    count = len(refined(statuses))
    null = np.random.default_rng([seed, count]).binomial(count, limit, draws) / count
    detail = {"limit": limit, "refined": count}
    return Observation("conflicts", conflict_share(statuses), null, "high", scope, detail)


def measure_growth(added: int, trained: int, limit: float) -> Measured:
    """Documents `added` since the last training as a share of those `trained` on.

    >>> measure_growth(30, 100, limit=0.25).tripped
    True
    """
    return limited("growth", added / trained, limit, {"added": added, "trained": trained})
