"""IncDSI's protocol in one space: every way of adding, every setting that is worth it, and what
must be shown.
"""

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
DEFAULT = "default add"  # encodings, of the length that training V measured


@dataclass(frozen=True)
class ProtocolPlan:
    """What is measured.

    trials: settings tried per method. orders, steps, whole: see `AdditionOrders`; learned_orders:
    for ways that train.
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
    """Measures `plan` in `space`; each part when it is asked for."""

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
        """Every method with the settings that the tuning split chose, and the default where it is
        not the encoding.
        """
        plan, default = self.plan, {DEFAULT: Method(fixed=(self.default,))}
        methods = plan.methods if self.default == ENCODED else {**default, **plan.methods}
        return frontier(
            self.bench, self.arrivals, methods, plan.trials, self.space.seed, plan.losses
        )

    def learned(self) -> tuple[list[Point], Found | None]:
        """The ways that train, and what retraining finds once all are there; None where it is not
        among them.
        """
        points, last = measure_ways(
            self.space, self.arrivals, self.plan.ways, self.plan.learned_orders
        )
        return points, last.get(RETRAINING)

    def costs(self, points: Sequence[Point], retrained: Found) -> dict[str, Difference]:
        """Old documents' hit@1 after retraining less that after adding: by default, and with each
        method's settings.
        """
        ways = {DEFAULT: self.arrivals.found(self.default)[-1], **self._best_found(points)}
        return {name: adding_cost(found, retrained) for name, found in ways.items()}

    def front(self, method: Method) -> list[Point]:
        """All additions, in the documents' own order, with every setting that none beats on the
        tuning split.
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
        """Each of the paper's undominated settings, against ours at the same loss of old documents."""
        sides = (
            [self.arrivals.found(trial.settings)[-1] for trial in self._best(one)]
            for one in (paper, ours)
        )
        return at_matched_loss(*sides)

    def against_plain(self, points: Sequence[Point]) -> dict[str, tuple[Difference, Difference]]:
        """For the best settings of each method, old and new MRR@10 against the plain encoding, all
        added.
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
