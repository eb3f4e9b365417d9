"""The measurements of the experiment on one collection with one kind of document vectors.

All methods of adding are measured with the settings that the tuning split chose, and compared with
the requirements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.incdsi_frontier.frontier import (
    BEST_F_BETA,
    STEPS,
    AdditionOrders,
    Point,
    measure_methods,
    select_undominated,
)
from experiments.incdsi_frontier.gates import (
    Difference,
    EqualLossComparison,
    adding_cost,
    compare_at_equal_loss,
)
from experiments.incdsi_frontier.methods import ENCODED, INCDSI, METHODS, OURS, Method, try_settings
from experiments.incdsi_frontier.ranks import ReciprocalRanks
from experiments.incdsi_frontier.retraining import (
    RETRAINING,
    TRAINING_METHODS,
    TrainingMethod,
    measure_training_methods,
)
from experiments.incdsi_frontier.spaces import Space
from experiments.incdsi_frontier.tuning import AdditionEvaluator, Trial

PAPER = "IncDSI as published"
CENTRED = "IncDSI centred on the encoding"
# The method of a live collection: encodings, scaled by a factor that is measured when the document
# vectors are trained.
DEFAULT = "default add"


def _all_methods() -> Mapping[str, Method]:
    return METHODS


def _all_training_methods() -> Mapping[str, TrainingMethod]:
    return TRAINING_METHODS


@dataclass(frozen=True)
class ProtocolPlan:
    """Plan of the measurements.

    Attributes:
        methods: Methods of adding that train nothing.
        training_methods: Methods of adding that train, by name.
        trials: Number of settings that are tried per method.
        orders: Number of orders of arrival for methods that do not train.
        learned_orders: Number of orders of arrival for methods that train.
        steps: Numbers of additions after which the search is evaluated, besides all.
        losses: Accepted losses of old documents, for each of which settings are chosen.
        whole: Number of orders in which all documents are added; None: all orders. See
            `AdditionOrders`.
    """

    methods: Mapping[str, Method] = field(default_factory=_all_methods)
    training_methods: Mapping[str, TrainingMethod] = field(default_factory=_all_training_methods)
    trials: int = 50
    orders: int = 10
    learned_orders: int = 1
    steps: Sequence[int] = STEPS
    losses: Sequence[float] = ()
    whole: int | None = None


class Protocol:
    """Measures a plan on a collection. Each part is measured when its method is called.

    Args:
        space: The collection with its document vectors.
        plan: What is measured.

    Attributes:
        default: Settings of a live collection: the encoding, multiplied by a measured factor.
        tuning: Adds the documents of the tuning split, and evaluates its queries.
        arrivals: Orders in which the documents of the test split are added.
    """

    def __init__(self, space: Space, plan: ProtocolPlan) -> None:
        self.space = space
        self.plan = plan
        tuning, test = space.encoded.splits()
        state = space.state()
        self.default = ENCODED.replace(prior_scale=space.encoding_scale(state.vectors.view))
        self.tuning = AdditionEvaluator(state, tuning)
        self.arrivals = AdditionOrders(
            AdditionEvaluator(state, test), plan.orders, plan.steps, space.seed, plan.whole
        )

    def points(self) -> list[Point]:
        """Measure every method with the settings that the tuning split chose, and the default.

        The default is left out if its factor is 1, because it equals the plain encoding then.
        """
        plan = self.plan
        methods: dict[str, Method] = {}
        if self.default != ENCODED:
            methods[DEFAULT] = Method(fixed=(self.default,))
        methods.update(plan.methods)
        return measure_methods(
            self.tuning, self.arrivals, methods, plan.trials, self.space.seed, plan.losses
        )

    def learned(self) -> tuple[list[Point], ReciprocalRanks | None]:
        """Measure the methods that train.

        Returns:
            The points of these methods. The result of retraining on all documents; None if the plan
            does not contain retraining.
        """
        points, final_results = measure_training_methods(
            self.space, self.arrivals, self.plan.training_methods, self.plan.learned_orders
        )
        return points, final_results.get(RETRAINING)

    def costs(self, points: Sequence[Point], retrained: ReciprocalRanks) -> dict[str, Difference]:
        """Return how much lower hit@1 of old documents is after adding than after retraining.

        Args:
            points: Points of the methods that train nothing.
            retrained: Result of retraining on all documents.

        Returns:
            The cost of the default, and of each method with its best settings, by name.
        """
        results = {DEFAULT: self.arrivals.results(self.default)[-1]}
        results.update(self._best_results(points))
        return {name: adding_cost(result, retrained) for name, result in results.items()}

    def front(self, method: Method) -> list[Point]:
        """Measure all settings of a method that no other setting beats on the tuning split.

        They are measured after all documents were added in their original order.
        """
        added = self.arrivals.after[-1]
        before = self.arrivals.evaluator.before
        points = []
        for trial in self._undominated_trials(method):
            result = self.arrivals.results(trial.settings)[-1]
            points.append(
                Point.over_orders("", BEST_F_BETA, trial.settings, added, before, [result])
            )
        return points

    def compare_at_equal_loss(
        self, ours: Method = OURS, paper: Method = INCDSI
    ) -> list[EqualLossComparison]:
        """Compare our method with the paper's, at equal loss of old documents.

        Both have their best settings: those that no other setting beats on the tuning split.
        """
        return compare_at_equal_loss(
            self._undominated_results(paper), self._undominated_results(ours)
        )

    def compare_with_plain(
        self, points: Sequence[Point]
    ) -> dict[str, tuple[Difference, Difference]]:
        """Compare each method, with its best settings, with plain encodings.

        Returns:
            By name of the method: the differences in MRR@10 of old and of new documents, after all
            documents were added.
        """
        plain_old, plain_new = self.arrivals.results(ENCODED)[-1]
        differences = {}
        for name, (old, new) in self._best_results(points).items():
            differences[name] = (Difference.of(old, plain_old), Difference.of(new, plain_new))
        return differences

    def _best_results(self, points: Sequence[Point]) -> dict[str, ReciprocalRanks]:
        """Return the results of each method with its best settings, after all additions."""
        results = {}
        for point in points:
            if point.chosen_for == BEST_F_BETA and point.settings is not None:
                results[point.method] = self.arrivals.results(point.settings)[-1]
        return results

    def _undominated_results(self, method: Method) -> list[ReciprocalRanks]:
        """Return the results on the test split of the settings of `_undominated_trials`."""
        trials = self._undominated_trials(method)
        return [self.arrivals.results(trial.settings)[-1] for trial in trials]

    def _undominated_trials(self, method: Method) -> list[Trial]:
        """Return the trials of a method that no other trial beats on the tuning split."""
        return select_undominated(
            try_settings(method, self.tuning, self.plan.trials, self.space.seed)
        )
