"""IncDSI's protocol in one space: every way of adding, its useful settings, and requirements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.incdsi_frontier.frontier import (
    BEST,
    STEPS,
    AdditionOrders,
    Found,
    Point,
    frontier,
    undominated,
)
from experiments.incdsi_frontier.gates import Difference, Matched, adding_cost, at_matched_loss
from experiments.incdsi_frontier.methods import ENCODED, INCDSI, METHODS, OURS, Method, tried
from experiments.incdsi_frontier.retraining import RETRAINING, WAYS, Way, measure_ways
from experiments.incdsi_frontier.spaces import Space
from experiments.incdsi_frontier.tuning import Trial, TrialBench

PAPER, CENTRED = "IncDSI as published", "IncDSI centred on the encoding"
# Encodings with the length that training V measured.
DEFAULT = "default add"


@dataclass(frozen=True)
class ProtocolPlan:
    """Plan of the measurements.

    trials: Settings tried per method.
    orders, steps, whole: See `AdditionOrders`.
    learned_orders: Orders for ways that train.
    """

    methods: Mapping[str, Method] = field(default_factory=lambda: METHODS)
    ways: Mapping[str, Way] = field(default_factory=lambda: WAYS)
    trials: int = 50
    orders: int = 10
    learned_orders: int = 1
    steps: Sequence[int] = STEPS
    losses: Sequence[float] = ()
    whole: int | None = None


class Protocol:
    """Measure `plan` in `space`, each part on demand."""

    def __init__(self, space: Space, plan: ProtocolPlan) -> None:
        self.space, self.plan = space, plan
        tuning, test = space.encoded.splits()
        state = space.state()
        self.default = ENCODED.replace(prior_scale=space.encoding_scale(state.vectors.view))
        self.bench = TrialBench(state, tuning)
        self.arrivals = AdditionOrders(
            TrialBench(state, test), plan.orders, plan.steps, space.seed, plan.whole
        )

    def points(self) -> list[Point]:
        """Return every method with the settings that the tuning split chose, and the default.

        The default is left out where it equals the encoding.
        """
        plan, default = self.plan, {DEFAULT: Method(fixed=(self.default,))}
        methods = plan.methods if self.default == ENCODED else {**default, **plan.methods}
        return frontier(
            self.bench, self.arrivals, methods, plan.trials, self.space.seed, plan.losses
        )

    def learned(self) -> tuple[list[Point], Found | None]:
        """Return the points of the ways that train, and the result of retraining on all documents.

        The result is None if retraining is not among the ways.
        """
        points, last = measure_ways(
            self.space, self.arrivals, self.plan.ways, self.plan.learned_orders
        )
        return points, last.get(RETRAINING)

    def costs(self, points: Sequence[Point], retrained: Found) -> dict[str, Difference]:
        """Return old documents' hit@1 after retraining less that after adding.

        The rows are the default and each method's settings.
        """
        ways = {DEFAULT: self.arrivals.found(self.default)[-1], **self._best_found(points)}
        return {name: adding_cost(found, retrained) for name, found in ways.items()}

    def front(self, method: Method) -> list[Point]:
        """Return all undominated settings of the tuning split.

        All documents are added in their own order.
        """
        found = [
            (trial.settings, self.arrivals.found(trial.settings)[-1])
            for trial in self._best(method)
        ]
        judge = self.arrivals.judge
        return [
            Point.over_orders("", BEST, own, self.arrivals.after[-1], judge.before, [one])
            for own, one in found
        ]

    def matched(self, ours: Method = OURS, paper: Method = INCDSI) -> list[Matched]:
        """Compare the paper's undominated settings with ours at the same loss of old documents."""
        sides = (
            [self.arrivals.found(trial.settings)[-1] for trial in self._best(one)]
            for one in (paper, ours)
        )
        return at_matched_loss(*sides)

    def against_plain(self, points: Sequence[Point]) -> dict[str, tuple[Difference, Difference]]:
        """Return old and new MRR@10 less the plain encoding's, with all documents added.

        Each method has its best settings.
        """
        plain = self.arrivals.found(ENCODED)[-1]
        found = self._best_found(points)
        return {
            name: (Difference.of(own[0], plain[0]), Difference.of(own[1], plain[1]))
            for name, own in found.items()
        }

    def _best_found(self, points: Sequence[Point]) -> dict[str, Found]:
        best = {
            one.method: one.settings
            for one in points
            if one.chosen_for == BEST and one.settings is not None
        }
        return {name: self.arrivals.found(settings)[-1] for name, settings in best.items()}

    def _best(self, method: Method) -> list[Trial]:
        return undominated(tried(method, self.bench, self.plan.trials, self.space.seed))
