"""Guards which measures lead to which action, what a cooldown holds back, and the reasons shown."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from model_code.drift.measures import TestResult
from model_code.drift.report import DriftReport, SkippedMeasure
from model_code.drift.settings import DriftSettings
from orchestration.freshness.policy import (
    CONFLICTS_REMEDY,
    PILOT_REASON,
    Action,
    Attempts,
    PastDecision,
    decide,
    refusal_obstacle,
    retune_is_due,
)
from orchestration.registry.gate import NO_JUDGED_QUERIES

NO_ACTION, RETUNE, PILOT, RETRAIN = Action

SETTINGS = DriftSettings(cooldown=2)
NULL = {"0.01": -0.1, "0.05": -0.05, "0.5": 0.0, "0.95": 0.05, "0.99": 0.1}
NAMES = ("domain_auc", "new_quality", "asked_quality", "conflicts", "protected_old", "growth")
DOCUMENTS = 150

CARRIED_OUT = PastDecision(RETRAIN, carried_out=True)
FAILED = PastDecision(RETRAIN)
OPEN = PastDecision(RETRAIN, is_open=True)
ADDED = PastDecision(NO_ACTION)


def make_report(*exceeded: str, asked_documents: int = 120) -> DriftReport:
    """Make a report in which some measures exceed their thresholds.

    exceeded: names of measures. `name?` exceeds its threshold only if harm alone is tested, and
        `name@window` is a result for the window.
    asked_documents: new documents that arrived with queries.
    """
    documents = {"asked_quality": asked_documents}
    measures = {}
    for name in NAMES:
        detail = {"p": 0.5, "documents": documents.get(name, DOCUMENTS)}
        measures[name] = TestResult(name, 0.0, 0.2, NULL, False, detail)

    for state in exceeded:
        name, _, scope = state.rstrip("?").partition("@")
        is_exceeded = not state.endswith("?")
        measures[state] = TestResult(
            name,
            value=0.3 if is_exceeded else 0.15,
            threshold=0.2,
            null=NULL,
            exceeded=is_exceeded,
            detail={"p": 0.001, "documents": documents.get(name, DOCUMENTS)},
            exceeded_uncorrected=True,
            scope=scope or "batch",
        )
    return DriftReport(DOCUMENTS, 1, DOCUMENTS, 0.05, tuple(measures.values()))


def without(report: DriftReport, *names: str) -> DriftReport:
    """Remove measures from a report."""
    measures = tuple(measure for measure in report.measures if measure.name not in names)
    return replace(report, measures=measures)


@pytest.mark.parametrize(
    "exceeded",
    [
        (),
        ("new_quality?",),
        ("asked_quality?",),
        ("domain_auc?", "new_quality?"),
    ],
)
def test_no_action_without_drift(exceeded):
    decision = decide(make_report(*exceeded), (), SETTINGS)

    assert decision.action == NO_ACTION
    assert decision.wanted == NO_ACTION
    assert decision.reasons


@pytest.mark.parametrize("exceeded", ["domain_auc", "domain_auc@window"])
def test_shift_without_harm_calls_for_pilot(exceeded):
    decision = decide(make_report(exceeded), (), SETTINGS)

    assert decision.action == PILOT
    assert decision.wanted == PILOT
    assert decision.reasons[-1].startswith(PILOT_REASON)
    assert f"freshet retrain --pilot {SETTINGS.pilot_documents}" in decision.reasons[-1]


@pytest.mark.parametrize(
    "exceeded",
    [
        ("new_quality",),
        ("new_quality@window",),
        ("asked_quality",),
        ("domain_auc", "asked_quality"),
        ("domain_auc", "asked_quality?"),
        ("domain_auc", "new_quality?"),
        ("domain_auc@window", "new_quality?"),
        ("growth",),
        ("protected_old",),
        ("protected_old", "domain_auc"),
    ],
)
def test_harm_calls_for_retrain(exceeded):
    decision = decide(make_report(*exceeded), (), SETTINGS)

    assert decision.action == RETRAIN
    assert decision.wanted == RETRAIN
    assert decision.reasons


@pytest.mark.parametrize(
    ("past", "action"),
    [
        ([CARRIED_OUT], NO_ACTION),
        ([CARRIED_OUT, ADDED], NO_ACTION),
        ([CARRIED_OUT, ADDED, ADDED], RETRAIN),
        ([FAILED], RETRAIN),
        ([ADDED, ADDED], RETRAIN),
    ],
)
def test_retrain_is_held_back_by_cooldown(past, action):
    decision = decide(make_report("growth"), past, SETTINGS)

    assert decision.action == action
    assert decision.wanted == RETRAIN
    is_held_back = any("held back" in reason for reason in decision.reasons)
    assert is_held_back == (action == NO_ACTION)


@pytest.mark.parametrize("past", [[CARRIED_OUT], [CARRIED_OUT, ADDED], [FAILED]])
def test_retrain_is_not_held_back_without_cooldown(past):
    decision = decide(make_report("growth"), past, SETTINGS.replace(cooldown=0))

    assert decision.action == RETRAIN


def test_retrain_is_held_back_by_open_retrain():
    past = [OPEN, *[ADDED] * 9]

    decision = decide(make_report("growth"), past, SETTINGS.replace(cooldown=0))

    assert decision.action == NO_ACTION
    assert decision.wanted == RETRAIN
    assert decision.reasons[-1] == "held back: an earlier retrain is still open"


def test_retrain_is_held_back_without_judged_queries():
    decision = decide(make_report("growth"), (), SETTINGS, judgement_obstacle=NO_JUDGED_QUERIES)

    assert decision.action == NO_ACTION
    assert decision.wanted == RETRAIN
    assert decision.reasons[-1] == f"held back: {NO_JUDGED_QUERIES}"


def test_pilot_does_not_need_judged_queries_of_gate():
    decision = decide(make_report("domain_auc"), (), SETTINGS, judgement_obstacle=NO_JUDGED_QUERIES)

    assert decision.action == PILOT


def test_pilots_can_be_switched_off():
    settings = SETTINGS.replace(pilot_documents=None)

    decision = decide(make_report("domain_auc"), (), settings)

    assert decision.action == NO_ACTION


@pytest.mark.parametrize("missing", [("asked_quality",), ("asked_quality", "new_quality")])
def test_no_pilot_without_arrived_queries(missing):
    report = without(make_report("domain_auc"), *missing)

    decision = decide(report, (), SETTINGS)

    assert decision.action == NO_ACTION
    harm_is_unknown = "new_quality" in missing
    assert ("harm is unknown" in decision.reasons[-1]) == harm_is_unknown


@pytest.mark.parametrize(
    ("past", "action"),
    [
        ([PastDecision(PILOT)], NO_ACTION),
        ([PastDecision(PILOT), ADDED], NO_ACTION),
        ([PastDecision(PILOT), ADDED, ADDED], PILOT),
        ([PastDecision(RETRAIN, after_pilot=True)], NO_ACTION),
        ([CARRIED_OUT, ADDED], NO_ACTION),
        ([OPEN, ADDED, ADDED, ADDED], NO_ACTION),
        ([FAILED], PILOT),
        ([ADDED], PILOT),
    ],
)
def test_pilot_is_held_back_by_cooldown(past, action):
    assert decide(make_report("domain_auc"), past, SETTINGS).action == action


@pytest.mark.parametrize(
    ("exceeded", "is_retrain"),
    [
        (("new_quality",), False),
        (("new_quality", "domain_auc"), False),
        (("domain_auc", "new_quality?"), False),
        # Arrived queries are measured for the batch alone.
        (("new_quality@window",), True),
        (("asked_quality",), True),
        (("domain_auc", "asked_quality?"), True),
        (("new_quality", "asked_quality"), True),
    ],
)
def test_arrived_queries_outrank_pseudo_queries(exceeded, is_retrain):
    report = make_report(*exceeded, asked_documents=DOCUMENTS)

    decision = decide(report, (), SETTINGS)

    assert (decision.action == RETRAIN) == is_retrain


def test_harmless_pseudo_query_result_is_shown():
    report = make_report("new_quality", asked_documents=DOCUMENTS)

    exceeded, harmless = decide(report, (), SETTINGS).reasons

    assert exceeded == "new_quality 0.3000 is above 0.2000"
    assert harmless.startswith("no harm: asked_quality")


def test_reasons_compare_measures_with_thresholds():
    assert decide(make_report("growth"), (), SETTINGS).reasons == ("growth 0.3000 is above 0.2000",)
    assert decide(make_report(), (), SETTINGS).reasons == (
        "none of 6 measures is beyond its threshold",
    )


def test_reasons_name_measures_without_harm():
    shift, harmless, _ = decide(make_report("domain_auc"), (), SETTINGS).reasons

    assert shift == "domain_auc 0.3000 is above 0.2000"
    assert harmless == (
        "no harm: new_quality 0.0000 is not above 0.2000, asked_quality 0.0000 is not above 0.2000"
    )


def test_other_exceeded_measure_is_named():
    report = make_report()
    other = replace(report.measures[0], name="new_words", value=0.3, exceeded=True)
    report = replace(report, measures=(*report.measures, other))

    decision = decide(report, (), SETTINGS)

    assert decision.action == NO_ACTION
    assert decision.reasons[0] == "new_words 0.3000 is above 0.2000"


def test_small_batch_is_counted_but_not_measured():
    small = replace(make_report(), documents=20, window_documents=60)
    grown = replace(make_report("growth"), documents=20)

    assert "60 so far, drift.minimum_batch is 100" in decide(small, (), SETTINGS).reasons[0]
    assert decide(grown, (), SETTINGS).action == RETRAIN


@pytest.mark.parametrize(
    ("queries", "before", "has_grown", "is_due"),
    [
        (60, 40, False, True),
        (59, 40, False, False),
        (50, 40, True, True),
        (49, 40, True, False),
        (40, 40, False, False),
    ],
)
def test_retune_is_due_with_further_queries(queries, before, has_grown, is_due):
    attempts = Attempts(queries, before, retune_obstacle=None)

    assert retune_is_due(attempts, 0.5, has_grown) == is_due
    obstructed = replace(attempts, retune_obstacle="too few queries")
    assert not retune_is_due(obstructed, 0.5, has_grown)


@pytest.mark.parametrize(
    ("changed", "trained", "is_held_back"),
    [(None, 100, False), (0, 100, True), (24, 100, True), (25, 100, False), (25, 101, True)],
)
def test_refused_retrain_waits_for_changes(changed, trained, is_held_back):
    attempts = Attempts(changed_since_refusal=changed, trained=trained)

    assert (refusal_obstacle(attempts, 0.25) is not None) == is_held_back


def test_refused_retrain_is_not_requested_again_soon():
    attempts = Attempts(changed_since_refusal=10, trained=100)

    decision = decide(make_report("new_quality"), (), SETTINGS, attempts=attempts)

    assert decision.action == NO_ACTION
    assert decision.wanted == RETRAIN
    assert "10 of 25 documents" in decision.reasons[-1]


def test_further_judged_queries_call_for_retune():
    attempts = Attempts(60, 40, retune_obstacle=None)

    decision = decide(make_report(), (), SETTINGS, attempts=attempts)

    assert decision.action == RETUNE
    assert "60 judged queries, 40 at the last choice" in decision.reasons[0]


def test_growth_of_a_fusion_calls_for_retune():
    attempts = Attempts(50, 40, retune_obstacle=None)

    decision = decide(make_report("growth"), (), SETTINGS, attempts=attempts)

    assert decision.action == RETUNE
    assert "growth 0.3000 is above 0.2000" in decision.reasons[0]


def test_harm_outranks_retune():
    attempts = Attempts(60, 40, retune_obstacle=None)

    decision = decide(make_report("new_quality"), (), SETTINGS, attempts=attempts)

    assert decision.action == RETRAIN


def test_retune_outranks_pilot():
    attempts = Attempts(60, 40, retune_obstacle=None)

    decision = decide(make_report("domain_auc"), (), SETTINGS, attempts=attempts)

    assert decision.action == RETUNE


FEW_QUERIES = "the gate would probably refuse it: too few queries"


def test_retrain_is_held_back_by_few_gate_queries():
    attempts = Attempts(retrain_gate_obstacle=FEW_QUERIES)

    decision = decide(make_report("new_quality"), (), SETTINGS, attempts=attempts)

    assert decision.action == NO_ACTION
    assert decision.wanted == RETRAIN
    assert decision.reasons[-1] == f"held back: {FEW_QUERIES}"


def test_missing_judgements_are_named_before_few_gate_queries():
    attempts = Attempts(retrain_gate_obstacle=FEW_QUERIES)

    decision = decide(make_report("growth"), (), SETTINGS, NO_JUDGED_QUERIES, attempts=attempts)

    assert decision.reasons[-1] == f"held back: {NO_JUDGED_QUERIES}"


def test_retune_is_held_back_by_few_gate_queries():
    attempts = Attempts(60, 40, retune_obstacle=None, retune_gate_obstacle=FEW_QUERIES)

    decision = decide(make_report(), (), SETTINGS, attempts=attempts)

    assert decision.action == NO_ACTION
    assert decision.wanted == RETUNE
    assert "60 judged queries" in decision.reasons[0]
    assert decision.reasons[-1] == f"held back: {FEW_QUERIES}"


@pytest.mark.parametrize("kind", ["retrain_gate_obstacle", "retune_gate_obstacle"])
def test_few_gate_queries_of_one_kind_hold_back_that_kind_only(kind):
    attempts = replace(Attempts(60, 40, retune_obstacle=None), **{kind: FEW_QUERIES})

    harm = decide(make_report("new_quality"), (), SETTINGS, attempts=attempts)
    further_queries = decide(make_report(), (), SETTINGS, attempts=attempts)

    assert (harm.action == RETRAIN) == (kind == "retune_gate_obstacle")
    assert (further_queries.action == RETUNE) == (kind == "retrain_gate_obstacle")


def test_pilot_is_held_back_if_gate_would_refuse_its_retrain():
    attempts = Attempts(retrain_gate_obstacle=FEW_QUERIES)

    decision = decide(make_report("domain_auc"), (), SETTINGS, attempts=attempts)

    assert decision.action == NO_ACTION
    assert decision.wanted == PILOT
    assert decision.reasons[-1] == f"held back: {FEW_QUERIES}"


def test_conflicts_are_reported_and_call_for_nothing():
    decision = decide(make_report("conflicts"), (), SETTINGS)

    assert decision.action == NO_ACTION
    assert decision.wanted == NO_ACTION
    assert decision.reasons == (f"conflicts 0.3000 is above 0.2000 ({CONFLICTS_REMEDY})",)


def test_text_shows_every_value_and_decision():
    skipped = (
        SkippedMeasure("domain_auc", "nothing was given"),
        SkippedMeasure("asked_quality", "nothing was given"),
    )
    report = replace(
        make_report("growth", "domain_auc@window"),
        batches=3,
        window_documents=400,
        unmeasured=skipped,
    )

    decision = decide(report, [CARRIED_OUT], SETTINGS, dry_run=True)
    text = report.text + decision.text
    lines = text.splitlines()

    assert lines[0].startswith("drift of 150 documents, 400 in the last 3 batches; false alarms")
    for measure in report.measures:
        assert any(line.startswith(measure.label) for line in lines)
    assert text.count("TRIPPED") == 2
    assert "domain_auc (window)" in text
    assert "not measured (batch): domain_auc, asked_quality: nothing was given" in lines
    assert "decision: no action (called for: retrain), a dry run" in lines


def test_report_and_decision_are_json():
    report = make_report("growth")
    decision = decide(report, (), SETTINGS)

    report_values = json.loads(json.dumps(report.to_dict()))
    decision_values = json.loads(json.dumps(asdict(decision)))

    exceeded = {measure["name"]: measure["tripped"] for measure in report_values["measures"]}
    assert exceeded["growth"] is True
    assert exceeded["conflicts"] is False
    assert decision_values["action"] == "retrain"
    assert decision_values["wanted"] == "retrain"
