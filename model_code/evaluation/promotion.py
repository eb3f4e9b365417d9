"""The gate: the statistical test that decides whether a challenger may replace the champion.

The champion is the retriever that is searched by default. A challenger is a newly registered one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from model_code.errors import FreshetError
from model_code.evaluation.scores import SCORE_DECIMALS, SystemScores, check_comparable
from model_code.evaluation.settings import PromotionSettings
from model_code.evaluation.significance import (
    bootstrap_interval,
    paired_randomisation_test,
    queries_for_gain,
)

# Messages state how many queries the gate needs to detect a gain of SHOWN_GAIN in the metric with
# the probability POWER.
SHOWN_GAIN = 0.02
POWER = 0.8


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of a metric between challenger and champion over the same queries.

    Attributes:
        metric: Name of the metric. If only a group of queries was compared, the name of the group
            follows in brackets.
        challenger: Mean score of the challenger.
        champion: Mean score of the champion.
        difference: Mean of challenger minus champion over the queries.
        low: Lower bound of the difference, one-sided at alpha.
        high: Upper bound of the difference, one-sided at alpha.
        p: Two-sided p of the paired randomisation test.
        queries: Number of queries that were compared.
        queries_for_gain: Number of queries with which the test detects a gain of `SHOWN_GAIN` with
            a probability of `POWER`. None if the scores of no query differ.
        deviation: Standard deviation of challenger minus champion over the queries.
    """

    metric: str
    challenger: float
    champion: float
    difference: float
    low: float
    high: float
    p: float
    queries: int = 0
    queries_for_gain: int | None = None
    deviation: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """The decision of the gate, with its reasons and numbers.

    The promotion history stores the whole verdict.

    Attributes:
        passed: Whether the challenger may be promoted.
        reasons: Reasons of the decision, one sentence each.
        queries: Number of judged queries.
        intervals: The differences on which the decision is based.
        by_known_queries: The same differences for two groups of queries. The decision ignores
            them. "with_known" are the queries with a relevant document that has a known query for
            the challenger or the champion. "without_known" are all others. A known query is a query
            that a document is known to answer.
        findings: Statements about the challenger that the decision ignores: groups of queries on
            which a lookup of known queries is better, and the agreement that shadow mode found.
    """

    passed: bool
    reasons: tuple[str, ...]
    queries: int
    intervals: tuple[PairedDifference, ...]
    by_known_queries: Mapping[str, tuple[PairedDifference, ...]] = field(default_factory=dict)
    findings: tuple[str, ...] = ()

    @property
    def statements(self) -> tuple[str, ...]:
        """The reasons of the decision, followed by what did not influence it."""
        return (*self.reasons, *self.group_statements, *self.findings)

    @property
    def group_statements(self) -> tuple[str, ...]:
        """The gain on documents with known queries, and on others; empty if a group has no query.

        A known query is a query that a document is known to answer.
        """
        if len(self.by_known_queries) < 2:
            return ()
        texts: list[str] = []
        for group, rows in self.by_known_queries.items():
            # The first row has the metric that the challenger should improve.
            row = rows[0]
            kind = group.replace("_", " ")
            texts.append(
                f"documents {kind} queries: {row.metric} {row.champion:.4f} -> "
                f"{row.challenger:.4f} ({row.queries:,} queries)"
            )
        return tuple(texts)


def judge_promotion(
    challenger: SystemScores,
    champion: SystemScores | None,
    settings: PromotionSettings,
    seed: int = 0,
) -> Verdict:
    """Pass the challenger if it is better on one metric and not worse on any protected metric.

    Let d be the mean of challenger - champion, and p the two-sided p of the paired randomisation
    test. Let [low, high] be the bootstrap interval of d at 1 - 2 alpha, so that each bound is
    one-sided at alpha.

    - *Better*: d > 0 and p < alpha.
    - *Worse*: d < 0 and p < alpha.
    - *Not worse*: it is not worse, and low >= -margin. Then the queries rule out a loss greater
      than the margin (a non-inferiority test).

    All conditions must hold at once, so no correction for multiple tests is needed (an
    intersection-union test).

    Args:
        challenger: Scores of the challenger.
        champion: Scores of the champion on the same queries. None if there is no champion. Then the
            challenger passes.
        settings: Metrics, alpha and margin.
        seed: Seed of the resamples.

    Raises:
        FreshetError: If the two were not scored on the same queries, or a metric was not scored.
    """
    if champion is None:
        return Verdict(True, ("there was no champion before",), challenger.queries, ())
    check_comparable([challenger, champion])

    differences = _paired_differences(challenger, champion, settings, seed)
    reasons = _missing_gain(differences, settings) + _losses(differences, settings)
    passed = not reasons
    if passed:
        reasons = [f"better: {_difference_text(differences[settings.metric])}"]
    return Verdict(
        passed,
        tuple(reasons),
        challenger.queries,
        tuple(differences.values()),
        _by_known_queries(challenger, champion, settings, seed),
    )


def judge_retrain(
    challenger: SystemScores,
    champion: SystemScores | None,
    settings: PromotionSettings,
    new: Set[str],
    seed: int = 0,
) -> Verdict:
    """Pass a retrained challenger if it finds new documents better and old ones not worse.

    The purpose of a retrain is better results for new documents. So the challenger must be better
    on the queries `new`, and must not be worse on any protected metric on the other queries. If one
    of these two groups has no judged query, `judge_promotion` decides on all queries together. The
    first reason of the verdict then states this.

    Args:
        challenger: Scores of the challenger.
        champion: Scores of the champion on the same queries, or None.
        settings: Metrics, alpha and margin.
        new: Ids of queries that ask for documents which were added after the champion's training.
        seed: Seed of the resamples.

    Raises:
        FreshetError: As `judge_promotion`.
    """
    if champion is None:
        return judge_promotion(challenger, champion, settings, seed)

    new_queries = [query for query in challenger.values.index if query in new]
    old_queries = [query for query in challenger.values.index if query not in new]
    if not new_queries or not old_queries:
        verdict = judge_promotion(challenger, champion, settings, seed)
        missing_kind = "old" if new_queries else "new"
        reason = (
            f"no judged query asks for one of the {missing_kind} documents, "
            "so all queries were judged together"
        )
        return replace(verdict, reasons=(reason, *verdict.reasons))

    check_comparable([challenger, champion])
    old_differences = _paired_differences_of(old_queries, challenger, champion, settings, seed)
    new_differences = _paired_differences_of(new_queries, challenger, champion, settings, seed)
    reasons = [f"old documents: {text}" for text in _losses(old_differences, settings)]
    reasons += [f"new documents: {text}" for text in _missing_gain(new_differences, settings)]
    passed = not reasons
    if passed:
        gain = _difference_text(new_differences[settings.metric])
        reasons = [f"new documents: better: {gain}; old documents: no loss"]
    return Verdict(
        passed,
        tuple(reasons),
        challenger.queries,
        (*_name_group("old", old_differences), *_name_group("new", new_differences)),
        _by_known_queries(challenger, champion, settings, seed),
    )


def judge_pilot(
    challenger: SystemScores,
    champion: SystemScores,
    settings: PromotionSettings,
    targets: Mapping[str, str],
    margin: float,
    seed: int = 0,
) -> Verdict:
    """Pass a challenger that was trained on a sample if it finds the new documents better.

    The scores of a document's queries are averaged, because these queries are not independent. The
    lower bound of the bootstrap interval at 1 - 2 alpha must be greater than `margin`. The
    difference on other queries is only reported. It would be unfair to decide by it, because the
    challenger was trained on a sample of the old documents.

    Args:
        challenger: Scores of the challenger.
        champion: Scores of the champion on the same queries.
        settings: Metrics and alpha.
        targets: Id of the new document that each query asks for, by query id.
        margin: Difference that two trainings may have by chance. An interval over documents does
            not cover this variance.
        seed: Seed of the resamples.

    Raises:
        FreshetError: As `judge_promotion`.
    """
    check_comparable([challenger, champion])
    new_differences = _paired_differences(
        _average_by_document(challenger, targets),
        _average_by_document(champion, targets),
        settings,
        seed,
    )
    goal = new_differences[settings.metric]
    rows = _name_group("new", new_differences)
    passed = goal.low > margin
    outcome = "better" if passed else f"not better by more than {margin}"
    reasons = [f"new documents: {outcome}: {_difference_text(goal)}"]

    old_queries = [query for query in challenger.values.index if query not in targets]
    if old_queries:
        old_differences = _paired_differences_of(old_queries, challenger, champion, settings, seed)
        old_goal = old_differences[settings.metric]
        reasons.append(f"old documents: {_difference_text(old_goal)}")
        rows = _name_group("old", old_differences) + rows
    return Verdict(
        passed,
        tuple(reasons),
        len(targets),
        tuple(rows),
        _by_known_queries(challenger, champion, settings, seed),
    )


def find_groups_below(system: SystemScores, reference: SystemScores, metric: str) -> list[str]:
    """Describe the groups of queries on which a system has a lower mean than a reference.

    Args:
        system: Scores of the system, with the queries for documents with known queries.
        reference: Scores of the reference on the same queries.
        metric: Name of the compared metric.

    Returns:
        A sentence for each group on which the system is below the reference. The groups are the
        queries for documents with known queries, and all others.
    """
    sentences: list[str] = []
    for group, scores in system.by_known_queries().items():
        mean = scores.values[metric].mean()
        reference_mean = reference.restrict_to(scores.values.index).values[metric].mean()
        if mean < reference_mean:
            kind = group.replace("_", " ")
            sentences.append(
                f"below {reference.system} on documents {kind} queries: {metric} {mean:.4f} "
                f"against {reference_mean:.4f} ({scores.queries:,} queries)"
            )
    return sentences


def _average_by_document(scores: SystemScores, targets: Mapping[str, str]) -> SystemScores:
    """Return the mean scores of the queries that ask for the same document.

    Args:
        scores: Scores by query.
        targets: Id of the document that a query asks for, by query id. Other queries are left out.

    Returns:
        Scores with one row per document.
    """
    values = scores.restrict_to(targets).values
    document_of_query = values.index.map(targets)
    return replace(scores, values=values.groupby(document_of_query).mean())


def _name_group(group: str, differences: dict[str, PairedDifference]) -> list[PairedDifference]:
    """Add the compared group to the metric of each difference, as in "(new documents)"."""
    return [
        replace(row, metric=f"{row.metric} ({group} documents)") for row in differences.values()
    ]


def _by_known_queries(
    challenger: SystemScores, champion: SystemScores, settings: PromotionSettings, seed: int
) -> dict[str, tuple[PairedDifference, ...]]:
    """Compare challenger and champion on queries that memory may answer, and on others.

    See `Verdict.by_known_queries` for the two groups. The champion can know queries that arrived
    after the challenger was built.
    """
    groups = {}
    grouped = replace(challenger, with_known=challenger.with_known | champion.with_known)
    for name, challenger_scores in grouped.by_known_queries().items():
        champion_scores = champion.restrict_to(challenger_scores.values.index)
        rows = _paired_differences(challenger_scores, champion_scores, settings, seed)
        groups[name] = tuple(rows.values())
    return groups


def _paired_differences_of(
    queries: Sequence[str],
    challenger: SystemScores,
    champion: SystemScores,
    settings: PromotionSettings,
    seed: int,
) -> dict[str, PairedDifference]:
    """Compare challenger and champion on the given queries only; see `_paired_differences`."""
    return _paired_differences(
        challenger.restrict_to(queries), champion.restrict_to(queries), settings, seed
    )


def _paired_differences(
    challenger: SystemScores, champion: SystemScores, settings: PromotionSettings, seed: int
) -> dict[str, PairedDifference]:
    """Compare challenger and champion on every metric that the gate reads.

    Args:
        challenger: Scores of the challenger.
        champion: Scores of the champion on the same queries.
        settings: Metrics, alpha, and numbers of resamples.
        seed: Seed of the resamples.

    Returns:
        The difference on each metric, by the name of the metric.

    Raises:
        FreshetError: If a metric was not scored, or no query is judged.
    """
    metrics = list(dict.fromkeys((settings.metric, *settings.protected)))
    missing = [metric for metric in metrics if metric not in challenger.values.columns]
    if missing:
        raise FreshetError(
            f"the promotion gate has no scores for {', '.join(missing)}: add them to "
            "evaluation.metrics"
        )
    if not challenger.queries:
        raise FreshetError("the promotion gate has no judged queries")

    # The scores have the shape (queries, metrics). An interval at 1 - 2 alpha has two bounds that
    # are each one-sided at alpha.
    challenger_scores = challenger.values[metrics].to_numpy()
    champion_scores = champion.values[metrics].to_numpy()
    differences = challenger_scores - champion_scores
    confidence = 1 - 2 * settings.alpha
    low, high = bootstrap_interval(differences, settings.bootstrap_samples, confidence, seed)
    p = paired_randomisation_test(differences, settings.permutations, seed)

    columns = (
        challenger_scores.mean(axis=0),
        champion_scores.mean(axis=0),
        differences.mean(axis=0),
        low,
        high,
        p,
    )
    # A row has the numbers of a metric, in the order of the attributes of `PairedDifference`.
    # Adding 0 turns -0.0 into 0.0.
    rows = np.column_stack(columns).round(SCORE_DECIMALS) + 0.0
    deviations = differences.std(axis=0)
    paired: dict[str, PairedDifference] = {}
    for metric, row, deviation in zip(metrics, rows.tolist(), deviations.tolist(), strict=True):
        needed_queries = queries_for_gain(deviation, SHOWN_GAIN, settings.alpha, POWER)
        paired[metric] = PairedDifference(
            metric, *row, challenger.queries, needed_queries, round(deviation, SCORE_DECIMALS)
        )
    return paired


def _missing_gain(
    differences: dict[str, PairedDifference], settings: PromotionSettings
) -> list[str]:
    """Return the reason why the challenger is not better on the goal metric; empty if it is."""
    goal = differences[settings.metric]
    is_better = goal.difference > 0 and goal.p < settings.alpha
    if is_better:
        return []
    reason = f"not better: {_difference_text(goal)}, needs a rise with p < {settings.alpha}"
    if goal.queries_for_gain is not None:
        reason += (
            f"; {goal.queries:,} queries were judged, and about {goal.queries_for_gain:,} show a "
            f"gain of {SHOWN_GAIN} with {POWER:.0%} power"
        )
    return [reason]


def _losses(differences: dict[str, PairedDifference], settings: PromotionSettings) -> list[str]:
    """Return a reason for each protected metric on which the challenger is or may be worse."""
    reasons = []
    for metric in settings.protected:
        row = differences[metric]
        text = _difference_text(row)
        is_worse = row.difference < 0 and row.p < settings.alpha
        may_be_worse = row.low < -settings.margin
        if is_worse:
            reasons.append(f"worse: {text}")
        elif may_be_worse:
            reasons.append(
                f"may be worse: {text}, a loss beyond {settings.margin} is not ruled out"
            )
    return reasons


def _difference_text(row: PairedDifference) -> str:
    """Return both means of a metric, their difference with its interval, and its p-value."""
    return (
        f"{row.metric} {row.champion:.4f} -> {row.challenger:.4f} "
        f"({row.difference:+.4f} [{row.low:+.4f}, {row.high:+.4f}], p = {row.p:.4f})"
    )
