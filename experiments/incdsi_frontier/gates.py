"""Requirements that our IncDSI must meet, each tested by a paired bootstrap over the queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.incdsi_frontier.ranks import ReciprocalRanks

# Number of times that queries are resampled.
BOOTSTRAP_SAMPLES = 2000
# Adding documents may cost old documents at most this much more hit@1 than retraining on all.
MAX_COST = 0.01


@dataclass(frozen=True)
class Difference:
    """A mean difference and the bounds of its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    @classmethod
    def of(cls, ours: np.ndarray, other: np.ndarray) -> Difference:
        """Return the difference of paired values (m), with an interval from resampled queries."""
        change = ours - other
        return cls.between(float(change.mean()), resample_means(change[None])[:, 0])

    @classmethod
    def between(cls, mean: float, samples: np.ndarray) -> Difference:
        """Return a mean with the interval that contains 95 % of its resampled values."""
        low, high = np.quantile(samples, [0.025, 0.975])
        return cls(mean, float(low), float(high))


@dataclass(frozen=True)
class EqualLossComparison:
    """Comparison of our method with the paper's, at the same MRR@10 of old documents.

    Attributes:
        old: The paper's MRR@10 of old documents.
        new: The paper's MRR@10 of new documents.
        change: Difference in MRR@10 of new documents, ours less the paper's.
        reached: Whether any of our settings keeps this MRR@10 of old documents.
    """

    old: float
    new: float
    change: Difference
    reached: bool

    @property
    def met(self) -> bool:
        """Whether our MRR@10 of new documents is not below the paper's."""
        return self.reached and self.change.mean >= 0


def adding_cost(added: ReciprocalRanks, retrained: ReciprocalRanks) -> Difference:
    """Return how much lower hit@1 of old documents is after adding than after retraining on all.

    The requirement is met if the cost is at most `MAX_COST`.
    """
    retrained_hits = (retrained.old == 1).astype(np.float64)
    added_hits = (added.old == 1).astype(np.float64)
    return Difference.of(retrained_hits, added_hits)


def compare_at_equal_loss(
    paper: Sequence[ReciprocalRanks], ours: Sequence[ReciprocalRanks]
) -> list[EqualLossComparison]:
    """Compare our method with each setting of the paper's, at the same MRR@10 of old documents.

    No setting of ours may have exactly the same MRR@10 of old documents. Values between two of our
    settings are interpolated: adding some documents with one setting, and the rest with the other,
    reaches about these values. Queries for old and for new documents are resampled separately. Both
    methods get the same samples.

    Args:
        paper: Results of the paper's method, one per setting.
        ours: Results of our method, one per setting.
    """
    # Both methods are in one array, so that they get the same resampled queries. The shapes are
    # (settings, queries), with the paper's settings first.
    both = (*paper, *ours)
    old_ranks = np.stack([ranks.old for ranks in both])
    new_ranks = np.stack([ranks.new for ranks in both])
    old_means = old_ranks.mean(axis=1)
    new_means = new_ranks.mean(axis=1)
    changes = _interpolate_changes(old_means, new_means, len(paper))

    sampled_changes = []
    for sampled_old, sampled_new in zip(
        resample_means(old_ranks), resample_means(new_ranks), strict=True
    ):
        sampled_changes.append(_interpolate_changes(sampled_old, sampled_new, len(paper)))
    # The shape is (samples, settings of the paper).
    samples = np.stack(sampled_changes)

    our_best_old = old_means[len(paper) :].max()
    comparisons = []
    for setting in range(len(paper)):
        change = Difference.between(float(changes[setting]), samples[:, setting])
        comparisons.append(
            EqualLossComparison(
                old=float(old_means[setting]),
                new=float(new_means[setting]),
                change=change,
                reached=bool(old_means[setting] <= our_best_old),
            )
        )
    return comparisons


def _interpolate_changes(old_means: np.ndarray, new_means: np.ndarray, papers: int) -> np.ndarray:
    """Return how much better our settings are for new documents, for each setting of the paper.

    Args:
        old_means: MRR@10 of old documents by each setting (settings,), the paper's settings first.
        new_means: MRR@10 of new documents by each setting, in the same order.
        papers: Number of the paper's settings.

    Returns:
        Differences (papers,): our interpolated MRR@10 of new documents less the paper's, at the
        same MRR@10 of old documents.
    """
    our_old = old_means[papers:]
    our_new = new_means[papers:]
    order = np.argsort(our_old, kind="stable")
    interpolated = np.interp(old_means[:papers], our_old[order], our_new[order])
    return interpolated - new_means[:papers]


def resample_means(
    values: np.ndarray, samples: int = BOOTSTRAP_SAMPLES, seed: int = 0
) -> np.ndarray:
    """Return means over bootstrap samples of the queries.

    Args:
        values: Value of each query (m) for each setting, (points, m).
        samples: Number of samples. Each one draws m queries with replacement.
        seed: Seed of the draws.

    Returns:
        Means (samples, points).

    >>> resample_means(np.ones((2, 3)), samples=1).tolist()
    [[1.0, 1.0]]
    """
    random = np.random.default_rng(seed)
    queries = values.shape[1]
    means = np.empty((samples, len(values)))
    for sample in range(samples):
        drawn = random.integers(queries, size=queries)
        times_drawn = np.bincount(drawn, minlength=queries)
        means[sample] = values @ times_drawn / queries
    return means
