"""Guards the ladder as a table: which measures call for which rung, what cooldown holds back, and
the words for it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from model_code.drift.measures import TestResult
from model_code.drift.report import DriftReport, SkippedMeasure
from model_code.drift.settings import DriftSettings
from orchestration.freshness.policy import PILOT_DUE, Action, PastDecision, decide

SETTINGS = DriftSettings(cooldown=2)
NULL = {"0.01": -0.1, "0.05": -0.05, "0.5": 0.0, "0.95": 0.05, "0.99": 0.1}
NAMES = ("domain_auc", "new_quality", "asked_quality", "conflicts", "protected_old", "growth")


def report(*states: str, asked: int = 120) -> DriftReport:
    """A report in which the measures named trip; `name?` is exceeded uncorrected only, and `name@window` is of
    the window.

    asked: of how many of the 150 documents there were asked queries.
    """
    documents = {"asked_quality": asked, "new_quality": 150}
    details = {name: {"documents": documents.get(name, 150)} for name in NAMES}
    measures = {
        name: TestResult(name, 0.0, 0.2, NULL, False, {"p": 0.5} | details[name]) for name in NAMES
    }
    for state in states:
        name, _, scope = state.rstrip("?").partition("@")
        exceeded = not state.endswith("?")
        detail = {"p": 0.001} | details.get(name, {})
        found = TestResult(
            name, 0.3 if exceeded else 0.15, 0.2, NULL, exceeded, detail, exceeded_uncorrected=True
        )
        measures[state] = replace(found, scope=scope or "batch")
    return DriftReport(150, 1, 150, 0.05, tuple(measures.values()))


RUNGS: dict[Action, list[tuple[str, ...]]] = {
    "add": [
        (),
        ("domain_auc",),
        ("domain_auc@window",),
        ("new_quality?",),
        ("asked_quality?",),
        ("domain_auc?", "new_quality?"),
    ],
    "retrain": [
        ("new_quality",),
        ("new_quality@window",),
        ("asked_quality",),
        ("domain_auc", "asked_quality?"),
        ("domain_auc", "new_quality?"),
        ("domain_auc@window", "new_quality?"),
        ("conflicts",),
        ("growth",),
        ("protected_old",),
        ("protected_old", "domain_auc"),
    ],
}


@pytest.mark.parametrize(
    ("states", "action"), [(states, action) for action in RUNGS for states in RUNGS[action]]
)
def test_which_rung(states: tuple[str, ...], action: Action) -> None:
    decision = decide(report(*states), (), SETTINGS)
    assert (decision.action, decision.wanted) == (action, action)
    assert decision.reasons


@pytest.mark.parametrize(
    ("state", "history", "action"),
    [
        ("domain_auc", [PastDecision("add")], "add"),
        ("growth", [PastDecision("retrain")], "add"),
        ("growth", [PastDecision("retrain"), PastDecision("add")], "add"),
        ("growth", [PastDecision("retrain"), PastDecision("add"), PastDecision("add")], "retrain"),
        ("growth", [PastDecision("retrain", carried_out=False)], "retrain"),
        ("growth", [PastDecision("add"), PastDecision("add")], "retrain"),
    ],
)
def test_cooldown(state: str, history: list[PastDecision], action: Action) -> None:
    decision = decide(report(state), history, SETTINGS)
    assert decision.action == action
    assert (decision.wanted != action) == any("held back" in reason for reason in decision.reasons)
    assert decide(report(state), history, SETTINGS.replace(cooldown=0)).action == decision.wanted


def test_reasons_name_the_measures_beside_their_thresholds() -> None:
    assert decide(report("growth"), (), SETTINGS).reasons == ("growth 0.3000 is above 0.2000",)
    assert "none of 6 measures is beyond its threshold" in decide(report(), (), SETTINGS).reasons
    other = replace(report().measures[0], name="new_words", value=0.3, exceeded=True)
    told = decide(replace(report(), measures=(*report().measures, other)), (), SETTINGS).reasons
    assert told[0] == "new_words 0.3000 is above 0.2000", (
        "a measure that is no sign of harm, and trips"
    )
    harmless = (
        "no harm: new_quality 0.0000 is not above 0.2000, asked_quality 0.0000 is not above 0.2000"
    )
    _, no_harm, pilot = decide(report("domain_auc"), (), SETTINGS).reasons
    assert no_harm == harmless
    assert pilot.startswith(PILOT_DUE)
    assert f"freshet retrain --pilot {SETTINGS.pilot_documents}" in pilot


@pytest.mark.parametrize(
    ("states", "pilot"),
    [
        ((), False),
        (("domain_auc",), True),
        (("domain_auc@window",), True),
        (("domain_auc", "asked_quality"), False),  # a retrain is due as it is
    ],
)
def test_a_pilot_is_due_where_documents_moved_and_no_harm_is_shown(
    states: tuple[str, ...], pilot: bool
) -> None:
    decision = decide(report(*states), (), SETTINGS)
    assert (
        decision.pilot == pilot == any(reason.startswith(PILOT_DUE) for reason in decision.reasons)
    )
    assert not decide(report(*states), (), SETTINGS.replace(pilot_documents=None)).pilot


@pytest.mark.parametrize("absent", [("asked_quality",), ("asked_quality", "new_quality")])
def test_without_queries_no_pilot_is_due_and_unknown_harm_is_said_and_is_no_reason_to_retrain(
    absent,
):
    found = report("domain_auc")
    found = replace(found, measures=tuple(one for one in found.measures if one.name not in absent))
    decision = decide(found, (), SETTINGS)
    assert (decision.action, decision.pilot) == ("add", False)
    assert ("harm is unknown" in decision.reasons[-1]) == (len(absent) == 2)


@pytest.mark.parametrize(
    ("history", "pilot"),
    [
        ([PastDecision("add", pilot=True)], False),
        ([PastDecision("add", pilot=True), PastDecision("add")], False),
        ([PastDecision("add", pilot=True), PastDecision("add"), PastDecision("add")], True),
        ([PastDecision("retrain"), PastDecision("add")], False),
        (
            [
                PastDecision("retrain", waits=True),
                PastDecision("add"),
                PastDecision("add"),
                PastDecision("add"),
            ],
            False,
        ),
        ([PastDecision("add")], True),
    ],
)
def test_pilots_have_the_cooldown_of_retrains(history: list[PastDecision], pilot: bool) -> None:
    assert decide(report("domain_auc"), history, SETTINGS).pilot == pilot


@pytest.mark.parametrize(
    ("states", "action"),
    [
        (("new_quality",), "add"),
        (("new_quality", "domain_auc"), "add"),
        (("domain_auc", "new_quality?"), "add"),
        (("new_quality@window",), "retrain"),  # asked queries are of the batch alone
        (("asked_quality",), "retrain"),
        (("domain_auc", "asked_quality?"), "retrain"),
        (("new_quality", "asked_quality"), "retrain"),
    ],
)
def test_made_queries_decide_nothing_where_as_many_documents_have_asked_ones(states, action):
    decision = decide(report(*states, asked=150), (), SETTINGS)
    assert decision.action == action
    if action != "retrain":
        harmless = [reason for reason in decision.reasons if not reason.startswith(PILOT_DUE)][-1]
        assert harmless.startswith("no harm: asked_quality")
        assert any("new_quality 0.3000 is above" in reason for reason in decision.reasons) == (
            "new_quality" in states
        )


def test_too_few_documents_are_added_and_counted() -> None:
    small = replace(report(), documents=20, window_documents=60)
    assert "60 so far, drift.minimum_batch is 100" in decide(small, (), SETTINGS).reasons[0]
    assert decide(replace(report("growth"), documents=20), (), SETTINGS).action == "retrain"


def test_the_text_shows_every_value_and_the_decision_and_the_values_for_programs_are_json() -> None:
    unmeasured = (
        SkippedMeasure("domain_auc", "nothing was given"),
        SkippedMeasure("asked_quality", "nothing was given"),
    )
    found = replace(
        report("growth", "domain_auc@window"),
        batches=3,
        window_documents=400,
        unmeasured=unmeasured,
    )
    decision = decide(found, [PastDecision("retrain")], SETTINGS, dry_run=True)
    text = found.text + decision.text
    lines = text.splitlines()
    assert lines[0].startswith("drift of 150 documents, 400 in the last 3 batches; false alarms")
    assert all(any(line.startswith(one.label) for line in lines) for one in found.measures)
    assert text.count("TRIPPED") == 2
    assert "not measured (batch): domain_auc, asked_quality: nothing was given" in lines
    assert "decision: add (called for: retrain), a dry run" in lines
    assert "domain_auc (window)" in text
    report_values = json.loads(json.dumps(found.to_dict()))
    decision_values = json.loads(json.dumps(asdict(decision)))
    assert decision_values["action"] == "add"
    exceeded = {measure["name"]: measure["tripped"] for measure in report_values["measures"]}
    assert exceeded["growth"] is True
    assert exceeded["conflicts"] is False


def test_what_is_under_way_holds_back_however_old_it_is() -> None:
    history = [PastDecision("retrain", carried_out=False, waits=True), *[PastDecision("add")] * 9]
    decision = decide(report("growth"), history, SETTINGS.replace(cooldown=0))
    assert (decision.action, decision.wanted) == ("add", "retrain")
    assert (
        decision.reasons[-1] == "held back: a retrain was asked for before and is not settled yet"
    )
