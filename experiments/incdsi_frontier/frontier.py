"""IncDSI's protocol: quality of old and new documents during additions, for each way of adding.

Every method is shown as a whole trade-off. Its settings are tried on a tuning split. Some of those
that no other setting beats in both MRR@10 are chosen. Only these are measured on the test split,
after a few, many and all additions, in several orders of arrival. The test split chooses no
setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.incdsi_frontier.methods import METHODS, Method, tried
from experiments.incdsi_frontier.ranks import Quality
from experiments.incdsi_frontier.tuning import Trial, TrialBench, Way
from model_code.settings import require

LOSSES = (0.0, 0.01, 0.02, 0.04, 0.08)
STEPS, EARLY = (10, 100, 1000), 100
BEST = "best F-beta"
Found = tuple[np.ndarray, np.ndarray]
"""1 / rank, up to rank 10, of the queries for old documents and of those for new ones."""


@dataclass(frozen=True)
class Point:
    """One method with settings for one purpose, after `added` additions; means over `orders`.

    chosen_for: "best F-beta", or the accepted loss of old documents' MRR@10 on the tuning split.
    settings: None for ways that are not IncDSI's.
    before: Old documents before any addition.
    old, new: Old and new documents after the additions.
    deviations: Standard deviations of `new` over the orders.
    """

    method: str
    chosen_for: str
    settings: Way | None
    added: int
    orders: int
    before: Quality
    old: Quality
    new: Quality
    deviations: Quality

    @classmethod
    def over_orders(
        cls,
        method: str,
        chosen_for: str,
        settings: Way | None,
        added: int,
        before: Quality,
        found: Sequence[Found],
    ) -> Point:
        """Return the means over the orders of arrival."""
        old, new = ([Quality.of(one[side]) for one in found] for side in (0, 1))
        means = (_over(old, np.mean), _over(new, np.mean), _over(new, np.std))
        return cls(method, chosen_for, settings, added, len(found), before, *means)

    def row(self) -> dict[str, Any]:
        """Return the numbers as a flat dict for a table.

        Keys are `old_hit_at_1`, `new_mrr_at_10`, `old_loss_hit_at_1`, ...
        """
        row: dict[str, Any] = {
            "method": self.method,
            "chosen_for": self.chosen_for,
            "added": self.added,
        }
        for name in ("before", "old", "new", "deviations"):
            row |= {
                f"{name}_{measure}": value for measure, value in asdict(getattr(self, name)).items()
            }
        return row | {
            "old_loss_hit_at_1": self.before.hit_at_1 - self.old.hit_at_1,
            "orders": self.orders,
        }


class AdditionOrders:
    """Add the documents of a test split in several orders and search after some additions.

    Each order runs once. The first order is the documents' own.

    judge: Bench of the test split.
    steps: Numbers of additions to search after, besides all.
    whole: Number of orders in which all documents are added; None means all orders. The others add
    `EARLY` documents, because the set of documents matters more if there are few.
    """

    def __init__(
        self,
        judge: TrialBench,
        orders: int = 10,
        steps: Sequence[int] = STEPS,
        seed: int = 0,
        whole: int | None = None,
    ) -> None:
        self.whole = orders if whole is None else whole
        require(
            1 <= self.whole <= orders,
            f"orders is {orders} and whole is {whole}, but 1 <= whole <= orders must hold",
        )
        count, random = len(judge.split.documents), np.random.default_rng(seed)
        self.judge, self.after = judge, checkpoints(count, steps)
        self.orders = [np.arange(count), *(random.permutation(count) for _ in range(orders - 1))]
        self._found: dict[tuple[Way, int], list[Found]] = {}

    def found(self, settings: Way, number: int = 0) -> list[Found]:
        """Return the results of order `number` after each number of additions that it reaches."""
        if (settings, number) not in self._found:
            after = (
                self.after
                if number < self.whole
                else [count for count in self.after if count <= EARLY]
            )
            order = self.orders[number][: max(after, default=0)]
            # Later additions change no vector, so one run serves all numbers of additions.
            vectors = [one.vector for one in self.judge.add(settings, order)]
            ranks = self.judge.ranks.reciprocal_ranks
            self._found[settings, number] = [
                ranks(np.stack(vectors[:count]), order[:count]) for count in after
            ]
        return self._found[settings, number]

    def points(self, method: str, purpose: str, settings: Way) -> list[Point]:
        """Return one point for each number of additions, over all orders."""
        each = [self.found(settings, number) for number in range(len(self.orders))]
        return [
            Point.over_orders(method, purpose, settings, added, self.judge.before, values)
            for place, added in enumerate(self.after)
            for values in [[found[place] for found in each if place < len(found)]]
        ]


def frontier(
    bench: TrialBench,
    arrivals: AdditionOrders,
    methods: Mapping[str, Method] = METHODS,
    trials: int = 50,
    seed: int = 0,
    losses: Sequence[float] = LOSSES,
) -> list[Point]:
    """Return all points of `methods`, each with up to `trials` settings on the tuning split.

    losses: Losses of old documents that are accepted on the tuning split of `bench`.
    """
    require(trials >= 1, f"trials is {trials}, but must be at least 1")
    found: list[Point] = []
    for name, method in methods.items():
        chosen = choices(tried(method, bench, trials, seed), bench.before.mrr_at_10, losses)
        for purpose, settings in chosen.items():
            found += arrivals.points(name, purpose, settings)
    return found


def checkpoints(count: int, steps: Sequence[int] = STEPS) -> list[int]:
    """Return the numbers of additions to search after: `steps` below `count`, and `count`.

    >>> checkpoints(500)
    [10, 100, 500]
    """
    return [step for step in sorted(set(steps)) if step < count] + [count]


def choices(
    trials: Sequence[Trial], before: float, losses: Sequence[float] = LOSSES
) -> dict[str, Way]:
    """Return settings by purpose.

    Purposes are the best F-beta and, for each loss in `losses`, the best for new documents within
    it. Losses that every trial exceeds are left out.

    before: The old documents' MRR@10 before any addition.
    """
    chosen = {BEST: max(trials, key=lambda trial: trial.score).settings}
    for loss in losses:
        within = [trial for trial in trials if before - trial.old <= loss + 1e-12]
        if within:
            chosen[f"loss at most {loss:g}"] = max(within, key=lambda trial: trial.new).settings
    return chosen


def undominated(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that no other beats for old and new documents, best for old ones first."""
    kept: list[Trial] = []
    for trial in sorted(trials, key=lambda one: (-one.old, -one.new)):
        if not kept or trial.new > kept[-1].new:
            kept.append(trial)
    return kept


def _over(qualities: Sequence[Quality], of: Any) -> Quality:
    # The shape is (orders, 3).
    values = np.array([list(asdict(one).values()) for one in qualities])
    return Quality(*of(values, axis=0).tolist())
