"""Guards what follows from a pilot: by hand nothing, for drift a retrain if it is due, and neither twice.

pytest tests/orchestration/freshness/test_pilot_for_drift.py
"""

from __future__ import annotations

import dagster as dg
import pytest

from assets.live import PILOTS, retrain_pilot
from model_code.drift.ladder import Past
from model_code.evaluation.promotion import Verdict
from model_code.ledger.work import EventRange, WorkKind, WorkState
from model_code.live.collection import set_default_retriever
from orchestration import parameters
from orchestration.freshness import pilot as pilot_steps
from orchestration.freshness.drift import past
from orchestration.freshness.due import due_work, note_end
from orchestration.freshness.pilot import SETTLED, NoPilot, PilotResult, pilot_by_hand, pilot_for_drift
from orchestration.live.collection import open_ledger
from orchestration.live.retrain_plan import make_plan
from orchestration.sensors import JOBS
from tests.orchestration.live_example import BASE, collection_of, make_project, open_build

BATCH = EventRange(1, 5)


@pytest.fixture
def project(tmp_path):
    made = make_project(tmp_path)
    collection_of(made).receive([{"id": "a", "title": "a", "text": "a"}], "api")
    collection_of(made).apply()
    return made


def answering(monkeypatch, due=True, meanwhile=lambda: None):
    """Pilots that train nothing and say `due`; what happens while they train."""
    asked = []

    def pilot(project, documents, show):
        asked.append(documents)
        meanwhile()
        verdict = Verdict(due, ("as the test wants it",), 3, ())
        return PilotResult(make_plan(project, "pilot"), 9, 3, verdict)

    monkeypatch.setattr(pilot_steps, "pilot", pilot)
    return asked


def ledger(project):
    return open_ledger(project, "hce")


def asked_by_drift(project):
    """The key under which the sensor starts it; the report is kept, too."""
    ledger(project).record_drift({"decision": {"action": "add", "pilot": True}}, (1, 5))
    ask(project, WorkKind.PILOT)
    (work,) = due_work(project)
    assert work.kind == WorkKind.PILOT
    return work.run_key


def ask(project, kind, about=BATCH):
    return ledger(project).work.ask(kind, "hce", about, "domain_auc", asked_by="drift")


def told(project):
    """The work that there is, newest first."""
    return [(work.kind.value, work.state.value) for work in ledger(project).work.last("hce", 9)]


def steps(project):
    return [work.kind for work in due_work(project)]


def silent(text):
    pass


@pytest.mark.parametrize("due", [True, False])
def test_where_drift_asked_a_retrain_follows_if_it_is_due(project, monkeypatch, due):
    sizes = answering(monkeypatch, due)
    parameters.assign(project.params_file, ["drift.pilot_documents=700"])
    answer = pilot_for_drift(project, asked_by_drift(project), silent)
    assert sizes == [700]
    assert steps(project) == ["retrain"] * due
    asked_for = Past("retrain", carried_out=False, waits=True, pilot=True)  # in place of what its batch called for
    assert past(ledger(project), 3) == [asked_for if due else Past("add", pilot=True)]
    assert answer == ledger(project).work.last("hce", 1, WorkKind.PILOT)[0].outcome


@pytest.mark.parametrize("due", [True, False])
def test_by_hand_it_asks_for_nothing_and_leaves_drift_s_own_to_be_made(project, monkeypatch, due):
    answering(monkeypatch, due)
    pilot_by_hand(project, 100, silent)
    assert steps(project) == []
    asked_by_drift(project)
    pilot_by_hand(project, 100, silent)
    assert steps(project) == ["pilot"]
    assert sorted(told(project)) == [("pilot", "done"), ("pilot", "done"), ("pilot", "open")]


@pytest.mark.parametrize("ended", [None, WorkState.DONE, WorkState.REFUSED])
def test_a_retrain_that_came_while_it_trained_is_not_asked_for_again(project, monkeypatch, ended):
    key = asked_by_drift(project)

    def meanwhile():
        ask(project, WorkKind.RETRAIN, EventRange(6, 7))
        if ended is not None:
            ledger(project).work.conclude_retrains("hce", ended, "harm", {})

    answering(monkeypatch, meanwhile=meanwhile)
    assert pilot_for_drift(project, key, silent).startswith("a retrain is due")
    assert sorted(told(project)) == [("pilot", "done"), ("retrain", ended.value if ended else "open")]


def test_one_that_is_settled_or_of_another_ledger_is_not_made(project, monkeypatch):
    sizes, key = answering(monkeypatch), asked_by_drift(project)
    assert pilot_for_drift(project, key + "0", silent) == SETTLED
    pilot_for_drift(project, key, silent)
    assert pilot_for_drift(project, key, silent) == SETTLED, "started again by hand in Dagster's pages"
    assert len(sizes) == 1
    assert told(project).count(("retrain", "open")) == 1


def test_where_another_retriever_is_searched_meanwhile_the_one_that_asked_is_told(project, monkeypatch):
    sizes, key = answering(monkeypatch), asked_by_drift(project)
    open_build(project, BASE, retriever="other")
    set_default_retriever(project.live, "other")
    note_end(project, key, "1", "out of memory", canceled=False)
    (again,) = ledger(project).work.open("hce")
    assert (
        pilot_for_drift(project, again.run_key, silent)
        == "no pilot: other is searched now, and drift of hce called for it"
    )
    assert (sizes, ledger(project).work.last("other", 9)) == ([], [])
    assert told(project) == [("pilot", "refused")]


@pytest.mark.parametrize("why", ["it would tell nothing", "it is switched off"])
def test_one_that_cannot_be_is_not_asked_for_again(project, monkeypatch, why):
    key = asked_by_drift(project)
    if why == "it is switched off":
        parameters.assign(project.params_file, ["drift.pilot_documents=null"])

    def refuse(*_):
        raise NoPilot(why)

    monkeypatch.setattr(pilot_steps, "pilot", refuse)
    assert pilot_for_drift(project, key, silent).startswith("no pilot: ")
    assert steps(project) == []
    assert told(project) == [("pilot", "refused")]


def test_one_that_trains_for_long_is_heard_although_another_is_called_for(project, monkeypatch):
    key = asked_by_drift(project)
    answering(monkeypatch, meanwhile=lambda: ask(project, WorkKind.PILOT, EventRange(6, 9)))
    pilot_for_drift(project, key, silent)
    assert sorted(told(project)) == [("pilot", "done"), ("pilot", "done"), ("retrain", "open")]
    assert steps(project) == ["retrain"], "and the other one is not made"


def test_dagster_shows_its_answer(project, monkeypatch):
    answering(monkeypatch)
    key = asked_by_drift(project)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(PILOTS.name, [key])
        done = dg.materialize([retrain_pilot], resources={"project": project}, partition_key=key, instance=instance)
    (made,) = done.get_asset_materialization_events()
    assert made.materialization.metadata["what happened"].value.startswith("a retrain is due")
    assert steps(project) == ["retrain"]


def test_the_sensor_has_a_job_for_it():
    assert JOBS.keys() == {*WorkKind}
    assert (JOBS[WorkKind.PILOT].name, JOBS[WorkKind.PILOT].partitions_def) == ("pilot", PILOTS)
