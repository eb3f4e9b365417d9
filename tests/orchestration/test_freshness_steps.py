"""Guards what the sensor asks for: additions while changes wait, a retrain until it is settled, neither twice.

pytest tests/orchestration/test_freshness_steps.py
"""

from __future__ import annotations

import dagster as dg
import pytest

from model_code.live.collection import set_default_retriever
from orchestration.freshness_sensor import PARTITION, note_end
from orchestration.freshness_steps import ATTEMPTS, due_retrain, next_steps
from orchestration.retraining.plan import keep_plan, make_plan
from tests.orchestration.live_example import BASE, freshener_of, make_project, open_build


def decisions(*kinds):
    """Newest first, as the ledger lists them; ids count from the oldest. "failed 7-1" is of the retrain 7-1."""
    return [
        {"id": number, "kind": kind, "reason": f"reason {number}", "details": {"key": key} if key else {}}
        for number, (kind, _, key) in reversed(list(enumerate((one.partition(" ") for one in kinds), start=1)))
    ]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    return make_project(tmp_path)


def run(job, key, number, status=dg.DagsterRunStatus.FAILURE):
    return dg.DagsterRun(job_name=job, run_id=f"run-{number}", status=status, tags={PARTITION: key})


def keys(project):
    return [(step.kind, step.key) for step in next_steps(project)]


def test_a_retrain_is_due_until_it_is_promoted_or_refused():
    assert due_retrain(decisions("add", "retrain", "add")).key == "2-1"
    assert due_retrain(decisions("retrain", "promoted", "add")) is None
    assert due_retrain(decisions("retrain", "refused", "add")) is None
    assert due_retrain(decisions("retrain", "refused", "retrain")).key == "3-1"


def test_a_failed_retrain_is_tried_again_under_another_key_and_not_for_ever():
    keys = [due_retrain(decisions("retrain", *["failed"] * failures)).key for failures in range(ATTEMPTS)]
    assert keys == ["1-1", "1-2", "1-3"]
    assert due_retrain(decisions("retrain", *["failed"] * ATTEMPTS)) is None


def test_a_retrain_that_was_asked_for_again_starts_with_all_its_attempts():
    assert due_retrain(decisions("retrain", "failed", "failed", "retrain")).key == "4-1"


def test_without_a_retrain_nothing_is_due():
    assert due_retrain(decisions("add", "recluster", "rollback")) is None
    assert due_retrain([]) is None


def test_what_became_of_a_retrain_is_told_by_its_key_whatever_came_between():
    assert due_retrain(decisions("retrain", "retrain", "promoted 1-1")).key == "2-1"
    assert due_retrain(decisions("retrain", "add", "failed 1-1", "recluster", "promoted 1-2")) is None
    for key in ("hce-000004", "2026-trial"):
        assert due_retrain(decisions("retrain", f"promoted {key}")) is None, "a person's retrain settles it, too"


def test_a_retrain_that_a_person_canceled_is_not_started_again_by_itself(project):
    ledger = freshener_of(project).ledger
    asked = ledger.record_decision("retrain", "topics moved", {"batch": [1, 2]})
    assert keys(project) == [("retrain", f"{asked}-1")]
    note_end(project, run("retrain", f"{asked}-1", 1, dg.DagsterRunStatus.CANCELED), None)
    assert keys(project) == []


def test_an_addition_that_failed_is_asked_for_again_and_not_for_ever(project):
    freshener_of(project).receive([{"id": "a", "title": "a", "text": "some text"}], "api")
    for attempt in range(1, ATTEMPTS + 1):
        assert keys(project) == [("add", f"00000001-00000001-{attempt}")]
        for _ in range(2):
            note_end(project, run("add_documents", f"00000001-00000001-{attempt}", attempt), "disk full")
    assert keys(project) == []
    freshener_of(project).receive([{"id": "b", "title": "b", "text": "some text"}], "api")
    assert keys(project) == [("add", "00000001-00000002-1")]


def test_a_failure_is_noted_for_the_retriever_that_was_retrained(project):
    ledger = freshener_of(project).ledger
    asked = ledger.record_decision("retrain", "topics moved", {"batch": [1, 2]})
    keep_plan(project, make_plan(project, f"{asked}-1"))
    open_build(project, BASE, retriever="other")
    set_default_retriever(project.live, "other")
    note_end(project, run("retrain", f"{asked}-1", 1), "out of memory")
    assert [one["kind"] for one in ledger.last_decisions(9)] == ["failed", "retrain"]


def test_what_failed_is_noted_once_and_a_refusal_is_no_failure(project):
    ledger = freshener_of(project).ledger
    asked = ledger.record_decision("retrain", "topics moved", {"batch": [1, 2]})
    for _ in range(2):
        note_end(project, run("retrain", f"{asked}-1", 1), "out of memory")
    note_end(project, run("full_build", "", 2), "another job")
    assert keys(project) == [("retrain", f"{asked}-2")]
    ledger.record_decision("refused", "worse", {"run": "run-3", "key": f"{asked}-2"})
    note_end(project, run("retrain", f"{asked}-2", 3), "the gate's check failed")
    assert [one["kind"] for one in ledger.last_decisions(9)] == ["refused", "failed", "retrain"]
