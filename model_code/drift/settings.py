"""The group `drift` of `params.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from model_code.settings import require, require_at_least

MOST_MEASURES = 15  # of a report: seven of the batch, seven of the window, and the protected queries


@dataclass(frozen=True)
class DriftSettings:
    """When drift is measured, what counts as drift, and how often the index may be rebuilt for it.

    alpha: chance that a report on documents like the old ones alarms at all; the measures of a report share it.
    minimum_batch: documents, or queries, below which nothing is measured but counts; they wait for the window.
    largest_batch: documents of a batch that are measured, drawn from it; bounds the time.
    window: how many of the last batches are measured together, beside the newest alone; 1 measures only that.
    cooldown: batches after a retraining or a call for a pilot during which no such step follows.
    growth_limit: documents added since the last training, as a share of those trained on, past which retraining is due.
    conflict_limit: share of refined additions whose IncDSI constraints may conflict.
    pilot_documents: of a pilot, a training on a sample that is to tell whether a retrain is due where documents moved
    and the queries that they came with show no harm. None: no pilots.
    quality_margin: loss of the mean score, of new documents and of protected queries (of these beside what growth costs
    them), that is no harm.
    draws: how often a null distribution is drawn. reference_documents: kept as the reference.
    classifier_contrast: documents of the reference that the domain classifier tells the batch from.
    batches: how the null's batches are drawn from the reference. "random": as if documents arrived in no order.
    "in_order": runs of documents by their dates, which all must have, so that a false alarm is an alarm on a batch that
    differs from what came before no more than runs of the reference differ from its rest. A reference lends few runs,
    and none is drawn twice: a measure for which they are too few is not taken. Scores have no order.
    """

    alpha: float = 0.05
    minimum_batch: int = 100
    largest_batch: int = 500
    window: int = 5
    cooldown: int = 3
    growth_limit: float = 0.5
    conflict_limit: float = 0.3
    quality_margin: float = 0.01
    pilot_documents: int | None = 1200
    draws: int = 999
    reference_documents: int = 2000
    classifier_contrast: int = 500
    batches: Literal["random", "in_order"] = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 < self.alpha <= 0.5, f"alpha is {self.alpha}, but must be in (0, 0.5]: a chance of false alarms")
        require_at_least(10, self, "minimum_batch")
        require_at_least(1, self, "window", "classifier_contrast")
        require_at_least(0, self, "cooldown", "quality_margin", "seed")
        require(self.growth_limit > 0, f"growth_limit is {self.growth_limit}, but must be above 0: a share")
        require(0 < self.conflict_limit < 1, f"conflict_limit is {self.conflict_limit}, but must be in (0, 1): a share")
        require(
            self.largest_batch >= self.minimum_batch,
            f"largest_batch is {self.largest_batch}, below minimum_batch {self.minimum_batch}: nothing "
            "could be measured",
        )
        require(
            self.pilot_documents is None or self.pilot_documents >= 100,
            f"pilot_documents is {self.pilot_documents}, but must be at least 100, half of them new, or null",
        )
        least = 3 * self.minimum_batch
        require(
            self.reference_documents >= least,
            f"reference_documents is {self.reference_documents}, but must be at least 3 x minimum_batch = {least}, "
            "as the null's batches are drawn from it",
        )
        needed = draws_needed(self.alpha, MOST_MEASURES)
        require(
            self.draws >= needed,
            f"draws is {self.draws}, but must be at least {needed}: {MOST_MEASURES} measures share "
            f"alpha = {self.alpha}, and a chance that small cannot be told from fewer draws",
        )


def draws_needed(alpha: float, measures: int) -> int:
    """The fewest draws B with which p = (1 + b) / (1 + B) can reach alpha / measures.

    >>> draws_needed(0.05, 20)
    399
    """
    return ceil(measures / alpha - 1e-9) - 1
