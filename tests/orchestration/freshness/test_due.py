"""Guards what the sensor asks for: additions while changes wait, a retrain until it is settled, neither twice.

pytest tests/orchestration/freshness/test_due.py
"""

from __future__ import annotations

import shutil

import dagster as dg
import pytest

from model_code.files import hash_text
from model_code.live.collection import set_default_retriever
from orchestration.freshness.due import ATTEMPTS, due_retrain, next_steps
from orchestration.freshness.retrain import keep_plan, make_plan
from orchestration.sensors import PARTITION, note_end
from orchestration.watermark import Watermark
from tests.orchestration.live_example import BASE, collection_of, make_project, open_build


def decisions(*kinds):
    """Newest first, as the ledger lists them; ids count from the oldest. "failed 7-1" is of the retrain 7-1."""
    return [
        {
            "id": number,
            "kind": kind,
            "reason": f"reason {number}",
            "details": {"key": key} if key else {},
            "recorded": 1.5,
        }
        for number, (kind, _, key) in reversed(list(enumerate((one.partition(" ") for one in kinds), start=1)))
    ]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    return make_project(tmp_path)


MARK = hash_text("1.5")[:8]  # of what was recorded at that time


def mark(project, event):
    """What a key says of an event beside its number."""
    return Watermark.at(project, event).mark


def asked_at(ledger, asked):
    """What a key says of a decision beside its number."""
    return next(hash_text(repr(one["recorded"]))[:8] for one in ledger.last_decisions(9) if one["id"] == asked)


def run(job, key, number, status=dg.DagsterRunStatus.FAILURE):
    return dg.DagsterRun(job_name=job, run_id=f"run-{number}", status=status, tags={PARTITION: key})


def keys(project):
    return [(step.kind, step.key) for step in next_steps(project)]


def test_a_retrain_is_due_until_it_is_promoted_or_refused():
    assert due_retrain(decisions("add", "retrain", "add")).key == f"2-{MARK}-1"
    assert due_retrain(decisions("retrain", "promoted", "add")) is None
    assert due_retrain(decisions("retrain", "refused", "add")) is None
    assert due_retrain(decisions("retrain", "refused", "retrain")).key == f"3-{MARK}-1"


def test_a_failed_retrain_is_tried_again_under_another_key_and_not_for_ever():
    keys = [due_retrain(decisions("retrain", *["failed"] * failures)).key for failures in range(ATTEMPTS)]
    assert keys == [f"1-{MARK}-{attempt}" for attempt in (1, 2, 3)]
    assert due_retrain(decisions("retrain", *["failed"] * ATTEMPTS)) is None


def test_a_retrain_that_was_asked_for_again_starts_with_all_its_attempts():
    assert due_retrain(decisions("retrain", "failed", "failed", "retrain")).key == f"4-{MARK}-1"


def test_without_a_retrain_nothing_is_due():
    assert due_retrain(decisions("add", "rollback")) is None
    assert due_retrain([]) is None


def test_what_became_of_a_retrain_is_told_by_its_key_whatever_came_between():
    assert due_retrain(decisions("retrain", "retrain", "promoted 1-1")).key == f"2-{MARK}-1"
    assert due_retrain(decisions("retrain", "add", "failed 1-1", "promoted 1-2")) is None
    for key in ("hce-000004", "2026-trial"):
        assert due_retrain(decisions("retrain", f"promoted {key}")) is None, "a person's retrain settles it, too"


def test_a_retrain_that_a_person_canceled_is_not_started_again_by_itself(project):
    ledger = collection_of(project).ledger
    asked = ledger.record_decision("retrain", "topics moved", {"batch": [1, 2]})
    key = f"{asked}-{asked_at(ledger, asked)}-1"
    assert keys(project) == [("retrain", key)]
    note_end(project, run("retrain", key, 1, dg.DagsterRunStatus.CANCELED), None)
    assert keys(project) == []


def test_an_addition_that_failed_is_asked_for_again_and_not_for_ever(project):
    collection_of(project).receive([{"id": "a", "title": "a", "text": "some text"}], "api")
    for attempt in range(1, ATTEMPTS + 1):
        key = f"00000001-00000001-{mark(project, 1)}-{attempt}"
        assert keys(project) == [("add", key)]
        for _ in range(2):
            note_end(project, run("add_documents", key, attempt), "disk full")
    assert keys(project) == []
    collection_of(project).receive([{"id": "b", "title": "b", "text": "some text"}], "api")
    assert keys(project) == [("add", f"00000001-00000002-{mark(project, 2)}-1")]


def test_keys_differ_from_those_of_a_ledger_that_was_deleted(tmp_path, project, monkeypatch):
    """Dagster starts no second run of a key, and its history outlives the ledger whose numbers are in it."""

    def life(project):
        collection_of(project).receive([{"id": "a", "title": "a", "text": "some text"}], "api")
        collection_of(project).ledger.record_decision("retrain", "topics moved", {"batch": [1, 1]})
        return keys(project)

    first = life(project)
    shutil.rmtree(project.live)
    again = life(make_project(tmp_path))
    assert [kind for kind, _ in first] == [kind for kind, _ in again] == ["add", "retrain"]
    assert not set(first) & set(again)


def test_a_failure_is_noted_for_the_retriever_that_was_retrained(project):
    ledger = collection_of(project).ledger
    asked = ledger.record_decision("retrain", "topics moved", {"batch": [1, 2]})
    keep_plan(project, make_plan(project, f"{asked}-1"))
    open_build(project, BASE, retriever="other")
    set_default_retriever(project.live, "other")
    note_end(project, run("retrain", f"{asked}-1", 1), "out of memory")
    assert [one["kind"] for one in ledger.last_decisions(9)] == ["failed", "retrain"]


def test_what_failed_is_noted_once_and_a_refusal_is_no_failure(project):
    ledger = collection_of(project).ledger
    asked = ledger.record_decision("retrain", "topics moved", {"batch": [1, 2]})
    for _ in range(2):
        note_end(project, run("retrain", f"{asked}-1", 1), "out of memory")
    note_end(project, run("full_build", "", 2), "another job")
    assert keys(project) == [("retrain", f"{asked}-{asked_at(ledger, asked)}-2")]
    ledger.record_decision("refused", "worse", {"run": "run-3", "key": f"{asked}-2"})
    note_end(project, run("retrain", f"{asked}-2", 3), "the gate's check failed")
    assert [one["kind"] for one in ledger.last_decisions(9)] == ["refused", "failed", "retrain"]


def test_a_pilot_that_drift_asked_for_is_due_until_it_came_to_something_and_not_for_ever(project):
    ledger = collection_of(project).ledger
    asked = ledger.record_decision("add", "topics moved", {"batch": [1, 2], "pilot": True})
    for attempt in range(1, ATTEMPTS + 1):
        key = f"{asked}-{asked_at(ledger, asked)}-{attempt}"
        assert keys(project) == [("pilot", key)]
        for _ in range(2):
            note_end(project, run("pilot", key, attempt), "out of memory")
    assert keys(project) == []
    again = ledger.record_decision("add", "mmd", {"batch": [3, 4], "pilot": True})
    assert keys(project) == [("pilot", f"{again}-{asked_at(ledger, again)}-1")]
    ledger.record_decision("piloted", "by hand", {})
    assert len(keys(project)) == 1, "a person's pilot answers another question"
    ledger.record_decision("piloted", "no gain", {"key": f"{again}-{asked_at(ledger, again)}-1"})
    assert keys(project) == []


@pytest.mark.parametrize("kind", ["retrain", "promoted", "refused"])
def test_no_pilot_is_due_behind_what_it_would_ask_for(project, kind):
    ledger = collection_of(project).ledger
    ledger.record_decision("add", "mmd", {"batch": [1, 2], "pilot": True})
    ledger.record_decision(kind, "harm", {"batch": [3, 4]})
    assert "pilot" not in [step.kind for step in next_steps(project)]


def test_a_pilot_that_a_person_canceled_is_not_started_again_by_itself(project):
    ledger = collection_of(project).ledger
    ledger.record_decision("add", "mmd", {"batch": [1, 2], "pilot": True})
    ((_, key),) = keys(project)
    note_end(project, run("pilot", key, 1, dg.DagsterRunStatus.CANCELED), None)
    assert keys(project) == []
