"""Requirements of IncDSI's protocol, each tested by a paired bootstrap over the queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.incdsi_frontier.frontier import Found

SAMPLES = 2000
# Accepted cost of adding for old documents in hit@1, beyond the cost of retraining on all.
COST = 0.01


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
        return cls.between(float(change.mean()), resampled(change[None])[:, 0])

    @classmethod
    def between(cls, mean: float, samples: np.ndarray) -> Difference:
        """Return the mean with the interval of its resampled values."""
        low, high = np.quantile(samples, [0.025, 0.975])
        return cls(mean, float(low), float(high))


@dataclass(frozen=True)
class Matched:
    """Our new documents' MRR@10 less the paper's, at the same MRR@10 of old documents.

    old, new: The paper's MRR@10.
    reached: Whether any of our settings keeps this MRR@10 of old documents.
    """

    old: float
    new: float
    change: Difference
    reached: bool

    @property
    def met(self) -> bool:
        """Whether ours is not below."""
        return self.reached and self.change.mean >= 0


def adding_cost(added: Found, retrained: Found) -> Difference:
    """Return old documents' hit@1 after retraining on all less that after adding.

    The requirement is met if the cost is at most `COST`.
    """
    hits = [(found[0] == 1).astype(np.float64) for found in (retrained, added)]
    return Difference.of(*hits)


def at_matched_loss(paper: Sequence[Found], ours: Sequence[Found]) -> list[Matched]:
    """Compare ours with each setting of the paper's form at the same MRR@10 of old documents.

    Values between two of our settings are interpolated: adding some documents with one setting and
    the rest with the other reaches about these values. Old and new queries are resampled
    separately, and in the same way for both forms.
    """
    # The shapes are (points, queries).
    olds, news = (np.stack([one[side] for one in (*paper, *ours)]) for side in (0, 1))
    means = [values.mean(axis=1)[None] for values in (olds, news)]
    change = _above(*means, len(paper))[0]
    # The shape is (samples, points of the paper).
    samples = _above(resampled(olds), resampled(news), len(paper))
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
    """Return our interpolated new means less the paper's, at the paper's old means.

    The shapes are (s, points) for the means and (s, papers) for the result.
    """
    found = np.empty((len(olds), papers))
    for row, (old, new) in enumerate(zip(olds, news, strict=True)):
        order = np.argsort(old[papers:], kind="stable")
        found[row] = (
            np.interp(old[:papers], old[papers:][order], new[papers:][order]) - new[:papers]
        )
    return found


def resampled(values: np.ndarray, samples: int = SAMPLES, seed: int = 0) -> np.ndarray:
    """Return means (samples, points) of `values` (points, m).

    Each sample draws m queries with replacement.

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
