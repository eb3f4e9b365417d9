"""The measures of drift: one table of what tells a batch from the reference, and three that need no
reference.

Each measure of `MEASURES` is a statistic of old and new values. Its null distribution is the same
statistic of batches that are drawn from the reference and of the rest (see `calibration`), so no
customary threshold is needed.

Harm is what the scores tell. Adding only harms where new documents are found worse than a retrained
retriever would find them; without retraining, what it does for documents that it was trained for
tells: the same score of old documents whose queries it has not seen, beside the same rivals: both
are searched among all that is live now. What additions take from old documents is measured by
protected queries. Any addition takes some: on docstrings 25 % more of the same kind cost .029
MRR@10, which no retrain brings back. So as much as documents like the old ones would take is no
harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from scipy.stats import binom, mannwhitneyu
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from model_code.drift.reference import DriftReference
from model_code.drift.settings import DriftSettings
from model_code.errors import FreshetError
from model_code.evaluation.significance import paired_randomisation_test

Tail = Literal["high", "low"]
Scope = Literal["batch", "window"]
QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)
# the measures of harm, which retraining would mend, by kind of query
MADE_QUERIES, ASKED_QUERIES = "new_quality", "asked_quality"


@dataclass(frozen=True, eq=False)
class Statistic:
    """A value and what it would be without drift. tail: on which side of `null` (B,) drift lies."""

    name: str
    value: float
    null: np.ndarray
    tail: Tail = "high"
    scope: Scope = "batch"
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TestResult:
    """A judged measure.

    threshold: the value must lie beyond it, not on it, to trip; None where a limit does not apply
    yet. null: quantiles of the null distribution by level, such as {"0.95": 0.61}; empty where the
    threshold is a limit that the settings name. exceeded_uncorrected: beyond the threshold that it would have
    if the measures of harm that decide were all that shares alpha.
    """

    # Keeps pytest from collecting the class where a test module imports it.
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
        return self.name if self.scope == "batch" else f"{self.name} ({self.scope})"


Of = TypeVar("Of", Statistic, TestResult)


def deciding_measures(measures: Sequence[Of]) -> list[Of]:
    """The measures of harm that decide, of those given.

    What people ask outranks what was cut out of the text: made queries decide nothing where asked
    ones were measured on as many documents. (Made ones saw harm in real documents that asked ones
    find better than old ones, and none where people ask in other words than a text uses.)
    """
    asked = {
        each.scope: each.detail["documents"] for each in measures if each.name == ASKED_QUERIES
    }
    made = [
        each
        for each in measures
        if each.name == MADE_QUERIES and each.detail["documents"] > asked.get(each.scope, 0)
    ]
    return [*made, *(each for each in measures if each.name == ASKED_QUERIES)]


def judge(observations: Sequence[Statistic], alpha: float) -> tuple[TestResult, ...]:
    """Each observation at alpha / k of k, so that the chance of any false alarm is at most alpha
    (Bonferroni).

    Holm's procedure finds the first alarm no sooner, and these thresholds are fixed numbers to
    stand beside values.
    """
    level = alpha / max(len(observations), 1)
    of_harm = alpha / max(len(deciding_measures(observations)), 1)
    return tuple(_judged(observation, level, of_harm) for observation in observations)


def critical_value(null: np.ndarray, level: float, tail: Tail) -> float:
    """The value that must be passed for p = (1 + b) / (1 + B) <= level, where b of the B draws in
    `null` reach it.

    That is the k-th most extreme draw, k = floor(level (1 + B)). With value and draws exchangeable
    the chance to pass it is at most `level`, whatever their distribution. FreshetError if B is too
    small for the level.

    >>> critical_value(np.arange(1, 100), 0.05, "high"), critical_value(np.arange(1, 100), 0.05, "low")
    (95.0, 5.0)
    """
    rank = int(level * (1 + len(null)) + 1e-9)
    if rank < 1:
        raise FreshetError(
            f"{len(null)} draws cannot show a chance of {level:.4g}, which takes {int(np.ceil(1 / level)) - 1}"
        )
    ascending = np.sort(null)
    return float(ascending[-rank] if tail == "high" else ascending[rank - 1])


def _judged(observation: Statistic, level: float, harm_level: float) -> TestResult:
    null, value, tail = observation.null, observation.value, observation.tail
    threshold = critical_value(null, level, tail)
    reached = null >= value if tail == "high" else null <= value
    p = float((1 + reached.sum()) / (1 + len(null)))
    return TestResult(
        observation.name,
        float(value),
        threshold,
        {str(q): float(np.quantile(null, q)) for q in QUANTILES},
        _beyond(value, threshold, tail),
        {**observation.detail, "p": p, "level": level},
        _beyond(value, critical_value(null, harm_level, tail), tail),
        tail,
        observation.scope,
    )


def _beyond(value: float, threshold: float, tail: Tail) -> bool:
    return bool(value > threshold if tail == "high" else value < threshold)


# Measures

FOLDS = 3  # of the domain classifier
MAX_COUNTED_RANK = 10  # a rank beyond counts as not found
# names of model_code.incdsi.adder.Status; any other breaks a constraint
FITS, NOT_REFINED = "FITS", "NOT_REFINED"
Detail = dict[str, Any]


@dataclass(frozen=True, eq=False)
class OldScores:
    """How well old documents are found among all that is live when a report is made, one mean score
    per document.
    """

    # (p,) over its pseudo-queries
    made: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    # (a,) over its judged queries
    asked: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(frozen=True, eq=False)
class Arrivals:
    """What arrived: m documents, and optionally scores of k and of a of them, one per document.

    fingerprint: of the encoder of both. statuses: names of model_code.incdsi.adder.Status, of what
    was refined.
    """

    vectors: np.ndarray  # (m, H) float32, unit norm
    fingerprint: str
    quality: np.ndarray | None = None  # (k,) mean score over a document's held-out pseudo-queries
    asked: np.ndarray | None = None  # (a,) the same over the queries that it arrived with
    statuses: tuple[str, ...] = ()


# Statistics


def domain_auc(old: np.ndarray, new: np.ndarray, seed: int) -> float:
    """How well a classifier tells new vectors (m, H) from old ones (n, H): mean AUC over folds that
    it did not see.

    .5 where it cannot, 1 at most (a classifier two-sample test: Lopez-Paz & Oquab 2017). Both have
    at least FOLDS rows, whose order does not matter.
    """
    rows = np.concatenate([old[canonical(old)], new[canonical(new)]]).astype(np.float64)
    labels = np.repeat([0, 1], [len(old), len(new)])
    areas = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(rows, labels):
        classifier = LogisticRegression().fit(rows[train], labels[train])
        scores, is_new = rows[test] @ classifier.coef_[0], labels[test] == 1
        # ties count half
        above = mannwhitneyu(scores[is_new], scores[~is_new], method="asymptotic").statistic
        areas.append(above / (is_new.sum() * (~is_new).sum()))
    return float(np.mean(areas))


def canonical(vectors: np.ndarray) -> np.ndarray:
    """The rows (n,) of `vectors` (n, H) in an order that does not depend on the order they come in."""
    return np.lexsort(np.ascontiguousarray(vectors.T[:8]))


def mean_difference(old: np.ndarray, new: np.ndarray, seed: int = 0) -> float:
    """Mean of `new` minus mean of `old`."""
    return float(new.mean(dtype=np.float64) - old.mean(dtype=np.float64))


# What is told beside a value


def _count(old: np.ndarray, new: np.ndarray) -> Detail:
    return {"measured": len(new)}


def _means(old: np.ndarray, new: np.ndarray) -> Detail:
    return {"old": float(old.mean()), "new": float(new.mean()), "documents": len(new)}


# The table


@dataclass(frozen=True)
class DriftMeasure:
    """A statistic of what the reference has and of what arrived, and on which side of chance drift
    lies.

    input: the attribute of `Arrivals` that it is about. old: the values of the reference. margin:
    whether a loss of `drift.quality_margin` is no harm. moved: it tells that documents are others,
    which by itself harms nobody.
    """

    name: str
    tail: Tail
    input: str
    old: Callable[[DriftReference, OldScores], np.ndarray]
    # of old values (n, ...), new ones (m, ...) and a seed
    statistic: Callable[[np.ndarray, np.ndarray, int], float]
    detail: Callable[[np.ndarray, np.ndarray], Detail]
    margin: bool = False
    moved: bool = False

    @property
    def of_scores(self) -> bool:
        """Whether it compares scores, which are taken anew for each report."""
        return self.input != "vectors"


MEASURES: Mapping[str, DriftMeasure] = {
    measure.name: measure
    for measure in (
        DriftMeasure(
            "domain_auc",
            "high",
            "vectors",
            lambda kept, _: kept.vectors,
            domain_auc,
            _count,
            moved=True,
        ),
        DriftMeasure(
            MADE_QUERIES,
            "low",
            "quality",
            lambda _, scores: scores.made,
            mean_difference,
            _means,
            margin=True,
        ),
        DriftMeasure(
            ASKED_QUERIES,
            "low",
            "asked",
            lambda _, scores: scores.asked,
            mean_difference,
            _means,
            margin=True,
        ),
    )
}
INPUTS = tuple(dict.fromkeys(measure.input for measure in MEASURES.values()))
SHIFT_MEASURES = tuple(measure.name for measure in MEASURES.values() if measure.moved)


# Measures without a reference


class PairedScores(NamedTuple):
    """Scores of the same queries before and after additions, and the loss to growth that is no
    harm: (q,) each.
    """

    before: np.ndarray
    after: np.ndarray
    crowding: np.ndarray | float = 0.0


def protected_change(scores: PairedScores, settings: DriftSettings) -> Statistic:
    """Mean change of the scores of protected queries, beside changes of random sign around a loss
    that is no harm.

    That loss is `drift.quality_margin` and each query's crowding. The null is that of the paired
    randomisation test (Smucker, Allan & Carterette 2007) of the differences plus that loss.
    `detail` has the two-sided p of the test for any change.
    """
    before, after = scores.before, scores.after
    draws, seed = settings.draws, settings.seed
    change = after.astype(np.float64) - before.astype(np.float64)
    signs = 1.0 - 2.0 * np.random.default_rng([seed, len(change)]).integers(
        2, size=(draws, len(change)), dtype=np.int8
    )
    allowed = settings.quality_margin + np.broadcast_to(scores.crowding, change.shape)
    null = signs @ (change + allowed) / len(change) - allowed.mean()
    detail: Detail = {
        "before": float(before.mean()),
        "after": float(after.mean()),
        "margin": settings.quality_margin,
    }
    detail |= {"crowding": float(allowed.mean() - settings.quality_margin), "queries": len(change)}
    detail["p_any_change"] = float(paired_randomisation_test(change[:, None], draws, seed)[0])
    return Statistic("protected_old", float(change.mean()), null, "low", detail=detail)


def reciprocal_ranks(ranks: np.ndarray) -> np.ndarray:
    """1 / rank, 0 beyond RANKS and for rank 0, which stands for not found: (q,).

    >>> reciprocal_ranks(np.array([1, 4, 11, 0])).tolist()
    [1.0, 0.25, 0.0, 0.0]
    """
    return np.where((ranks > 0) & (ranks <= MAX_COUNTED_RANK), 1 / np.maximum(ranks, 1), 0.0)


def crowding(ranks: np.ndarray, share: float) -> np.ndarray:
    """What each reciprocal rank lost on average while the collection grew to its size from `share`
    of it, by documents like its own: (q,), at least 0. Growing again by as much costs about the
    same.

    ranks: (q,), see `reciprocal_ranks`. Each of the r - 1 documents above an answer was there
    before with chance `share`, S of them, so the mean of 1 / (1 + S) where S < RANKS is P(1 <= T <=
    RANKS) / (r share) with T ~ Binomial(r, share).
    """
    counted = np.maximum(ranks, 1)
    before = (binom.cdf(MAX_COUNTED_RANK, counted, share) - binom.pmf(0, counted, share)) / (
        counted * share
    )
    return np.where(ranks > 0, before - reciprocal_ranks(ranks), 0.0)


def refined_statuses(statuses: Sequence[str]) -> list[str]:
    """The statuses, in capitals, of additions that IncDSI refined: others have no constraints to
    conflict.

    >>> refined_statuses(["fits", "NOT_REFINED", "compromise"])
    ['FITS', 'COMPROMISE']
    """
    return [status.upper() for status in statuses if status.upper() != NOT_REFINED]


def conflicts(
    statuses: Sequence[str], settings: DriftSettings, scope: Scope = "batch"
) -> Statistic:
    """Share of refined additions, of which there is at least one, that break a constraint, beside
    what chance makes of `drift.conflict_limit`: as many additions that each conflict with that
    probability.
    """
    chosen, limit = refined_statuses(statuses), settings.conflict_limit
    count, broken = len(chosen), sum(status != FITS for status in chosen)
    null = (
        np.random.default_rng([settings.seed, count]).binomial(count, limit, settings.draws) / count
    )
    detail = {"limit": limit, "refined": count}
    return Statistic("conflicts", broken / count, null, "high", scope, detail)


def growth(added: int, trained: int, limit: float) -> TestResult:
    """Documents `added` since the last training as a share of those `trained` on.

    >>> growth(30, 100, limit=0.25).exceeded
    True
    """
    exceeded = added / trained > limit
    detail = {"added": added, "trained": trained}
    return TestResult(
        "growth", added / trained, limit, {}, exceeded, detail, exceeded_uncorrected=exceeded
    )
