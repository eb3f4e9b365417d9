"""Thresholds of a report: from the values of its measures and their null distributions to what trips.

The measures of a report share one chance of a false alarm by Bonferroni's rule: of k measures with a null distribution
each is tested at alpha / k. Holm's procedure would not find the first alarm any sooner, and with Bonferroni's every
threshold is a fixed number that can stand beside the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

from model_code.errors import FreshetError

Tail = Literal["high", "low"]
Scope = Literal["batch", "window"]
QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)
MADE, ASKED = "new_quality", "asked_quality"  # the measures of harm, which retraining would mend, by kind of query


@dataclass(frozen=True, eq=False)
class Observation:
    """A value and what it would be without drift. tail: on which side of `null` (B,) drift lies."""

    name: str
    value: float
    null: np.ndarray
    tail: Tail = "high"
    scope: Scope = "batch"
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """A judged measure.

    threshold: the value must lie beyond it, not on it, to trip; None where a limit does not apply yet.
    null: quantiles of the null distribution by level, such as {"0.95": 0.61}; empty where the threshold is a limit
    that the settings name. suspected: beyond the threshold that it would have if the measures of harm that decide
    were all that shares alpha.
    """

    name: str
    value: float
    threshold: float
    null: Mapping[str, float]
    tripped: bool
    detail: Mapping[str, Any]
    suspected: bool = False
    tail: Tail = "high"
    scope: Scope = "batch"

    @property
    def label(self) -> str:
        """Name and scope, unique in a report."""
        return self.name if self.scope == "batch" else f"{self.name} ({self.scope})"


Of = TypeVar("Of", Observation, Measured)


def deciding(measures: Sequence[Of]) -> list[Of]:
    """The measures of harm that decide, of those given.

    What people ask outranks what was cut out of the text: made queries decide nothing where asked ones were measured on
    as many documents. (Made ones saw harm in real documents that asked ones find better than old ones, and none where
    people ask in other words than a text uses.)
    """
    asked = {each.scope: each.detail["documents"] for each in measures if each.name == ASKED}
    made = [each for each in measures if each.name == MADE and each.detail["documents"] > asked.get(each.scope, 0)]
    return [*made, *(each for each in measures if each.name == ASKED)]


def judge(observations: Sequence[Observation], alpha: float) -> tuple[Measured, ...]:
    """Each observation at alpha / k of k, so that the chance of any false alarm is at most alpha."""
    level = alpha / max(len(observations), 1)
    of_harm = alpha / max(len(deciding(observations)), 1)
    return tuple(_judged(observation, level, of_harm) for observation in observations)


def critical_value(null: np.ndarray, level: float, tail: Tail) -> float:
    """The value that must be passed for p = (1 + b) / (1 + B) <= level, where b of the B draws in `null` reach it.

    That is the k-th most extreme draw, k = floor(level (1 + B)). With value and draws exchangeable the chance to pass
    it is at most `level`, whatever their distribution. FreshetError if B is too small for the level.

    >>> critical_value(np.arange(1, 100), 0.05, "high"), critical_value(np.arange(1, 100), 0.05, "low")
    (95.0, 5.0)
    """
    rank = int(level * (1 + len(null)) + 1e-9)
    if rank < 1:
        raise FreshetError(
            f"{len(null)} draws cannot show a chance of {level:.4g}, which takes {int(np.ceil(1 / level)) - 1}"
        )
    ascending = np.sort(null)
    return float(ascending[-rank] if tail == "high" else ascending[rank - 1])


def _judged(seen: Observation, level: float, of_harm: float) -> Measured:
    threshold = critical_value(seen.null, level, seen.tail)
    reached = seen.null >= seen.value if seen.tail == "high" else seen.null <= seen.value
    p = float((1 + reached.sum()) / (1 + len(seen.null)))
    return Measured(
        seen.name,
        float(seen.value),
        threshold,
        {str(q): float(np.quantile(seen.null, q)) for q in QUANTILES},
        _beyond(seen.value, threshold, seen.tail),
        {**seen.detail, "p": p, "level": level},
        _beyond(seen.value, critical_value(seen.null, of_harm, seen.tail), seen.tail),
        seen.tail,
        seen.scope,
    )


def _beyond(value: float, threshold: float, tail: Tail) -> bool:
    return bool(value > threshold if tail == "high" else value < threshold)
