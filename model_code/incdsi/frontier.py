"""IncDSI's protocol: how well old and new documents are found as documents come, for each way of adding them.

Every method is shown as a whole trade-off: on a tuning split its settings are tried, and of those that no other beats
in both MRR@10 some are chosen; only these are then measured on the test split, after a few, many and all additions, in
several orders of arrival. No setting is chosen by what it does on the test split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from model_code.incdsi.methods import METHODS, Method, tried
from model_code.incdsi.ranks import Quality
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.trials import Split, Trial, TrialBench
from model_code.settings import require

LOSSES = (0.0, 0.01, 0.02, 0.04, 0.08)
BEST = "best F-beta"


@dataclass(frozen=True)
class Point:
    """One method with the settings chosen for one purpose, after `added` additions, means over `orders`.

    chosen_for: "best F-beta", or the loss of old documents' MRR@10 that was allowed on the tuning split.
    before, old, new: old documents before any addition; old and new ones after. deviations: of `new`, over the orders.
    """

    method: str
    chosen_for: str
    settings: IncDsiSettings
    added: int
    orders: int
    before: Quality
    old: Quality
    new: Quality
    deviations: Quality

    def row(self) -> dict[str, Any]:
        """The numbers on one level, for a table: `old_hit_at_1`, `new_mrr_at_10`, `old_loss_hit_at_1`, ..."""
        row: dict[str, Any] = {"method": self.method, "chosen_for": self.chosen_for, "added": self.added}
        for name in ("before", "old", "new", "deviations"):
            row |= {f"{name}_{measure}": value for measure, value in asdict(getattr(self, name)).items()}
        return row | {"old_loss_hit_at_1": self.before.hit_at_1 - self.old.hit_at_1, "orders": self.orders}


def frontier(
    state: IncDsiState,
    tuning: Split,
    test: Split,
    methods: Mapping[str, Method] = METHODS,
    trials: int = 50,
    steps: Sequence[int] = (10, 100, 1000),
    orders: int = 10,
    seed: int = 0,
    beta: float = 5.0,
) -> list[Point]:
    """All points of `methods`, each with up to `trials` settings on the tuning split.

    state: the old documents; left as it is. steps: numbers of additions to look at besides all of them.
    """
    require(orders >= 1 and trials >= 1, f"orders is {orders} and trials is {trials}, but both must be at least 1")
    bench, judge = TrialBench(state, tuning, beta), TrialBench(state, test, beta)
    random = np.random.default_rng(seed)
    arrivals = [random.permutation(len(test.documents)) for _ in range(orders)]
    after = [step for step in sorted(set(steps)) if step < len(test.documents)] + [len(test.documents)]
    found, measured = [], {}
    for name, method in methods.items():
        chosen = choices(tried(method, bench, trials, seed), bench.before.mrr_at_10)
        for purpose, settings in chosen.items():
            if settings not in measured:
                measured[settings] = _measure(judge, settings, arrivals, after)
            found += [Point(name, purpose, settings, **one) for one in measured[settings]]
    return found


def choices(trials: Sequence[Trial], before: float) -> dict[str, IncDsiSettings]:
    """Settings by purpose: the best F-beta, and for each loss in `LOSSES` the best for new documents within it.

    before: the old documents' MRR@10 before anything was added. Losses that no trial keeps within are left out.
    """
    chosen = {BEST: max(trials, key=lambda trial: trial.score).settings}
    for loss in LOSSES:
        within = [trial for trial in trials if before - trial.old <= loss + 1e-12]
        if within:
            chosen[f"loss at most {loss:g}"] = max(within, key=lambda trial: trial.new).settings
    return chosen


def _measure(
    judge: TrialBench, settings: IncDsiSettings, arrivals: Sequence[np.ndarray], after: Sequence[int]
) -> list[dict[str, Any]]:
    """What a `Point` says of `settings`, after each number of additions in `after`."""
    qualities: list[list[tuple[Quality, Quality]]] = [[] for _ in after]
    for order in arrivals:
        vectors = np.stack([one.vector for one in judge.add(settings, order)])  # later ones never change earlier ones
        for found, count in zip(qualities, after, strict=True):
            old, new = judge.ranks.reciprocal_ranks(vectors[:count], order[:count])
            found.append((Quality.of(old), Quality.of(new)))
    return [
        {
            "added": count,
            "orders": len(arrivals),
            "before": judge.before,
            "old": _over_orders([old for old, _ in found], np.mean),
            "new": _over_orders([new for _, new in found], np.mean),
            "deviations": _over_orders([new for _, new in found], np.std),
        }
        for found, count in zip(qualities, after, strict=True)
    ]


def _over_orders(qualities: Sequence[Quality], of: Any) -> Quality:
    values = np.array([list(asdict(one).values()) for one in qualities])  # (orders, 3)
    return Quality(*of(values, axis=0).tolist())
