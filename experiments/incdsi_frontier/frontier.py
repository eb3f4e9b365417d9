"""Measure how well old and new documents are found during additions, for each method of adding.

A method trades the quality of old documents against that of new ones, depending on its settings.
Settings are tried on a tuning split. Some of those that no other setting beats in MRR@10 of both
old and new documents are chosen. Only these are measured on the test split: after a few, many and
all additions, in several orders of arrival. No setting is chosen on the test split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from experiments.incdsi_frontier.methods import METHODS, Method, try_settings
from experiments.incdsi_frontier.ranks import Quality, ReciprocalRanks
from experiments.incdsi_frontier.tuning import AdditionEvaluator, AdditionSettings, Trial
from model_code.settings import require

# For each of these losses of old documents' MRR@10 on the tuning split, the settings with the best
# new documents within the loss are chosen.
LOSSES = (0.0, 0.01, 0.02, 0.04, 0.08)
# Losses that differ by less than this are equal.
LOSS_TOLERANCE = 1e-12
# Numbers of additions after which the search is evaluated.
STEPS = (10, 100, 1000)
# Number of additions in those orders of arrival in which not all documents are added.
EARLY_ADDITIONS = 100
# Purpose of the settings with the best F-beta.
BEST_F_BETA = "best F-beta"


@dataclass(frozen=True)
class Point:
    """Quality of one method with settings for one purpose, after a number of additions.

    Values are means over the orders of arrival.

    Attributes:
        method: Name of the method.
        chosen_for: Purpose of the settings: "best F-beta", or the accepted loss of old documents'
            MRR@10 on the tuning split.
        settings: Settings of the method; None if it has none.
        added: Number of additions.
        orders: Number of orders of arrival.
        before: Quality for old documents before any addition.
        old: Quality for old documents after the additions.
        new: Quality for new documents after the additions.
        deviations: Standard deviations of `new` over the orders.
    """

    method: str
    chosen_for: str
    settings: AdditionSettings | None
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
        settings: AdditionSettings | None,
        added: int,
        before: Quality,
        ranks: Sequence[ReciprocalRanks],
    ) -> Point:
        """Return the means over the orders of arrival.

        Args:
            method: Name of the method.
            chosen_for: Purpose of the settings.
            settings: Settings of the method; None if it has none.
            added: Number of additions.
            before: Quality for old documents before any addition.
            ranks: Reciprocal ranks of each order.
        """
        old = [Quality.of(order_ranks.old) for order_ranks in ranks]
        new = [Quality.of(order_ranks.new) for order_ranks in ranks]
        return cls(
            method,
            chosen_for,
            settings,
            added,
            len(ranks),
            before,
            old=_aggregate(old, np.mean),
            new=_aggregate(new, np.mean),
            deviations=_aggregate(new, np.std),
        )

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
            for measure, value in asdict(getattr(self, name)).items():
                row[f"{name}_{measure}"] = value
        row["old_loss_hit_at_1"] = self.before.hit_at_1 - self.old.hit_at_1
        row["orders"] = self.orders
        return row


class AdditionOrders:
    """Add the documents of a test split in several orders, and evaluate after some additions.

    The first order is the original one. Results are kept, so that each order runs once per setting.

    Args:
        evaluator: Adds the documents of the test split, and evaluates its queries.
        orders: Number of orders.
        steps: Numbers of additions after which the search is evaluated, besides all.
        seed: Seed of the orders.
        whole: Number of orders in which all documents are added; None: all orders. In the other
            orders, `EARLY_ADDITIONS` documents are added. Few documents need more orders, because
            their results depend more on which documents are added.

    Attributes:
        after: Numbers of additions after which the search is evaluated, ascending.
        orders: Numbers of the documents in each order, (orders, documents).
    """

    def __init__(
        self,
        evaluator: AdditionEvaluator,
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
        count = len(evaluator.split.documents)
        random = np.random.default_rng(seed)
        self.evaluator = evaluator
        self.after = addition_counts(count, steps)
        self.orders = [np.arange(count)]
        for _ in range(orders - 1):
            self.orders.append(random.permutation(count))
        self._results: dict[tuple[AdditionSettings, int], list[ReciprocalRanks]] = {}

    def results(self, settings: AdditionSettings, number: int = 0) -> list[ReciprocalRanks]:
        """Return the results of order `number` after each number of additions that it reaches."""
        if (settings, number) not in self._results:
            self._results[settings, number] = self._run_order(settings, number)
        return self._results[settings, number]

    def _run_order(self, settings: AdditionSettings, number: int) -> list[ReciprocalRanks]:
        """Add documents in one order, and evaluate after each number of additions."""
        counts = self.after
        adds_all_documents = number < self.whole
        if not adds_all_documents:
            counts = [count for count in self.after if count <= EARLY_ADDITIONS]
        order = self.orders[number][: max(counts, default=0)]

        # Later additions do not change earlier vectors. One run therefore gives the results after
        # every number of additions.
        vectors = [added.vector for added in self.evaluator.add(settings, order)]
        results = []
        for count in counts:
            added_vectors = np.stack(vectors[:count])
            results.append(self.evaluator.ranks.reciprocal_ranks(added_vectors, order[:count]))
        return results

    def points(self, method: str, purpose: str, settings: AdditionSettings) -> list[Point]:
        """Return one point for each number of additions, over all orders.

        Args:
            method: Name of the method.
            purpose: Purpose of the settings, such as `BEST_F_BETA`.
            settings: Settings of the method.
        """
        all_results = [self.results(settings, number) for number in range(len(self.orders))]
        points = []
        for position, added in enumerate(self.after):
            ranks = []
            for results in all_results:
                # Some orders reach fewer additions than others.
                if position < len(results):
                    ranks.append(results[position])
            before = self.evaluator.before
            points.append(Point.over_orders(method, purpose, settings, added, before, ranks))
        return points


def measure_methods(
    tuning: AdditionEvaluator,
    arrivals: AdditionOrders,
    methods: Mapping[str, Method] = METHODS,
    trials: int = 50,
    seed: int = 0,
    losses: Sequence[float] = LOSSES,
) -> list[Point]:
    """Choose settings for each method on the tuning split, and measure them on the test split.

    Args:
        tuning: Adds the documents of the tuning split, and evaluates its queries.
        arrivals: Orders of the additions of the test split.
        methods: The methods by name.
        trials: Largest number of settings that are tried for each method.
        seed: Seed of the settings.
        losses: Accepted losses of old documents, for each of which settings are chosen.
    """
    require(trials >= 1, f"trials is {trials}, but must be at least 1")
    points: list[Point] = []
    for name, method in methods.items():
        results = try_settings(method, tuning, trials, seed)
        settings_by_purpose = choose_settings(results, tuning.before.mrr_at_10, losses)
        for purpose, settings in settings_by_purpose.items():
            points.extend(arrivals.points(name, purpose, settings))
    return points


def addition_counts(count: int, steps: Sequence[int] = STEPS) -> list[int]:
    """Return the numbers of additions to search after: `steps` below `count`, and `count`.

    >>> addition_counts(500)
    [10, 100, 500]
    """
    counts = [step for step in sorted(set(steps)) if step < count]
    counts.append(count)
    return counts


def choose_settings(
    trials: Sequence[Trial], before: float, losses: Sequence[float] = LOSSES
) -> dict[str, AdditionSettings]:
    """Choose settings for several purposes.

    One purpose is the best F-beta. For each accepted loss, another purpose is the best MRR@10 of
    new documents while old documents lose at most that much. A loss that every trial exceeds is
    left out.

    Args:
        trials: Results on the tuning split.
        before: MRR@10 of the old documents before any addition.
        losses: Accepted losses of old documents' MRR@10.

    Returns:
        The chosen settings by purpose.
    """
    best = max(trials, key=attrgetter("score"))
    settings_by_purpose = {BEST_F_BETA: best.settings}
    for loss in losses:
        # Without the tolerance, rounding could exclude trials with a loss of exactly 0.
        accepted = [trial for trial in trials if before - trial.old <= loss + LOSS_TOLERANCE]
        if accepted:
            best = max(accepted, key=attrgetter("new"))
            settings_by_purpose[f"loss at most {loss:g}"] = best.settings
    return settings_by_purpose


def select_undominated(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that no other trial beats for both old and new documents.

    The trial with the best MRR@10 of old documents comes first.
    """

    def sort_key(trial: Trial) -> tuple[float, float]:
        """Return a key that puts the trials with the best old documents first."""
        return -trial.old, -trial.new

    # A trial is not beaten if it is better for new documents than all trials before it, because
    # all of these are at least as good for old documents.
    front: list[Trial] = []
    for trial in sorted(trials, key=sort_key):
        if not front or trial.new > front[-1].new:
            front.append(trial)
    return front


def _aggregate(qualities: Sequence[Quality], function: Callable[..., np.ndarray]) -> Quality:
    """Apply a function such as `np.mean` to each measure over the orders."""
    # The shape is (orders, 3).
    values = np.array([astuple(quality) for quality in qualities])
    return Quality(*function(values, axis=0).tolist())
