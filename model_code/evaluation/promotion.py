"""The gate before the registry: may a challenger take the champion's place?"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from model_code.errors import FreshetError
from model_code.evaluation.scores import SystemScores, check_comparable
from model_code.evaluation.settings import PromotionSettings
from model_code.evaluation.significance import bootstrap_interval, paired_randomisation_test


@dataclass(frozen=True)
class PairedDifference:
    """Challenger minus champion on one metric: means, interval of the difference and p of the
    paired test.
    """

    metric: str
    challenger: float
    champion: float
    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Verdict:
    """What the gate decided and why; the promotion history keeps all of it."""

    passed: bool
    reasons: tuple[str, ...]
    queries: int
    intervals: tuple[PairedDifference, ...]


def judge_promotion(
    challenger: SystemScores,
    champion: SystemScores | None,
    settings: PromotionSettings,
    seed: int = 0,
) -> Verdict:
    """Pass the challenger if it is better on `settings.metric` and not worse on any of
    `settings.protected`.

    On the same queries, with d = mean of challenger - champion, p of the two-sided paired
    randomisation test and [low, high] the bootstrap interval of d at 1 - 2 alpha (so each bound is
    one-sided at alpha): *better* is d > 0 and p < alpha; *worse* is d < 0 and p < alpha; *not
    worse* is neither worse nor low < -margin, that is, the queries rule out a loss of more than the
    margin (a non-inferiority test). All conditions must hold together, so no correction for their
    number is needed (an intersection-union test). Without a champion the challenger passes. Raises
    `FreshetError` if the two were not scored on the same queries.
    """
    if champion is None:
        return Verdict(True, ("there is no champion yet",), challenger.queries, ())
    check_comparable([challenger, champion])
    intervals = _paired_differences(challenger, champion, settings, seed)
    objections = _no_gain(intervals, settings) + _losses(intervals, settings)
    reasons = tuple(objections) or (f"better: {_row_text(intervals[settings.metric])}",)
    return Verdict(not objections, reasons, challenger.queries, tuple(intervals.values()))


def judge_retrain(
    challenger: SystemScores,
    champion: SystemScores | None,
    settings: PromotionSettings,
    new: Set[str],
    seed: int = 0,
) -> Verdict:
    """Pass a retrained challenger if it is better on the queries `new` and not worse on any
    protected metric elsewhere.

    new: ids of queries that ask for documents added since the champion was trained. That is what a
    retrain is for: a champion that adds well may keep its place. If none of `new` is judged, or no
    other, all queries are judged together by `judge_promotion`, and the first reason says so.
    Raises `FreshetError` as `judge_promotion` does.
    """
    recent_queries = [query for query in challenger.values.index if query in new]
    others = [query for query in challenger.values.index if query not in new]
    if champion is None or not recent_queries or not others:
        verdict = judge_promotion(challenger, champion, settings, seed)
        kind = "new" if not recent_queries else "old"
        why = f"no judged query asks for one of the {kind} documents, so all queries were judged together"
        return verdict if champion is None else replace(verdict, reasons=(why, *verdict.reasons))
    check_comparable([challenger, champion])
    old = _paired_differences(challenger.only(others), champion.only(others), settings, seed)
    recent = _paired_differences(
        challenger.only(recent_queries), champion.only(recent_queries), settings, seed
    )
    objections = [f"old documents: {text}" for text in _losses(old, settings)]
    objections += [f"new documents: {text}" for text in _no_gain(recent, settings)]
    gain = f"new documents: better: {_row_text(recent[settings.metric])}; old documents: no loss"
    rows = (*_named("old", old), *_named("new", recent))
    return Verdict(not objections, tuple(objections) or (gain,), challenger.queries, rows)


def judge_pilot(
    challenger: SystemScores,
    champion: SystemScores,
    settings: PromotionSettings,
    targets: Mapping[str, str],
    margin: float,
    seed: int = 0,
) -> Verdict:
    """Pass a challenger that was trained on a sample if it finds the new documents better by more
    than `margin`.

    targets: by query the new document that it asks for. A document counts once, by the mean over
    its queries, which share its fate. margin: what two trainings may lie apart by luck, which no
    interval over documents tells; the lower end of the bootstrap interval at 1 - 2 alpha must lie
    above it. What it takes from other queries is told beside, and decides nothing: it was trained
    on a part of their documents.
    """
    check_comparable([challenger, champion])
    recent = _paired_differences(
        _by_document(challenger, targets), _by_document(champion, targets), settings, seed
    )
    goal, rows = recent[settings.metric], _named("new", recent)
    passed = goal.low > margin
    reasons = [
        f"new documents: {'better' if passed else f'not better by more than {margin}'}: {_row_text(goal)}"
    ]
    others = [query for query in challenger.values.index if query not in targets]
    if others:
        old = _paired_differences(challenger.only(others), champion.only(others), settings, seed)
        reasons.append(f"old documents: {_row_text(old[settings.metric])}")
        rows = [*_named("old", old), *rows]
    return Verdict(passed, tuple(reasons), len(targets), tuple(rows))


def _by_document(scores: SystemScores, targets: Mapping[str, str]) -> SystemScores:
    values = scores.values[scores.values.index.isin(list(targets))]
    return replace(scores, values=values.groupby(values.index.map(targets)).mean())


def _named(group: str, rows: dict[str, PairedDifference]) -> list[PairedDifference]:
    return [replace(row, metric=f"{row.metric} ({group} documents)") for row in rows.values()]


def _paired_differences(
    challenger: SystemScores, champion: SystemScores, settings: PromotionSettings, seed: int
) -> dict[str, PairedDifference]:
    metrics = list(dict.fromkeys((settings.metric, *settings.protected)))
    missing = [metric for metric in metrics if metric not in challenger.values.columns]
    if missing:
        raise FreshetError(
            f"the promotion gate has no scores for {', '.join(missing)}: add them to evaluation.metrics"
        )
    if not challenger.queries:
        raise FreshetError("the promotion gate has no judged queries")
    ours, theirs = challenger.values[metrics].to_numpy(), champion.values[metrics].to_numpy()
    low, high = bootstrap_interval(
        ours - theirs, settings.bootstrap_samples, 1 - 2 * settings.alpha, seed
    )
    p = paired_randomisation_test(ours - theirs, settings.permutations, seed)
    columns = (ours.mean(axis=0), theirs.mean(axis=0), (ours - theirs).mean(axis=0), low, high, p)
    rows = (np.column_stack(columns).round(6) + 0.0).tolist()
    return {
        metric: PairedDifference(metric, *row) for metric, row in zip(metrics, rows, strict=True)
    }


def _no_gain(intervals: dict[str, PairedDifference], settings: PromotionSettings) -> list[str]:
    goal = intervals[settings.metric]
    if goal.difference > 0 and goal.p < settings.alpha:
        return []
    return [f"not better: {_row_text(goal)}, needs a rise with p < {settings.alpha}"]


def _losses(intervals: dict[str, PairedDifference], settings: PromotionSettings) -> list[str]:
    objections = []
    for metric in settings.protected:
        row = intervals[metric]
        if row.difference < 0 and row.p < settings.alpha:
            objections.append(f"worse: {_row_text(row)}")
        elif row.low < -settings.margin:
            objections.append(
                f"may be worse: {_row_text(row)}, a loss beyond {settings.margin} is not ruled out"
            )
    return objections


def _row_text(row: PairedDifference) -> str:
    return (
        f"{row.metric} {row.champion:.4f} -> {row.challenger:.4f} "
        f"({row.difference:+.4f} [{row.low:+.4f}, {row.high:+.4f}], p = {row.p:.4f})"
    )
