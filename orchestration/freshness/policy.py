"""Decide the next step after a drift check: no action, a retune, a pilot or a retrain.

Everything in this module is a pure function of its arguments. Drift checks and the drift benchmark
call `decide`.

The rules, in order:

1. **Retrain** if the report shows a harm that a retrain repairs:

   - new documents are found significantly worse than old ones. This is measured by the queries that
     documents arrived with or, if too few documents have such queries, by pseudo-queries;
   - changed documents are found worse than their former versions were;
   - additions push old documents down by more than growth alone does.

   A refused retrain is not requested again before enough documents have been added or changed. No
   retrain is requested if the gate has so few judged queries that it would probably refuse it.

2. **Retune** if the weights of the live fusion can be chosen on clearly more judged queries than
   before. If the collection has grown past a limit, half as many further queries suffice. If the
   retriever is no fusion, and so has no weights, such growth calls for a retrain. As for a retrain,
   the gate must have enough judged queries.

3. **Pilot** if documents have shifted and the queries that they arrived with show no harm.
   Documents have shifted if their vectors lie elsewhere than the vectors of old documents. A
   retrain may improve the search for such documents. Only a training on a sample can show this. A
   retrain follows if the pilot finds a gain. So a pilot needs a gate that may accept a retrain.

4. **No action** otherwise, even if vectors have shifted: an encoder may serve new topics well.

Refined documents that break too many of IncDSI's constraints are reported and call for nothing. A
retrain encodes these documents and solves later ones under the same settings, so the conflicts
return. What helps is `additions.refine: false`, or other settings of the solver.

The setting alpha is the chance of a false alarm. Each of the k measures is tested at the level
alpha / k (Bonferroni). If vectors have shifted, the measures of harm are tested a second time and
share all of alpha (`TestResult.exceeded_uncorrected`). The second test counts only after a test of
the first kind has exceeded its threshold (a gatekeeping procedure). Documents like the old ones
therefore still raise a false alarm with a chance of at most alpha, and harmful drift is found
sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from model_code.drift.descriptions import (
    ASKED_QUERIES,
    CHANGED_DOCUMENTS,
    MADE_QUERIES,
    PROTECTED_QUERIES,
)
from model_code.drift.measures import SHIFT_MEASURES, TestResult, deciding_measures
from model_code.drift.report import DriftReport
from model_code.drift.settings import DriftSettings

LIMIT_MEASURES = (CHANGED_DOCUMENTS, PROTECTED_QUERIES)
GROWTH = "growth"
CONFLICTS = "conflicts"
CONFLICTS_REMEDY = "no retrain resolves this: consider additions.refine=false"
PILOT_REASON = (
    "documents have shifted, and the queries that they arrived with show no harm: "
    "a pilot tells whether a retrain would help"
)


class Action(StrEnum):
    """The next step after a drift check."""

    NO_ACTION = "no action"
    RETUNE = "retune"
    PILOT = "pilot"
    RETRAIN = "retrain"


@dataclass(frozen=True)
class PastDecision:
    """The decision for an earlier batch, and the state of the retrain that it led to.

    Attributes:
        action: The decision. It is `RETRAIN` as well if a person started a retrain, or if the
            decision was a pilot and the pilot led to a retrain.
        carried_out: Whether the retrain was trained and judged. Only such a retrain starts a
            cooldown, a number of batches during which no other retrain starts.
        is_open: Whether the retrain is running or will be tried again.
        after_pilot: Whether a pilot led to the retrain.
    """

    action: Action
    carried_out: bool = False
    is_open: bool = False
    after_pilot: bool = False


@dataclass(frozen=True)
class Attempts:
    """Counts that tell whether it is time to try again to adapt the live retriever.

    An attempt is a retune (new weights of the fusion) or a retrain. An attempt whose result the
    gate refused counts as well.

    Attributes:
        queries: Number of judged queries on which weights of the fusion can be chosen now.
        queries_before: Number of such queries at the last choice: the build or the last retune.
        retune_obstacle: The reason why no retune is possible. None if one is.
        changed_since_refusal: Number of documents that were added or changed since the last retrain
            was refused. None if none was refused since the training.
        trained: Number of documents that the retriever was trained on.
        retrain_gate_obstacle: The reason why the gate would probably refuse a retrain, because too
            few queries judge it. None if it may accept one.
        retune_gate_obstacle: The same for a retune.
    """

    queries: int = 0
    queries_before: int = 0
    retune_obstacle: str | None = "no fusion is live"
    changed_since_refusal: int | None = None
    trained: int = 0
    retrain_gate_obstacle: str | None = None
    retune_gate_obstacle: str | None = None


@dataclass(frozen=True)
class Decision:
    """The next step and its reasons.

    Attributes:
        action: The next step.
        reasons: One sentence per reason.
        wanted: The step that is called for. It differs from `action` if this step may not start
            now.
        dry_run: Whether the decision is only shown and not carried out.
    """

    action: Action
    reasons: tuple[str, ...]
    wanted: Action
    dry_run: bool = False

    @property
    def text(self) -> str:
        """Format the decision and its reasons, one line each."""
        headline = f"decision: {self.action}"
        if self.wanted != self.action:
            headline += f" (called for: {self.wanted})"
        if self.dry_run:
            headline += ", a dry run"

        lines = [headline]
        lines.extend(f"  - {reason}" for reason in self.reasons)
        return "\n".join(lines) + "\n"


def decide(
    report: DriftReport,
    past: Sequence[PastDecision],
    settings: DriftSettings,
    judgement_obstacle: str | None = None,
    dry_run: bool = False,
    attempts: Attempts = Attempts(),
) -> Decision:
    """Decide the next step after a drift report.

    Args:
        report: The measures of the newest batch and of the window.
        past: One entry per earlier batch, oldest first.
        settings: The group `drift` of `params.yaml`.
        judgement_obstacle: The reason why the judged queries do not suffice for a retrain, so that
            no retrain starts. None if they suffice.
        dry_run: Recorded in the decision.
        attempts: What has arrived since the last attempts to adapt the retriever.

    Returns:
        The decision with its reasons. A step that is called for but blocked becomes `NO_ACTION`,
        and `wanted` names the step.
    """
    shifted = _exceeded(report, SHIFT_MEASURES)
    harm = _measures_of_harm(report, is_shifted=bool(shifted))
    limits = _exceeded(report, LIMIT_MEASURES)
    growth = _exceeded(report, [GROWTH])
    # Growth calls for a retrain only if the weights of the retriever cannot be chosen again.
    if attempts.retune_obstacle is not None:
        limits.extend(growth)

    if harm or limits:
        causes = [*harm, *limits]
        # A shift of the documents is no reason of its own, but it explains a harm.
        if harm:
            causes.extend(shifted)
        reasons = [describe_measure(measure) for measure in causes]

        obstacle = _retrain_obstacle(past, settings.cooldown)
        if obstacle is None:
            obstacle = refusal_obstacle(attempts, settings.retry_share)
        if obstacle is None:
            obstacle = judgement_obstacle
        if obstacle is None:
            obstacle = attempts.retrain_gate_obstacle
        if obstacle is None:
            return Decision(Action.RETRAIN, tuple(reasons), Action.RETRAIN, dry_run)

        return _hold_back(Action.RETRAIN, reasons, obstacle, dry_run)

    if retune_is_due(attempts, settings.retune_share, has_grown=bool(growth)):
        reason = describe_retune(attempts, growth)
        if attempts.retune_gate_obstacle is None:
            return Decision(Action.RETUNE, (reason,), Action.RETUNE, dry_run)
        return _hold_back(Action.RETUNE, [reason], attempts.retune_gate_obstacle, dry_run)

    reasons = _reasons_against_retrain(report, settings)
    if _pilot_is_due(report, past, settings):
        # A pilot only tells whether a retrain would help. Without judgements, the pilot itself says
        # what is missing.
        if attempts.retrain_gate_obstacle is not None and judgement_obstacle is None:
            return _hold_back(Action.PILOT, reasons, attempts.retrain_gate_obstacle, dry_run)
        command = f"freshet retrain --pilot {settings.pilot_documents}"
        reasons.append(f"{PILOT_REASON} (the sensor starts it; by hand: {command})")
        return Decision(Action.PILOT, tuple(reasons), Action.PILOT, dry_run)
    return Decision(Action.NO_ACTION, tuple(reasons), Action.NO_ACTION, dry_run)


def refusal_obstacle(attempts: Attempts, retry_share: float) -> str | None:
    """Return the reason why a refused retrain is not tried again yet, or None if it may be.

    The gate would refuse it again: little has changed, and it judges with nearly the same queries.

    Args:
        attempts: What has arrived since the last attempts.
        retry_share: Documents added or changed since the refusal, as a share of those trained on,
            from which a retrain may be tried again.

    >>> refusal_obstacle(Attempts(changed_since_refusal=30, trained=100), 0.25)
    >>> refusal_obstacle(Attempts(changed_since_refusal=20, trained=100), 0.25)
    'the gate refused a retrain, and 20 of 25 documents were added or changed since'
    """
    changed = attempts.changed_since_refusal
    needed = ceil(retry_share * attempts.trained)
    if changed is None or changed >= needed:
        return None
    return (
        f"the gate refused a retrain, and {changed:,} of {needed:,} documents were added or "
        "changed since"
    )


def retune_is_due(attempts: Attempts, retune_share: float, has_grown: bool) -> bool:
    """Return whether the weights of the live fusion should be chosen again.

    Args:
        attempts: What has arrived since the last attempts.
        retune_share: How many new judged queries make a retune due, as a share of the queries at
            the last choice. With .5 and 40 queries, 20 new ones do.
        has_grown: Whether so many documents arrived since the last attempt that the measure
            `growth` is beyond its threshold. Then half as many new queries suffice.

    >>> known = Attempts(queries=60, queries_before=40, retune_obstacle=None)
    >>> retune_is_due(known, 0.5, has_grown=False), retune_is_due(known, 0.6, has_grown=False)
    (True, False)
    >>> retune_is_due(known, 0.6, has_grown=True)
    True
    """
    if attempts.retune_obstacle is not None:
        return False
    needed_share = retune_share / 2 if has_grown else retune_share
    return attempts.queries >= (1 + needed_share) * attempts.queries_before


def describe_retune(attempts: Attempts, growth: Sequence[TestResult] = ()) -> str:
    """Explain in one sentence why the weights of the fusion should be chosen again (a retune)."""
    reasons = [
        f"the weights can be chosen on {attempts.queries:,} judged queries, "
        f"{attempts.queries_before:,} at the last choice"
    ]
    reasons.extend(describe_measure(measure) for measure in growth)
    return "; ".join(reasons)


def _hold_back(wanted: Action, reasons: Sequence[str], obstacle: str, dry_run: bool) -> Decision:
    """Return the decision for a step that is called for and may not start.

    Args:
        wanted: The step.
        reasons: Why it is called for.
        obstacle: Why it may not start.
        dry_run: Recorded in the decision.
    """
    all_reasons = (*reasons, f"held back: {obstacle}")
    return Decision(Action.NO_ACTION, all_reasons, wanted, dry_run)


def _exceeded(report: DriftReport, names: Sequence[str]) -> list[TestResult]:
    """Return the results of the named measures that are beyond their thresholds."""
    return [measure for measure in report.of(*names) if measure.exceeded]


def _measures_of_harm(report: DriftReport, is_shifted: bool) -> list[TestResult]:
    """Return the measures that show that new documents are found worse than old ones.

    If the vectors of new documents have shifted, a measure counts by its less strict threshold too.
    """
    harm = []
    for measure in deciding_measures(report.measures):
        # This is the second test of the gatekeeping procedure, which the module's docstring
        # explains.
        exceeded_after_shift = is_shifted and measure.exceeded_uncorrected
        if measure.exceeded or exceeded_after_shift:
            harm.append(measure)
    return harm


def _retrain_obstacle(past: Sequence[PastDecision], cooldown: int) -> str | None:
    """Return the reason why no retrain may start now, or None if one may.

    A batch is the documents between two drift checks. No retrain starts within `cooldown` batches
    after another one, so that its effect can be measured first. A retrain that failed for good is
    ignored.
    """
    if any(decision.is_open for decision in past):
        return "an earlier retrain is still open"

    for decision in _last(past, cooldown):
        if decision.action == Action.RETRAIN and decision.carried_out:
            return f"a retrain was carried out within the last {cooldown} batches"
    return None


def _pilot_is_due(
    report: DriftReport, past: Sequence[PastDecision], settings: DriftSettings
) -> bool:
    """Return whether a pilot could find a gain that the report does not show.

    A pilot is a short training on a sample. It is judged by the queries that documents arrived
    with, so these must have been measured. The cooldown applies to pilots as it does to retrains.
    """
    if settings.pilot_documents is None:
        return False

    asked_queries_were_measured = bool(report.of(ASKED_QUERIES))
    if not asked_queries_were_measured or not _exceeded(report, SHIFT_MEASURES):
        return False

    for decision in _last(past, settings.cooldown):
        if decision.action == Action.PILOT or decision.after_pilot:
            return False
    return _retrain_obstacle(past, settings.cooldown) is None


def _last(past: Sequence[PastDecision], batches: int) -> Sequence[PastDecision]:
    """Return the decisions of the last `batches` drift checks."""
    # With `batches` = 0, the slice past[-0:] would hold all decisions.
    return past[-batches:] if batches else ()


def _reasons_against_retrain(report: DriftReport, settings: DriftSettings) -> list[str]:
    """Explain why the report calls for no retrain."""
    if not report.exceeded:
        return [_describe_no_drift(report, settings)]

    reasons = []
    for measure in report.exceeded:
        reason = describe_measure(measure)
        if measure.name == CONFLICTS:
            reason += f" ({CONFLICTS_REMEDY})"
        reasons.append(reason)
    shifted_or_grown = [measure for measure in report.exceeded if measure.name != CONFLICTS]
    if not shifted_or_grown:
        return reasons
    # A measure may have a result for the batch and one for the window. The mapping keeps the one
    # for the window, which comes last.
    harmless = {measure.name: measure for measure in deciding_measures(report.measures)}
    if harmless:
        descriptions = [describe_measure(measure) for measure in harmless.values()]
        reasons.append(f"no harm: {', '.join(descriptions)}")
    else:
        reasons.append(f"harm is unknown: neither {MADE_QUERIES} nor {ASKED_QUERIES} was measured")
    return reasons


def _describe_no_drift(report: DriftReport, settings: DriftSettings) -> str:
    """Say why no measure is beyond its threshold: too few documents, or no drift."""
    documents = max(report.documents, report.window_documents)
    if documents < settings.minimum_batch:
        return (
            f"too few documents to measure: {documents} so far, "
            f"drift.minimum_batch is {settings.minimum_batch}"
        )
    if len(report.measures) == 1:
        return f"{describe_measure(report.measures[0])}, and nothing else was measured"
    return f"none of {len(report.measures)} measures is beyond its threshold"


def describe_measure(measure: TestResult) -> str:
    """Compare a measure with its threshold in words.

    >>> describe_measure(TestResult("growth", 0.6, 0.5, {}, True, {}))
    'growth 0.6000 is above 0.5000'
    >>> quality = TestResult("new_quality", -0.01, -0.02, {}, False, {}, tail="low", scope="window")
    >>> describe_measure(quality)
    'new_quality (window) -0.0100 is not below -0.0200'
    """
    side = "above" if measure.tail == "high" else "below"
    value = f"{measure.label} {measure.value:.4f}"

    if measure.exceeded:
        return f"{value} is {side} {measure.threshold:.4f}"
    if measure.exceeded_uncorrected:
        return f"{value} is {side} the threshold that applies if only harm is tested"
    return f"{value} is not {side} {measure.threshold:.4f}"
