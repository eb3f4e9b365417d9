"""The measures of drift, and the tests that they share.

Each measure of `MEASURES` is a statistic of the values of old and of new documents. Its null
distribution consists of values of the same statistic without drift (see `calibration`). The
threshold of a measure follows from this distribution, so no threshold has to be chosen by hand.
Further measures do not compare new documents with old ones: `paired_change`, `conflicts` and
`growth`.

Retrieval quality decides whether drift is harmful. The question is whether new documents are found
worse than they would be after a retrain. This cannot be measured without a retrain. Instead, new
documents are compared with old ones in the same live collection, by queries that the retriever was
not trained on.

Protected queries are queries for old documents. They measure how far additions push old documents
down. Any addition does so: on docstrings, 25 % more documents of the same kind cost .029 MRR@10,
and no retrain regains this loss. A loss counts as harm only if it is larger than additions of
documents like the old ones would cause.

A changed document is compared with its own former version, not with other documents. Changed
documents may all come from a part of the collection that was always harder to find, and this is no
drift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from scipy.stats import binom, rankdata

from model_code.drift.descriptions import ASKED_QUERIES, MADE_QUERIES
from model_code.drift.reference import DriftReference
from model_code.drift.settings import DriftSettings
from model_code.drift.statuses import Status
from model_code.errors import FreshetError
from model_code.evaluation.significance import paired_randomisation_test

Tail = Literal["high", "low"]
Scope = Literal["batch", "window"]
Detail = dict[str, Any]

# The quantiles of a measure's values without drift that a report shows, as shares.
QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class Statistic:
    """The value of a drift measure, and its null distribution: the values to expect without drift.

    Attributes:
        name: Name of the measure.
        value: The measured value.
        null: Draws of the null distribution, (B,).
        tail: Whether high or low values show drift.
        scope: Whether the newest batch alone was measured, or the window of the last batches.
        detail: Further numbers for the reader of a report, by name.
    """

    name: str
    value: float
    null: np.ndarray
    tail: Tail = "high"
    scope: Scope = "batch"
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TestResult:
    """The value of a drift measure, compared with its threshold.

    Attributes:
        name: Name of the measure.
        value: The measured value.
        threshold: The threshold. A value that equals it does not exceed it.
        null: Quantiles of the null distribution by level, such as {"0.95": 0.61}. Empty if the
            threshold is a limit in the settings.
        exceeded: Whether the value is beyond the threshold.
        detail: Further numbers for the reader of a report, by name.
        exceeded_uncorrected: Whether the value is beyond a less strict threshold. It would apply if
            only the measures that decide about harm were tested, so that fewer tests share
            `drift.alpha`. See `orchestration.freshness.policy`.
        tail: Whether high or low values show drift.
        scope: Whether the newest batch alone was measured, or the window of the last batches.
    """

    # pytest takes a class whose name begins with Test for a test, unless this is False.
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
        """Name of the measure, followed by " (window)" if it covers the window of the last batches.

        A report may measure the newest batch and the window, and the labels tell them apart.
        """
        if self.scope == "batch":
            return self.name
        return f"{self.name} ({self.scope})"


Measurement = TypeVar("Measurement", Statistic, TestResult)


def deciding_measures(measures: Sequence[Measurement]) -> list[Measurement]:
    """Select the measures of harm that decide whether drift is harmful.

    A measure of harm compares how well queries find new and old documents. Asked queries are typed
    by people, and pseudo-queries are generated from documents. The measure by asked queries
    decides, unless the measure by pseudo-queries covers more documents.

    Pseudo-queries are less reliable because they are cut out of the documents' texts. In
    experiments they reported harm for documents that asked queries find better than old ones. They
    also reported no harm for documents that people ask for in other words than the text uses.
    """
    by_asked_queries = [measure for measure in measures if measure.name == ASKED_QUERIES]
    # By scope (newest batch or window), the number of documents that queries by people ask for.
    asked_documents = {measure.scope: measure.detail["documents"] for measure in by_asked_queries}

    deciding = []
    for measure in measures:
        if measure.name != MADE_QUERIES:
            continue
        if measure.detail["documents"] > asked_documents.get(measure.scope, 0):
            deciding.append(measure)
    return deciding + by_asked_queries


def judge(statistics: Sequence[Statistic], alpha: float) -> tuple[TestResult, ...]:
    """Test each of k statistics at the level alpha / k.

    The chance of any false alarm is then at most alpha (Bonferroni). Holm's procedure would not
    raise a first alarm sooner. Bonferroni's thresholds are fixed numbers that a report can show
    beside the values.

    Args:
        statistics: The measured values with their null distributions.
        alpha: Largest allowed chance of any false alarm.

    Raises:
        FreshetError: If a null distribution has too few draws for its level.
    """
    level = alpha / max(len(statistics), 1)
    harm_level = alpha / max(len(deciding_measures(statistics)), 1)
    return tuple(_test(statistic, level, harm_level) for statistic in statistics)


def critical_value(null: np.ndarray, level: float, tail: Tail) -> float:
    """Return the threshold beyond which a value is significant at a level.

    The p-value of a value is p = (1 + b) / (1 + B), where b of the B draws in `null` are at least
    as extreme as the value. The threshold is the k-th most extreme draw, k = floor(level (1 + B)).
    Beyond it, p <= level. If the value and the draws are exchangeable, the chance of a false alarm
    is at most `level` for any distribution.

    Args:
        null: Draws of the null distribution, (B,).
        level: Largest allowed chance of a false alarm.
        tail: Whether high or low values show drift.

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
    """Compare a statistic with its thresholds.

    Args:
        statistic: The measured value with its null distribution.
        level: Largest allowed chance of a false alarm.
        harm_level: A higher level, for the case that only the measures that decide about harm are
            tested.
    """
    null = statistic.null
    value = statistic.value
    tail = statistic.tail
    threshold = critical_value(null, level, tail)
    harm_threshold = critical_value(null, harm_level, tail)

    # Which draws of the null distribution are at least as extreme as the value.
    is_extreme = null >= value if tail == "high" else null <= value
    detail = dict(statistic.detail)
    detail["p"] = float((1 + is_extreme.sum()) / (1 + len(null)))
    detail["level"] = level
    return TestResult(
        name=statistic.name,
        value=float(value),
        threshold=threshold,
        null={str(q): float(np.quantile(null, q)) for q in QUANTILES},
        exceeded=_is_beyond(value, threshold, tail),
        detail=detail,
        exceeded_uncorrected=_is_beyond(value, harm_threshold, tail),
        tail=tail,
        scope=statistic.scope,
    )


def _is_beyond(value: float, threshold: float, tail: Tail) -> bool:
    """Return whether a value is above a threshold, or below it if low values show drift."""
    if tail == "high":
        return bool(value > threshold)
    return bool(value < threshold)


# Number of folds of the cross-validation of the domain classifier.
FOLDS = 3
# A document below this rank counts as not found: its reciprocal rank is 0.
MAX_COUNTED_RANK = 10


# Largest number of documents that illustrate a measure in a report.
MAX_EXAMPLES = 5


def _no_scores() -> np.ndarray:
    """Return an empty array of scores, for attributes of documents that have none."""
    return np.zeros(0, np.float32)


@dataclass(frozen=True)
class DocumentExample:
    """A document that contributes much to the value of a drift measure.

    Attributes:
        document_id: Id of the document.
        value: The document's part in the measure, such as its score. None if the measure counts
            documents.
        note: An explanation of the value; may be empty.
    """

    document_id: str
    value: float | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class OldScores:
    """Scores that tell how well old documents are found in the live collection.

    Attributes:
        made: Mean score of each document over its pseudo-queries, (p,) float32.
        asked: Mean score of each document over its judged queries, (a,) float32.
    """

    made: np.ndarray = field(default_factory=_no_scores)
    asked: np.ndarray = field(default_factory=_no_scores)


class PairedScores(NamedTuple):
    """Scores of the same q queries, or q documents, before and after additions.

    Attributes:
        before: Scores before the additions, (q,).
        after: Scores after the additions, (q,).
        crowding: Loss of each score that growth alone would cause and that is not harm, (q,).
        document_ids: Id of the document of each score. Empty if the ids are not known.
    """

    before: np.ndarray
    after: np.ndarray
    crowding: np.ndarray
    document_ids: tuple[str, ...] = ()


def no_paired_scores() -> PairedScores:
    """Return paired scores of no query, for batches without changed documents."""
    return PairedScores(_no_scores(), _no_scores(), _no_scores())


@dataclass(frozen=True, eq=False)
class Arrivals:
    """m new documents and c changed ones, and scores of some of them.

    Attributes:
        vectors: Vectors of the new documents, (m, H) float32, of unit norm.
        fingerprint: Fingerprint of the encoder.
        quality: Mean score of a new document over its held-out pseudo-queries, (k,), or None.
        asked: Mean score of a document over the queries that it arrived with, (a,), or None.
        statuses: For each document whose vector IncDSI solved, the name of its
            `model_code.drift.statuses.Status`.
        unscored: Why values are not measured, by the name of the attribute that holds them.
        changed_documents: The number c of documents that training saw in a former version.
        changed: Mean scores of changed documents over their pseudo-queries. Each document has two:
            the score of its former version after the training, and that of its present version.
        vector_ids: Id of the document of each row of `vectors`. Empty if the ids are not known.
        examples: Documents that illustrate a measure, by the name of the measure.
    """

    vectors: np.ndarray
    fingerprint: str
    quality: np.ndarray | None = None
    asked: np.ndarray | None = None
    statuses: tuple[str, ...] = ()
    unscored: Mapping[str, str] = field(default_factory=dict)
    changed_documents: int = 0
    changed: PairedScores = field(default_factory=no_paired_scores)
    vector_ids: tuple[str, ...] = ()
    examples: Mapping[str, tuple[DocumentExample, ...]] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """The number of new and changed documents."""
        return len(self.vectors) + self.changed_documents


def domain_auc(old: np.ndarray, new: np.ndarray, seed: int) -> float:
    """Return how well a classifier tells new vectors from old ones: mean AUC over held-out folds.

    The value is about .5 if the classifier cannot tell them apart, and at most 1 (a classifier
    two-sample test, Lopez-Paz & Oquab 2017). The order of the rows does not matter.

    The classifier scores a vector by its inner product with the difference of the two means.
    Logistic regression takes many times as long, and the null distribution of each batch size needs
    a thousand fits. It detects drift equally well: on average the results differ by less than a
    tenth of a standard deviation of the null distribution.

    Args:
        old: Vectors of old documents, (n, H), n >= FOLDS.
        new: Vectors of new documents, (m, H), m >= FOLDS.
        seed: Random seed of the folds.
    """
    old = old[canonical(old)].astype(np.float64)
    new = new[canonical(new)].astype(np.float64)
    old_folds = _draw_folds(len(old), seed)
    new_folds = _draw_folds(len(new), seed)

    # In each fold, the classifier is fitted to the other documents and tested on those of the fold.
    areas = []
    for old_in_fold, new_in_fold in zip(old_folds, new_folds, strict=True):
        direction = new[~new_in_fold].mean(axis=0) - old[~old_in_fold].mean(axis=0)
        old_scores = old[old_in_fold] @ direction
        new_scores = new[new_in_fold] @ direction
        areas.append(_area(old_scores, new_scores))
    return float(np.mean(areas))


@cache
def _draw_folds(documents: int, seed: int) -> np.ndarray:
    """Return which documents are held out in each fold, (FOLDS, documents) bool."""
    order = np.random.default_rng([seed, documents]).permutation(documents)
    return np.stack([order % FOLDS == fold for fold in range(FOLDS)])


def _area(old: np.ndarray, new: np.ndarray) -> float:
    """Return the area under the ROC curve of a classifier that separates new from old documents.

    It is the share of pairs of an old score (n,) and a new score (m,) in which the new one is
    higher. Ties count one half.

    >>> _area(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.875
    """
    # The rank of a score is the number of scores up to it. So the rank sum of the new scores counts
    # the pairs with an old score, and the pairs of new scores, which are subtracted.
    ranks = rankdata(np.concatenate([old, new]))
    pairs_of_new = len(new) * (len(new) + 1) / 2
    pairs_above = ranks[len(old) :].sum() - pairs_of_new
    return float(pairs_above / (len(old) * len(new)))


def canonical(vectors: np.ndarray) -> np.ndarray:
    """Return an order of the rows of `vectors` (n, H) that does not depend on their given order.

    Rows are sorted by their first eight dimensions, which practically never are all equal.
    """
    return np.lexsort(np.ascontiguousarray(vectors.T[:8]))


def mean_difference(old: np.ndarray, new: np.ndarray, seed: int = 0) -> float:
    """Return the mean of `new` minus the mean of `old`: below 0 if new documents score worse."""
    return float(new.mean(dtype=np.float64) - old.mean(dtype=np.float64))


def _count(old: np.ndarray, new: np.ndarray) -> Detail:
    """Return the number of new documents that were measured, for a report."""
    return {"measured": len(new)}


def _means(old: np.ndarray, new: np.ndarray) -> Detail:
    """Return the mean scores of old and new documents, for a report."""
    return {"old": float(old.mean()), "new": float(new.mean()), "documents": len(new)}


@dataclass(frozen=True)
class DriftMeasure:
    """A drift measure: a statistic that compares values of new documents with those of old ones.

    Attributes:
        name: Name of the measure, which has a row in `descriptions.DESCRIPTIONS`.
        tail: Whether high or low values show drift.
        input: Name of the attribute of `Arrivals` with the values of the new documents.
        old: Function that returns the values of the old documents, from the reference and from
            the scores of old documents.
        statistic: Function of old values (n, ...), new values (m, ...) and a seed that returns a
            number.
        detail: Function of old and new values that returns further numbers for a report.
        margin: Whether a loss of at most `drift.quality_margin` counts as no harm.
        moved: Whether the measure only shows that documents have shifted, which alone is not harm.
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
        """Whether the measure compares scores of documents in searches, instead of their vectors.

        Scores are measured again for each report, so their null distributions are not cached.
        """
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
# Names of the measures that show a shift: new documents differ from old ones.
SHIFT_MEASURES = tuple(measure.name for measure in MEASURES.values() if measure.moved)


def paired_change(
    name: str, scores: PairedScores, settings: DriftSettings, scope: Scope = "batch"
) -> Statistic:
    """Measure the mean change of paired scores.

    A score may lose `drift.quality_margin` plus its crowding without harm. Crowding is the loss
    that growth alone would cause. The paired randomisation test (Smucker, Allan & Carterette 2007)
    tests whether the mean loss is larger than allowed. Its null distribution consists of means of
    the changes, with random signs around the allowed loss. `detail` has the two-sided p-value for
    any change.

    Args:
        name: Name of the measure.
        scores: Scores before and after the additions.
        settings: Margin, number of draws and random seed.
        scope: Whether the newest batch alone is measured, or the window of the last batches.
    """
    before = scores.before
    after = scores.after
    change = after.astype(np.float64) - before.astype(np.float64)
    # The largest loss of each score that does not count as harm.
    allowed = settings.quality_margin + np.broadcast_to(scores.crowding, change.shape)

    # If only the allowed loss had happened, the rest of each change would be positive or negative
    # by chance.
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
    """Return the reciprocals of ranks, (q,).

    The result is 0 for ranks beyond `MAX_COUNTED_RANK`, and for rank 0, which means not found.

    >>> reciprocal_ranks(np.array([1, 4, 11, 0])).tolist()
    [1.0, 0.25, 0.0, 0.0]
    """
    is_counted = (ranks > 0) & (ranks <= MAX_COUNTED_RANK)
    return np.where(is_counted, 1 / np.maximum(ranks, 1), 0.0)


def crowding(ranks: np.ndarray, share: float) -> np.ndarray:
    """Estimate the loss of reciprocal rank of each query that growth by like documents causes.

    It cannot be observed what documents like the old ones would cost, so it is estimated from the
    old documents. Suppose that they themselves had grown from a share `share` of their number. This
    growth costs about as much as the real one. Consider an answer at rank r. Each of the r - 1
    documents above it was there before the growth with probability `share`; let S be the number of
    those. The answer then had rank 1 + S. The mean of 1 / (1 + S) over S < MAX_COUNTED_RANK is
    P(1 <= T <= MAX_COUNTED_RANK) / (r share), with T ~ Binomial(r, share).

    Args:
        ranks: Rank of each query's answer before additions, (q,). 0 means not found.
        share: Number of documents before the growth, as a share of the number now.

    Returns:
        The loss of each query, (q,), at least 0.
    """
    # Rank 0 is replaced, because it would be a divisor. Its loss is set to 0 below.
    counted = np.maximum(ranks, 1)
    # The chance that 1 <= T <= MAX_COUNTED_RANK, for T ~ Binomial(rank, share).
    chance = binom.cdf(MAX_COUNTED_RANK, counted, share) - binom.pmf(0, counted, share)
    reciprocal_rank_before = chance / (counted * share)
    return np.where(ranks > 0, reciprocal_rank_before - reciprocal_ranks(ranks), 0.0)


def lowest_scores(scores: Mapping[str, float]) -> tuple[DocumentExample, ...]:
    """Return the documents with the lowest scores as examples, the lowest first.

    Args:
        scores: Scores by document id.

    >>> [example.document_id for example in lowest_scores({"a": 1.0, "b": 0.0})]
    ['b', 'a']
    """
    worst = sorted(scores.items(), key=lambda item: (item[1], item[0]))
    return tuple(DocumentExample(name, float(score)) for name, score in worst[:MAX_EXAMPLES])


def largest_losses(scores: PairedScores) -> tuple[DocumentExample, ...]:
    """Return the documents with the largest losses of paired scores as examples.

    Args:
        scores: Scores with the ids of their documents. A document may have several scores; its
            largest loss counts.

    >>> before, after = np.array([1.0, 0.5, 0.5]), np.array([0.25, 0.5, 0.0])
    >>> paired = PairedScores(before, after, np.zeros(3), ("a", "b", "c"))
    >>> [(example.document_id, example.value) for example in largest_losses(paired)]
    [('a', -0.75), ('c', -0.5)]
    """
    changes = scores.after - scores.before
    has_ids = len(scores.document_ids) == len(changes)
    if not has_ids:
        return ()

    examples: dict[str, DocumentExample] = {}
    for row in np.argsort(changes, kind="stable").tolist():
        is_loss = changes[row] < 0
        if not is_loss or len(examples) == MAX_EXAMPLES:
            break
        document_id = scores.document_ids[row]
        note = f"{scores.before[row]:.2f} before, {scores.after[row]:.2f} now"
        examples.setdefault(document_id, DocumentExample(document_id, float(changes[row]), note))
    return tuple(examples.values())


def farthest_from_old(old: np.ndarray, arrivals: Arrivals) -> tuple[DocumentExample, ...]:
    """Return the new documents that the classifier of `domain_auc` finds the least like old ones.

    Args:
        old: Vectors of old documents, (n, H).
        arrivals: New documents, with the ids of their vectors.
    """
    new = arrivals.vectors.astype(np.float64)
    has_ids = len(arrivals.vector_ids) == len(new)
    if not len(old) or not len(new) or not has_ids:
        return ()
    direction = new.mean(axis=0) - old.astype(np.float64).mean(axis=0)
    scores = new @ direction
    order = np.argsort(-scores, kind="stable")[:MAX_EXAMPLES]
    return tuple(DocumentExample(arrivals.vector_ids[i], float(scores[i])) for i in order)


def refined_statuses(statuses: Sequence[str]) -> list[str]:
    """Return the statuses of the added documents whose vectors IncDSI solved, in capitals.

    IncDSI solves a vector under constraints: the document must not outrank older documents for
    their own queries. All other added documents have the status NOT_REFINED, and are left out.

    >>> refined_statuses(["fits", "NOT_REFINED", "compromise"])
    ['FITS', 'COMPROMISE']
    """
    upper = [status.upper() for status in statuses]
    return [status for status in upper if status != Status.NOT_REFINED.name]


def conflicts(
    statuses: Sequence[str], settings: DriftSettings, scope: Scope = "batch"
) -> Statistic:
    """Measure the share of added documents that push an older document down for its own query.

    Only documents whose vectors IncDSI solved are counted. IncDSI calls these rules constraints.

    The null distribution is binomial: it supposes that each of these documents breaks a constraint
    with probability `drift.conflict_limit`.

    Args:
        statuses: Statuses of added documents, of which IncDSI solved at least one.
        settings: Limit, number of draws and random seed.
        scope: Whether the newest batch alone is measured, or the window of the last batches.
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
    """Compare the growth of the collection since the last training with a limit.

    Growth is the number of added documents as a share of the number of trained documents. It is
    counted, so it needs no null distribution.

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
