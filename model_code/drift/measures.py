"""The measures of drift, and the tests that they share.

Each measure of `MEASURES` is a statistic of old and new values. Its null distribution is the same
statistic of batches that are drawn from the reference and of the rest of the reference, see
`calibration`. So no customary threshold is needed. Three further measures need no reference.

Retrieval quality decides whether drift is harmful. The question is whether new documents are found
worse than after a retrain. As a proxy they are compared with old documents, by queries that the
retriever was not trained on and in the same live collection.

Protected queries measure what additions take from old documents. Any addition takes some: on
docstrings 25 % more documents of the same kind cost .029 MRR@10, which no retrain brings back. A
loss as large as documents like the old ones would cause is therefore no harm.

A changed document is compared with its own former version. Changed documents are no sample of the
collection: they may all come from a part that was always harder to find, which is no drift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from scipy.stats import binom, rankdata

from model_code.drift.reference import DriftReference
from model_code.drift.settings import DriftSettings
from model_code.drift.statuses import Status
from model_code.errors import FreshetError
from model_code.evaluation.significance import paired_randomisation_test

Tail = Literal["high", "low"]
Scope = Literal["batch", "window"]
Detail = dict[str, Any]

# Reported quantiles of a null distribution.
QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)
# The measures of harm, by the kind of their queries: made from the documents, or asked by people.
MADE_QUERIES = "new_quality"
ASKED_QUERIES = "asked_quality"
# The measures of paired scores.
PROTECTED_QUERIES = "protected_old"
CHANGED_DOCUMENTS = "changed_quality"


@dataclass(frozen=True, eq=False)
class Statistic:
    """A measured value, and its null distribution: its values without drift.

    Attributes:
        name: Name of the measure.
        value: The value.
        null: Draws of the null distribution, (B,).
        tail: The side of `null` on which drift lies.
        scope: The newest batch alone, or the window of the last batches.
        detail: Further numbers for readers.
    """

    name: str
    value: float
    null: np.ndarray
    tail: Tail = "high"
    scope: Scope = "batch"
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TestResult:
    """A tested measure.

    Attributes:
        name: Name of the measure.
        value: Its value.
        threshold: The value must lie beyond it, not on it, to exceed it.
        null: Quantiles of the null distribution by level, such as {"0.95": 0.61}. Empty if the
            threshold is a limit of the settings.
        exceeded: Whether the value lies beyond the threshold.
        detail: Further numbers for readers.
        exceeded_uncorrected: Whether it lies beyond the threshold that it would have if only the
            deciding measures of harm shared alpha.
        tail: The side on which drift lies.
        scope: The newest batch alone, or the window of the last batches.
    """

    # Keeps pytest from collecting the class in modules that import it.
    __test__: ClassVar[bool] = False

    name: str
    value: float
    threshold: float
    null: Mapping[str, float]
    exceeded: bool
    detail: Mapping[str, Any]
    exceeded_uncorrected: bool = False
    tail: Tail = "high"
    scope: Scope = "batch"

    @property
    def label(self) -> str:
        """Name and scope, unique in a report."""
        if self.scope == "batch":
            return self.name
        return f"{self.name} ({self.scope})"


Measurement = TypeVar("Measurement", Statistic, TestResult)


def deciding_measures(measures: Sequence[Measurement]) -> list[Measurement]:
    """Return the measures of harm that decide, among the given ones.

    Asked queries take precedence over made queries. Made queries decide only if they were measured
    on more documents. They are less reliable because they are cut out of the text. They reported
    harm for real documents that asked queries find better than old ones. They also reported no harm
    if people ask in other words than the text uses.
    """
    asked = [measure for measure in measures if measure.name == ASKED_QUERIES]
    asked_documents = {measure.scope: measure.detail["documents"] for measure in asked}

    deciding = []
    for measure in measures:
        if measure.name == MADE_QUERIES:
            if measure.detail["documents"] > asked_documents.get(measure.scope, 0):
                deciding.append(measure)
    return deciding + asked


def judge(statistics: Sequence[Statistic], alpha: float) -> tuple[TestResult, ...]:
    """Test each of k statistics at alpha / k.

    The chance of any false alarm is then at most alpha (Bonferroni). Holm's procedure finds the
    first alarm no sooner, and these thresholds are fixed numbers that a report can show beside the
    values.

    Args:
        statistics: The measured values with their null distributions.
        alpha: Chance of any false alarm.

    Raises:
        FreshetError: If a null distribution has too few draws for its level.
    """
    level = alpha / max(len(statistics), 1)
    harm_level = alpha / max(len(deciding_measures(statistics)), 1)
    return tuple(_test(statistic, level, harm_level) for statistic in statistics)


def critical_value(null: np.ndarray, level: float, tail: Tail) -> float:
    """Return the value beyond which p <= level, with p = (1 + b) / (1 + B).

    b of the B draws in `null` are at least as extreme as the value. The critical value is the k-th
    most extreme draw, k = floor(level (1 + B)). If value and draws are exchangeable, the chance to
    pass it is at most `level`, whatever their distribution.

    Args:
        null: Draws of the null distribution, (B,).
        level: Chance of a false alarm.
        tail: The side on which drift lies.

    Raises:
        FreshetError: If B is too small for the level.

    >>> null = np.arange(1, 100)
    >>> critical_value(null, 0.05, "high"), critical_value(null, 0.05, "low")
    (95.0, 5.0)
    """
    # The tolerance keeps a product such as 0.05 * 100 from falling below 5 by rounding.
    rank = int(level * (1 + len(null)) + 1e-9)
    if rank < 1:
        needed = int(np.ceil(1 / level)) - 1
        raise FreshetError(
            f"{len(null)} draws cannot show a chance of {level:.4g}, which takes {needed}"
        )
    ascending = np.sort(null)
    if tail == "high":
        return float(ascending[-rank])
    return float(ascending[rank - 1])


def _test(statistic: Statistic, level: float, harm_level: float) -> TestResult:
    null = statistic.null
    value = statistic.value
    tail = statistic.tail
    threshold = critical_value(null, level, tail)
    harm_threshold = critical_value(null, harm_level, tail)

    reached = null >= value if tail == "high" else null <= value
    p = float((1 + reached.sum()) / (1 + len(null)))
    return TestResult(
        name=statistic.name,
        value=float(value),
        threshold=threshold,
        null={str(q): float(np.quantile(null, q)) for q in QUANTILES},
        exceeded=_is_beyond(value, threshold, tail),
        detail={**statistic.detail, "p": p, "level": level},
        exceeded_uncorrected=_is_beyond(value, harm_threshold, tail),
        tail=tail,
        scope=statistic.scope,
    )


def _is_beyond(value: float, threshold: float, tail: Tail) -> bool:
    if tail == "high":
        return bool(value > threshold)
    return bool(value < threshold)


# Folds of the domain classifier.
FOLDS = 3
# A lower rank counts as not found.
MAX_COUNTED_RANK = 10


def _no_scores() -> np.ndarray:
    return np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class OldScores:
    """How well old documents are found in the live collection of a report.

    Attributes:
        made: Mean score of each document over its pseudo-queries, (p,).
        asked: Mean score of each document over its judged queries, (a,).
    """

    made: np.ndarray = field(default_factory=_no_scores)
    asked: np.ndarray = field(default_factory=_no_scores)


class PairedScores(NamedTuple):
    """Scores of the same q queries, or q documents, before and after additions.

    Attributes:
        before: Scores before, (q,).
        after: Scores after, (q,).
        crowding: Loss of each score to growth that is no harm, (q,).
    """

    before: np.ndarray
    after: np.ndarray
    crowding: np.ndarray


def no_paired_scores() -> PairedScores:
    """Return the scores of no queries."""
    return PairedScores(_no_scores(), _no_scores(), _no_scores())


@dataclass(frozen=True, eq=False)
class Arrivals:
    """m new documents and c changed ones, and scores of some of them.

    Attributes:
        vectors: Vectors of the new documents, (m, H) float32, of unit norm.
        fingerprint: Fingerprint of the encoder.
        quality: Mean score of a new document over its held-out pseudo-queries, (k,), or None.
        asked: Mean score of a document over the queries that it arrived with, (a,), or None.
        statuses: Names of `model_code.drift.statuses.Status` of the refined documents.
        unscored: Why there are no scores, by the name of the attribute that is None.
        changed_documents: The number c of documents that training saw in a former version.
        changed: Mean scores of changed documents over their pseudo-queries: of the former version
            when it was trained, and of the present one.
    """

    vectors: np.ndarray
    fingerprint: str
    quality: np.ndarray | None = None
    asked: np.ndarray | None = None
    statuses: tuple[str, ...] = ()
    unscored: Mapping[str, str] = field(default_factory=dict)
    changed_documents: int = 0
    changed: PairedScores = field(default_factory=no_paired_scores)

    @property
    def documents(self) -> int:
        """The number of new and changed documents."""
        return len(self.vectors) + self.changed_documents


def domain_auc(old: np.ndarray, new: np.ndarray, seed: int) -> float:
    """Return how well a classifier tells new vectors from old ones: mean AUC over held-out folds.

    It is .5 if the classifier cannot tell them apart, and at most 1 (a classifier two-sample test,
    Lopez-Paz & Oquab 2017). The order of the rows does not matter.

    The classifier scores a vector by its product with the difference of the two means. Logistic
    regression finds drift as well, within a tenth of a standard deviation of the null distribution
    on average, and takes many times as long: a thousand fits are needed per size of a batch.

    Args:
        old: Vectors, (n, H), n >= FOLDS.
        new: Vectors, (m, H), m >= FOLDS.
        seed: Seed of the folds.
    """
    old = old[canonical(old)].astype(np.float64)
    new = new[canonical(new)].astype(np.float64)
    old_folds = _draw_folds(len(old), seed)
    new_folds = _draw_folds(len(new), seed)

    areas = []
    for old_in_fold, new_in_fold in zip(old_folds, new_folds, strict=True):
        direction = new[~new_in_fold].mean(axis=0) - old[~old_in_fold].mean(axis=0)
        areas.append(_area(old[old_in_fold] @ direction, new[new_in_fold] @ direction))
    return float(np.mean(areas))


@cache
def _draw_folds(documents: int, seed: int) -> np.ndarray:
    """Return which documents are held out in each fold, (FOLDS, documents) bool."""
    order = np.random.default_rng([seed, documents]).permutation(documents)
    return np.stack([order % FOLDS == fold for fold in range(FOLDS)])


def _area(old: np.ndarray, new: np.ndarray) -> float:
    """Return the share of pairs in which the new score (m,) is above the old one (n,), ties half.

    >>> _area(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.875
    """
    ranks = rankdata(np.concatenate([old, new]))
    pairs_above = ranks[len(old) :].sum() - len(new) * (len(new) + 1) / 2
    return float(pairs_above / (len(old) * len(new)))


def canonical(vectors: np.ndarray) -> np.ndarray:
    """Return an order of the rows of `vectors` (n, H) that does not depend on their given order."""
    return np.lexsort(np.ascontiguousarray(vectors.T[:8]))


def mean_difference(old: np.ndarray, new: np.ndarray, seed: int = 0) -> float:
    """Return the mean of `new` minus the mean of `old`."""
    return float(new.mean(dtype=np.float64) - old.mean(dtype=np.float64))


def _count(old: np.ndarray, new: np.ndarray) -> Detail:
    return {"measured": len(new)}


def _means(old: np.ndarray, new: np.ndarray) -> Detail:
    return {"old": float(old.mean()), "new": float(new.mean()), "documents": len(new)}


@dataclass(frozen=True)
class DriftMeasure:
    """A statistic of old and new values, and the side of chance on which drift lies.

    Attributes:
        name: Name of the measure.
        tail: The side on which drift lies.
        input: Name of the attribute of `Arrivals` that it compares.
        old: Returns the old values of a reference and its scores.
        statistic: Maps old values (n, ...), new values (m, ...) and a seed to a number.
        detail: Maps old and new values to further numbers for readers.
        margin: Whether a loss of `drift.quality_margin` is no harm.
        moved: Whether it shows that documents are different, which alone is no harm.
    """

    name: str
    tail: Tail
    input: str
    old: Callable[[DriftReference, OldScores], np.ndarray]
    statistic: Callable[[np.ndarray, np.ndarray, int], float]
    detail: Callable[[np.ndarray, np.ndarray], Detail]
    margin: bool = False
    moved: bool = False

    @property
    def of_scores(self) -> bool:
        """Whether it compares scores, which are measured again for each report."""
        return self.input != "vectors"


DOMAIN_AUC = DriftMeasure(
    name="domain_auc",
    tail="high",
    input="vectors",
    old=lambda reference, _: reference.vectors,
    statistic=domain_auc,
    detail=_count,
    moved=True,
)
NEW_QUALITY = DriftMeasure(
    name=MADE_QUERIES,
    tail="low",
    input="quality",
    old=lambda _, scores: scores.made,
    statistic=mean_difference,
    detail=_means,
    margin=True,
)
ASKED_QUALITY = DriftMeasure(
    name=ASKED_QUERIES,
    tail="low",
    input="asked",
    old=lambda _, scores: scores.asked,
    statistic=mean_difference,
    detail=_means,
    margin=True,
)
MEASURES: Mapping[str, DriftMeasure] = {
    measure.name: measure for measure in (DOMAIN_AUC, NEW_QUALITY, ASKED_QUALITY)
}
INPUTS = tuple(dict.fromkeys(measure.input for measure in MEASURES.values()))
# The measures that show that documents are different.
SHIFT_MEASURES = tuple(measure.name for measure in MEASURES.values() if measure.moved)


def paired_change(
    name: str, scores: PairedScores, settings: DriftSettings, scope: Scope = "batch"
) -> Statistic:
    """Measure the mean change of paired scores.

    A loss of `drift.quality_margin` plus each score's crowding is no harm. The null distribution is
    that of the paired randomisation test (Smucker, Allan & Carterette 2007) of the changes plus
    this loss: means of the changes with random signs around the allowed loss. `detail` has the
    two-sided p of the test for any change.

    Args:
        name: Name of the measure.
        scores: Scores before and after the additions.
        settings: Margin, number of draws and seed.
        scope: The newest batch alone, or the window.
    """
    before = scores.before
    after = scores.after
    change = after.astype(np.float64) - before.astype(np.float64)
    allowed = settings.quality_margin + np.broadcast_to(scores.crowding, change.shape)

    generator = np.random.default_rng([settings.seed, len(change)])
    coins = generator.integers(2, size=(settings.draws, len(change)), dtype=np.int8)
    signs = 1.0 - 2.0 * coins
    null = signs @ (change + allowed) / len(change) - allowed.mean()

    p = paired_randomisation_test(change[:, None], settings.draws, settings.seed)
    detail: Detail = {
        "before": float(before.mean()),
        "after": float(after.mean()),
        "margin": settings.quality_margin,
        "crowding": float(allowed.mean() - settings.quality_margin),
        "measured": len(change),
        "p_any_change": float(p[0]),
    }
    return Statistic(name, float(change.mean()), null, "low", scope, detail)


def reciprocal_ranks(ranks: np.ndarray) -> np.ndarray:
    """Return 1 / rank, 0 below rank `MAX_COUNTED_RANK` and for rank 0, which means not found: (q,).

    >>> reciprocal_ranks(np.array([1, 4, 11, 0])).tolist()
    [1.0, 0.25, 0.0, 0.0]
    """
    is_counted = (ranks > 0) & (ranks <= MAX_COUNTED_RANK)
    return np.where(is_counted, 1 / np.maximum(ranks, 1), 0.0)


def crowding(ranks: np.ndarray, share: float) -> np.ndarray:
    """Estimate the reciprocal rank that each query lost to the growth of the collection so far.

    The collection grew to its size from `share` of it by documents like its own. Growing by as much
    again costs about the same. Each of the r - 1 documents above an answer was there before with
    chance `share`; S of them were. The mean of 1 / (1 + S) where S < MAX_COUNTED_RANK is P(1 <= T
    <= MAX_COUNTED_RANK) / (r share) with T ~ Binomial(r, share).

    Args:
        ranks: Rank of each query's answer, (q,), see `reciprocal_ranks`.
        share: Size of the collection before, as a share of its size now.

    Returns:
        The loss of each query, (q,), at least 0.
    """
    counted = np.maximum(ranks, 1)
    chance = binom.cdf(MAX_COUNTED_RANK, counted, share) - binom.pmf(0, counted, share)
    before = chance / (counted * share)
    return np.where(ranks > 0, before - reciprocal_ranks(ranks), 0.0)


def refined_statuses(statuses: Sequence[str]) -> list[str]:
    """Return the statuses, in capitals, of additions that IncDSI refined.

    Other additions have no constraints that could conflict.

    >>> refined_statuses(["fits", "NOT_REFINED", "compromise"])
    ['FITS', 'COMPROMISE']
    """
    upper = [status.upper() for status in statuses]
    return [status for status in upper if status != Status.NOT_REFINED.name]


def conflicts(
    statuses: Sequence[str], settings: DriftSettings, scope: Scope = "batch"
) -> Statistic:
    """Measure the share of refined additions that break a constraint.

    The null distribution is that of as many additions that each conflict with probability
    `drift.conflict_limit`.

    Args:
        statuses: Statuses of additions, of which at least one was refined.
        settings: Limit, number of draws and seed.
        scope: The newest batch alone, or the window.
    """
    limit = settings.conflict_limit
    refined = refined_statuses(statuses)
    count = len(refined)
    broken = sum(status != Status.FITS.name for status in refined)

    generator = np.random.default_rng([settings.seed, count])
    null = generator.binomial(count, limit, settings.draws) / count
    detail = {"limit": limit, "refined": count}
    return Statistic("conflicts", broken / count, null, "high", scope, detail)


def growth(added: int, trained: int, limit: float) -> TestResult:
    """Compare the documents added since the last training with a share of those trained on.

    >>> growth(30, 100, limit=0.25).exceeded
    True
    """
    share = added / trained
    exceeded = share > limit
    return TestResult(
        name="growth",
        value=share,
        threshold=limit,
        null={},
        exceeded=exceeded,
        detail={"added": added, "trained": trained},
        exceeded_uncorrected=exceeded,
    )
