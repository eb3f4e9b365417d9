"""Guards a pilot of a retrain: what it trains on, whom it asks, what it leaves behind.

pytest tests/orchestration/retraining/test_pilot.py
"""

from __future__ import annotations

import dagster as dg
import pytest

from model_code.drift.ladder import Past
from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from model_code.live.collection import Collection
from orchestration import parameters
from orchestration.freshness_assets import freshness_assets
from orchestration.freshness_sensor import JOBS, PARTITIONS
from orchestration.freshness_steps import due_retrain, next_steps
from orchestration.jobs import live_jobs
from orchestration.ledgers import open_ledger
from orchestration.pilot_asset import PILOTS
from orchestration.retraining import pilot as pilots
from orchestration.retraining.pilot import KEY, pilot, pilot_for_drift, sample
from orchestration.retraining.plan import folder_of, unread_plans
from orchestration.watching.watch import past
from tests.orchestration.live_example import freshener_of, make_project

IDS = [f"document {i}" for i in range(40)]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Two documents were trained on, four were added, and one of them was deleted; nothing is trained."""
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    monkeypatch.setattr(pilots, "_workspace", lambda project, plan, chosen: project)
    monkeypatch.setattr(pilots, "_build", lambda workspace, target, show: None)
    monkeypatch.setattr(pilots, "_train", lambda workspace, retriever, show: "trained")
    monkeypatch.setattr(pilots, "_searched", lambda project, workspace, plan: "searched")
    monkeypatch.setattr(pilots, "queries_for", lambda workspace, new: {f"about {one}" for one in new})
    made = make_project(tmp_path)
    freshener = freshener_of(made)
    freshener.receive([{"id": one, "title": one, "text": one} for one in "abcd"], "api")
    freshener.remove(["a"], "api")
    freshener.apply_pending()
    return made


def judged(monkeypatch, passed):
    """The judge's answer; what it was asked."""
    asked = []

    def judge(challenger, champion, promotion, new, seed):
        asked.append((challenger, champion, new))
        return Verdict(passed, ("as the test wants it",), 3, "qrels", ())

    monkeypatch.setattr(pilots, "judge_pilot", judge)
    return asked


@pytest.mark.parametrize("size", [2, 7, 20, 40, 99])
def test_a_sample_is_half_new_where_there_are_as_many_and_wastes_no_place(size):
    new = set(IDS[:12])
    drawn = sample(IDS, new, size)
    assert len(drawn) == min(size, len(IDS))
    assert len(drawn & new) == min(size // 2, len(new))
    assert drawn == sample(reversed(IDS), new, size), "ids alone say which"


def test_where_old_documents_are_few_new_ones_take_their_places():
    drawn = sample(IDS, set(IDS[4:]), 20)
    assert drawn >= set(IDS[:4])
    assert len(drawn) == 20


@pytest.mark.parametrize("due", [True, False])
def test_the_answer_is_noted_and_neither_asks_for_a_retrain_nor_leaves_work_behind(project, monkeypatch, due):
    asked, before = judged(monkeypatch, due), Collection(project.live, "hce").current().number
    result = pilot(project, 100, lambda text: None)
    assert asked == [("trained", "searched", {"about b", "about c", "about d"})]
    assert (result.documents, result.new) == (5, 3)
    assert result.summary.startswith("a retrain is due" if due else "no gain of a retrain is shown")
    decisions = open_ledger(project, "hce").last_decisions(9)
    noted = [(one["kind"], one["reason"], one["details"]["due"]) for one in decisions]
    assert noted == [("piloted", result.summary, due)]
    assert due_retrain(decisions) is None
    assert not folder_of(project, KEY).exists()
    assert Collection(project.live, "hce").current().number == before


def test_one_that_failed_may_be_repeated_and_keeps_no_generation(project, monkeypatch):
    judged(monkeypatch, True)

    def fail(workspace, retriever, show):
        raise FreshetError("the training stage failed")

    with monkeypatch.context() as patched:
        patched.setattr(pilots, "_train", fail)
        with pytest.raises(FreshetError, match="training stage"):
            pilot(project, 100, lambda text: None)
    assert open_ledger(project, "hce").last_decisions(9) == []
    pilot(project, 100, lambda text: None)
    assert unread_plans(project) == []


def test_without_a_query_for_a_new_document_nothing_is_trained(project, monkeypatch):
    monkeypatch.setattr(pilots, "queries_for", lambda workspace, new: set())
    monkeypatch.setattr(pilots, "_train", lambda *_: pytest.fail("it would tell nothing"))
    with pytest.raises(FreshetError, match="one of the 3 new documents.*arrive with `queries`"):
        pilot(project, 100, lambda text: None)


def asked_by_drift(project):
    """What the sensor makes of a report's decision."""
    open_ledger(project, "hce").record_decision("add", "mmd", {"batch": [1, 5], "pilot": True})
    (step,) = next_steps(project)
    assert step.kind == "pilot"
    return step.key


@pytest.mark.parametrize("due", [True, False])
def test_where_drift_asked_for_it_a_retrain_follows_if_it_is_due(project, monkeypatch, due):
    judged(monkeypatch, due)
    answer = pilot_for_drift(project, asked_by_drift(project), lambda text: None)
    assert [step.kind for step in next_steps(project)] == ["retrain"] * due
    ledger = open_ledger(project, "hce")
    assert past(ledger) == [Past("add", pilot=True)] + [Past("retrain", carried_out=False, waits=True)] * due
    assert answer == ledger.last_decisions(1)[0]["reason"]


@pytest.mark.parametrize("why", ["nobody asks", "switched off"])
def test_a_pilot_that_cannot_be_is_not_asked_for_again(project, monkeypatch, why):
    key = asked_by_drift(project)
    if why == "nobody asks":
        monkeypatch.setattr(pilots, "queries_for", lambda workspace, new: set())
    else:
        parameters.assign(project.params_file, ["drift.pilot_documents=null"])
    assert pilot_for_drift(project, key, lambda text: None).startswith("no pilot: ")
    assert next_steps(project) == []


def test_dagster_shows_its_answer(project, monkeypatch):
    judged(monkeypatch, True)
    key = asked_by_drift(project)
    asset = next(one for one in freshness_assets(project) if one.key == dg.AssetKey("retrain_pilot"))
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(PILOTS.name, [key])
        done = dg.materialize([asset], partition_key=key, instance=instance)
    (made,) = done.get_asset_materialization_events()
    assert made.materialization.metadata["what happened"].value.startswith("a retrain is due")
    assert [step.kind for step in next_steps(project)] == ["retrain"]


def test_the_sensor_has_a_job_for_it():
    assert {kind: JOBS[kind] for kind in PARTITIONS} == JOBS
    assert JOBS["pilot"] in {job.name for job in live_jobs()}
    assert PARTITIONS["pilot"] is PILOTS
