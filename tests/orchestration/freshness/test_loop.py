"""Guards what a reader is told about the freshness loop: each step with its state and reason."""

from __future__ import annotations

import pytest

from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.ledger.tasks import EventRange, TaskKind, TaskState
from model_code.collection.segments.solved import SolvedSummary
from model_code.project import Project
from orchestration.freshness.loop import loop_steps, recent_documents
from orchestration.registry import history
from tests.live_example import add, collection_of, make_project, receive, row

DECISION = {"action": "retrain", "reasons": ["growth 0.6 is above 0.5"]}
QUIET = {"action": "no action", "reasons": ["too few documents to measure: 3 so far"]}
SKIPPED = [{"name": "domain_auc", "why": "the reference has 2", "scope": "batch"}]


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


def steps_of(project):
    return {step.name: step for step in loop_steps(project)}


def record_report(project, decision, events=(1, 1)):
    report = {"report": {"measures": [], "unmeasured": SKIPPED}, "decision": decision}
    with open_ledger(project, "hce") as ledger:
        ledger.record_drift_report(report, events)


def test_nothing_is_told_before_something_is_live(tmp_path):
    assert loop_steps(Project(tmp_path)) == []
    assert recent_documents(Project(tmp_path)) == []


def test_build_without_arrivals_says_so_once(project):
    steps = steps_of(project)

    assert steps["arrived"].state == "none"
    assert steps["arrived"].text == "nothing has arrived yet"
    assert "added" not in steps
    assert steps["gate"].text == "no version asked to be promoted yet"


def test_empty_ledger_tells_no_additions(project):
    with open_ledger(project, "hce"):
        steps = steps_of(project)

    assert steps["arrived"].text == "nothing has arrived yet"
    assert "added" not in steps
    assert steps["drift"].text.startswith("not measured yet")


def test_waiting_change_is_told(project):
    receive(project, "a")

    step = steps_of(project)["arrived"]

    assert step.state == "waits"
    assert "1 wait to be added" in step.text
    assert step.when is not None


def test_added_document_is_told_and_listed(project):
    add(collection_of(project), row("a"), row("b"))

    assert steps_of(project)["added"].text.endswith("documents are searchable, 2 of them added")
    assert [document.title for document in recent_documents(project)] == ["b", "a"]


def test_refined_documents_are_counted(project, monkeypatch):
    statuses = {"a": "solved", "b": "NOT_REFINED", "c": "FITS"}
    monkeypatch.setattr("orchestration.freshness.loop.refinement_statuses", lambda _: statuses)
    add(collection_of(project), row("a"), row("b"), row("c"))

    assert steps_of(project)["added"].text.endswith("3 of them added, 2 refined")


def test_effect_of_incdsi_is_told(project, monkeypatch):
    summary = SolvedSummary(2, 5, 3, 5, 0, 1)
    monkeypatch.setattr("orchestration.freshness.loop.summarize_refinements", lambda _: summary)
    add(collection_of(project), row("a"))

    assert steps_of(project)["added"].text.endswith(f"1 of them added. {summary.sentence()}")


def test_drift_says_why_it_is_not_measured(project):
    add(collection_of(project), row("a"))
    assert "a check needs 100 added documents" in steps_of(project)["drift"].text

    record_report(project, QUIET)

    step = steps_of(project)["drift"]
    assert "no action: too few documents to measure" in step.text
    assert "Not measurable yet: domain_auc: the reference has 2" in step.text


def test_later_report_keeps_the_deciding_one(project):
    add(collection_of(project), row("a"))
    record_report(project, DECISION)
    record_report(project, QUIET, (2, 2))

    text = steps_of(project)["drift"].text

    assert text.startswith("no action: too few documents")
    assert "Earlier: retrain, by the check of" in text
    assert "growth 0.6 is above 0.5" in text


@pytest.fixture
def requested_retrain(project):
    """A retrain that drift requested after one addition."""
    add(collection_of(project), row("a"))
    with open_ledger(project, "hce") as ledger:
        return ledger.tasks.request(
            TaskKind.RETRAIN, "hce", EventRange(1, 1), "growth", requested_by="drift"
        )


@pytest.mark.usefixtures("requested_retrain")
def test_open_task_is_running(project):
    step = steps_of(project)["retrain"]

    assert step.state == "running"
    assert step.text == "requested: growth"


@pytest.mark.usefixtures("requested_retrain")
def test_ended_task_is_done(project):
    with open_ledger(project, "hce") as ledger:
        (task,) = ledger.tasks.open("hce", TaskKind.RETRAIN)
        ledger.tasks.end(task, TaskState.REFUSED, "not better")

    step = steps_of(project)["retrain"]

    assert step.state == "done"
    assert step.text == "refused: not better"


@pytest.mark.parametrize(
    ("action", "passed", "outcome"),
    [
        ("promote", True, "became champion"),
        ("refuse", False, "was refused"),
        ("put back", False, "was refused"),
        ("moved by hand", False, "was made champion by hand, against the gate"),
    ],
)
def test_last_verdict_is_told(project, action, passed, outcome):
    verdict = {"passed": passed, "reasons": ["the reason"], "intervals": [], "queries": 3}
    history.append(project, action, "1", "2", verdict)

    step = steps_of(project)["gate"]

    assert step.text == f"version 2 {outcome}: the reason"
    assert step.when is not None
