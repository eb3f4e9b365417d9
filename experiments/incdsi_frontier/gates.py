"""What IncDSI's protocol must show, each with a paired bootstrap over the queries: met or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.incdsi_frontier.frontier import Found

SAMPLES = 2000
COST = 0.01  # of hit@1 that adding may cost old documents beyond what retraining on all costs


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
        """The difference of paired values (m), by resampling the queries."""
        change = ours - other
        return cls.between(float(change.mean()), resampled(change[None])[:, 0])

    @classmethod
    def between(cls, mean: float, samples: np.ndarray) -> Difference:
        """The mean with the interval of its resampled values."""
        low, high = np.quantile(samples, [0.025, 0.975])
        return cls(mean, float(low), float(high))


@dataclass(frozen=True)
class Matched:
    """New documents' MRR@10 of ours less the paper's, where ours keeps as much of old documents' as
    the paper's does.

    old, new: the paper's MRR@10. reached: whether ours keeps so much of old documents' with any
    settings.
    """

    old: float
    new: float
    change: Difference
    reached: bool

    @property
    def met(self) -> bool:
        """Ours is not below."""
        return self.reached and self.change.mean >= 0


def adding_cost(added: Found, retrained: Found) -> Difference:
    """Old documents' hit@1 after retraining on all, less that after adding: met where at most
    `COST`.
    """
    hits = [(found[0] == 1).astype(np.float64) for found in (retrained, added)]
    return Difference.of(*hits)


def at_matched_loss(paper: Sequence[Found], ours: Sequence[Found]) -> list[Matched]:
    """For each setting of the paper's form, ours at the same MRR@10 of old documents.

    Between two settings of ours the values are interpolated: adding some documents with one and the
    rest with the other reaches about these. Old and new queries are resampled apart, and alike for
    both.
    """
    # (points, queries)
    olds, news = (np.stack([one[side] for one in (*paper, *ours)]) for side in (0, 1))
    means = [values.mean(axis=1)[None] for values in (olds, news)]
    change = _above(*means, len(paper))[0]
    samples = _above(resampled(olds), resampled(news), len(paper))  # (samples, points of the paper)
    old, new = (one[0] for one in means)
    reached = old[: len(paper)] <= old[len(paper) :].max()
    return [
        Matched(
            float(old[i]),
            float(new[i]),
            Difference.between(float(change[i]), samples[:, i]),
            bool(reached[i]),
        )
        for i in range(len(paper))
    ]


def _above(olds: np.ndarray, news: np.ndarray, papers: int) -> np.ndarray:
    """In each row of the means (s, points), ours at the paper's old means less the paper's new
    ones: (s, papers).
    """
    found = np.empty((len(olds), papers))
    for row, (old, new) in enumerate(zip(olds, news, strict=True)):
        order = np.argsort(old[papers:], kind="stable")
        found[row] = (
            np.interp(old[:papers], old[papers:][order], new[papers:][order]) - new[:papers]
        )
    return found


def resampled(values: np.ndarray, samples: int = SAMPLES, seed: int = 0) -> np.ndarray:
    """The means of `values` (points, m) over m queries drawn with replacement: (samples, points).

    >>> resampled(np.ones((2, 3)), samples=1).tolist()
    [[1.0, 1.0]]
    """
    count, random = values.shape[1], np.random.default_rng(seed)
    means = np.empty((samples, len(values)))
    for row in range(samples):
        means[row] = (
            values @ np.bincount(random.integers(count, size=count), minlength=count) / count
        )
    return means
