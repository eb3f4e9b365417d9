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

PAPER = "IncDSI as published"
CENTRED = "IncDSI centred on the encoding"
# Encodings with the length that training V measured.
DEFAULT = "default add"


def _all_methods() -> Mapping[str, Method]:
    return METHODS


def _all_ways() -> Mapping[str, Way]:
    return WAYS


@dataclass(frozen=True)
class ProtocolPlan:
    """Plan of the measurements.

    Attributes:
        methods: Methods without training.
        ways: Ways of adding that train.
        trials: Settings tried per method.
        orders: See `AdditionOrders`.
        learned_orders: Orders for ways that train.
        steps: See `AdditionOrders`.
        losses: Accepted losses of old documents, for each of which settings are chosen.
        whole: See `AdditionOrders`.
    """

    methods: Mapping[str, Method] = field(default_factory=_all_methods)
    ways: Mapping[str, Way] = field(default_factory=_all_ways)
    trials: int = 50
    orders: int = 10
    learned_orders: int = 1
    steps: Sequence[int] = STEPS
    losses: Sequence[float] = ()
    whole: int | None = None


class Protocol:
    """Measure `plan` in `space`, each part on demand."""

    def __init__(self, space: Space, plan: ProtocolPlan) -> None:
        self.space = space
        self.plan = plan
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
        plan = self.plan
        methods: dict[str, Method] = {}
        if self.default != ENCODED:
            methods[DEFAULT] = Method(fixed=(self.default,))
        methods.update(plan.methods)
        return frontier(
            self.bench, self.arrivals, methods, plan.trials, self.space.seed, plan.losses
        )

    def learned(self) -> tuple[list[Point], Found | None]:
        """Return the points of the ways that train, and the result of retraining on all documents.

        The result is None if retraining is not among the ways.
        """
        points, final_results = measure_ways(
            self.space, self.arrivals, self.plan.ways, self.plan.learned_orders
        )
        return points, final_results.get(RETRAINING)

    def costs(self, points: Sequence[Point], retrained: Found) -> dict[str, Difference]:
        """Return old documents' hit@1 after retraining less that after adding.

        The rows are the default and each method's settings.
        """
        results = {DEFAULT: self.arrivals.found(self.default)[-1]}
        results.update(self._best_results(points))
        return {name: adding_cost(result, retrained) for name, result in results.items()}

    def front(self, method: Method) -> list[Point]:
        """Return all undominated settings of the tuning split.

        All documents are added in their own order.
        """
        added = self.arrivals.after[-1]
        before = self.arrivals.judge.before
        points = []
        for trial in self._undominated_trials(method):
            result = self.arrivals.found(trial.settings)[-1]
            points.append(Point.over_orders("", BEST, trial.settings, added, before, [result]))
        return points

    def matched(self, ours: Method = OURS, paper: Method = INCDSI) -> list[Matched]:
        """Compare the paper's undominated settings with ours at the same loss of old documents."""
        return at_matched_loss(self._undominated_results(paper), self._undominated_results(ours))

    def against_plain(self, points: Sequence[Point]) -> dict[str, tuple[Difference, Difference]]:
        """Return old and new MRR@10 less the plain encoding's, with all documents added.

        Each method has its best settings.
        """
        plain_old, plain_new = self.arrivals.found(ENCODED)[-1]
        differences = {}
        for name, (old, new) in self._best_results(points).items():
            differences[name] = (Difference.of(old, plain_old), Difference.of(new, plain_new))
        return differences

    def _best_results(self, points: Sequence[Point]) -> dict[str, Found]:
        """Return the results of each method's best settings, with all documents added."""
        results = {}
        for point in points:
            if point.chosen_for == BEST and point.settings is not None:
                results[point.method] = self.arrivals.found(point.settings)[-1]
        return results

    def _undominated_results(self, method: Method) -> list[Found]:
        trials = self._undominated_trials(method)
        return [self.arrivals.found(trial.settings)[-1] for trial in trials]

    def _undominated_trials(self, method: Method) -> list[Trial]:
        return undominated(tried(method, self.bench, self.plan.trials, self.space.seed))
