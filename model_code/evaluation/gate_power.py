"""Tell beforehand whether the gate has enough judged queries to accept a retrain or a retune.

The gate accepts a retriever only if its queries show a gain and rule out a loss. With few queries
it refuses nearly everything, because chance could explain each difference. Work that it would
refuse nine times out of ten should not start by itself.

The judgement is favourable to the work. It supposes that the retriever gains as much as
`promotion.largest_plausible_gain` where it must gain, and that the other queries keep their scores.
Let s be the standard deviation of the paired differences of n queries, z the normal quantile, and
c the smallest chance of acceptance for which work starts. Then with at least this chance,

- n queries show the gain g if n >= ((z(1 - alpha / 2) + z(c)) s / g)^2,
- n queries rule out a loss of the margin m if n >= ((z(1 - alpha) + z(c)) s / m)^2.

The first number is an approximation, which is too small for very few queries: with 5 queries, the
gate's test cannot give p < .05, however large their gains are. So the gain needs at least as many
queries as give such a p if all of them gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_code.evaluation.promotion import Verdict
from model_code.evaluation.settings import PromotionSettings
from model_code.evaluation.significance import (
    queries_for_gain,
    queries_for_significance,
    queries_to_rule_out_loss,
)

# Chance of acceptance below which work does not start by itself. It is low, because a refused
# retrain costs only time, and a retrain that never starts leaves the index behind its documents.
MIN_CHANCE = 0.1
# Standard deviation of the paired differences of two retrievers on the same queries, if no verdict
# of the gate has measured it. In recorded verdicts it lies between .05 and .2 for nDCG@10, and
# above that for hit@1.
TYPICAL_DEVIATION = 0.15
# The ledger keeps details of each retune and retrain. Under these keys, they have the standard
# deviations that the gate measured; see `Deviations`.
GAIN_DEVIATION = "gain_deviation"
LOSS_DEVIATION = "loss_deviation"


@dataclass(frozen=True)
class GateQueries:
    """Numbers of judged queries by which the gate judges a retriever.

    Attributes:
        gain: Queries on which the retriever must be better. For a retrain, these ask for documents
            that were added since the training.
        no_loss: Other queries, on which it must not be worse. 0 if all queries must show the gain.
    """

    gain: int
    no_loss: int = 0


@dataclass(frozen=True)
class Deviations:
    """Standard deviations of the paired differences that a verdict is based on.

    For each judged query, the gate subtracts the score of the live retriever from the score of the
    new one. The more these differences deviate from each other, the more queries the gate needs.

    Attributes:
        gain: Standard deviation of the differences in the metric that must rise.
        no_loss: The largest such deviation among the protected metrics, which must not fall.
    """

    gain: float = TYPICAL_DEVIATION
    no_loss: float = TYPICAL_DEVIATION

    @classmethod
    def of_details(cls, details: Mapping[str, Any]) -> Deviations:
        """Read the deviations from the details of a task; typical ones if it has none."""
        return cls(
            details.get(GAIN_DEVIATION) or TYPICAL_DEVIATION,
            details.get(LOSS_DEVIATION) or TYPICAL_DEVIATION,
        )


def deviation_details(verdict: Verdict | None, settings: PromotionSettings) -> dict[str, float]:
    """Return the deviations that a verdict has measured, for the details of a task.

    If the verdict judged old and new documents apart, the gain was judged on the new ones, and the
    losses on the old ones.

    Args:
        verdict: The verdict. None if the gate was not asked.
        settings: Metrics of the gate.

    Returns:
        The deviations under `GAIN_DEVIATION` and `LOSS_DEVIATION`. Empty without a verdict.
    """
    details: dict[str, float] = {}
    if verdict is None:
        return details
    losses = []
    for row in verdict.intervals:
        metric, _, group = row.metric.partition(" (")
        if metric == settings.metric and not group.startswith("old"):
            details[GAIN_DEVIATION] = row.deviation
        if metric in settings.protected and not group.startswith("new"):
            losses.append(row.deviation)
    if losses:
        details[LOSS_DEVIATION] = max(losses)
    return details


def needed_queries(deviations: Deviations, settings: PromotionSettings) -> GateQueries:
    """Return the numbers of queries with which the gate may well accept good work.

    With these numbers, each condition of the gate holds with the chance `MIN_CHANCE`.

    Both numbers are 0 without a largest plausible gain. The second one is also 0 with a margin of
    0, because the chance does not depend on the number of queries then.

    Args:
        deviations: Deviations of the paired differences.
        settings: Level, margin and largest plausible gain.
    """
    largest_gain = settings.largest_plausible_gain
    if largest_gain is None:
        return GateQueries(gain=0)
    gain = queries_for_gain(deviations.gain, largest_gain, settings.alpha, MIN_CHANCE)
    no_loss = None
    if settings.margin > 0:
        no_loss = queries_to_rule_out_loss(
            deviations.no_loss, settings.margin, settings.alpha, MIN_CHANCE
        )
    smallest_sample = queries_for_significance(settings.alpha)
    return GateQueries(max(gain or 0, smallest_sample), no_loss or 0)


def gate_obstacle(
    queries: GateQueries,
    settings: PromotionSettings,
    deviations: Deviations = Deviations(),
    judged: int | None = None,
) -> str | None:
    """Return the reason why the gate would refuse even good work, or None if it may accept it.

    Args:
        queries: The queries that would judge the work.
        settings: Metrics, level, margin and largest plausible gain of the gate.
        deviations: Deviations of the paired differences, from the last verdict if there is one.
        judged: Number of judged questions in all splits. The reason then says how many are needed.
            None: it only says how many queries the gate needs.
    """
    needed = needed_queries(deviations, settings)
    shortages = []
    growth = 1.0
    if queries.gain < needed.gain:
        shortages.append(
            f"{queries.gain:,} judged queries would have to show a gain, and {needed.gain:,} are "
            f"needed for a gain of {settings.largest_plausible_gain:g}"
        )
        growth = needed.gain / max(queries.gain, 1)
    if 0 < queries.no_loss < needed.no_loss:
        shortages.append(
            f"{queries.no_loss:,} judged queries for old documents would have to rule out a loss "
            f"beyond {settings.margin:g}, and {needed.no_loss:,} are needed"
        )
        growth = max(growth, needed.no_loss / queries.no_loss)
    if not shortages:
        return None

    reason = f"the gate would probably refuse it: {'; '.join(shortages)}"
    if judged:
        # More questions fall into the splits in the same proportion.
        reason += f"; that takes about {math.ceil(judged * growth):,} judged questions in all, now "
        reason += f"{judged:,}"
    return reason
