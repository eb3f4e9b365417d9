"""Guards drift as it is watched: batches by the ledger's events, small ones left to grow, dry runs
kept nowhere.
"""

from __future__ import annotations

import json
import threading
import time

import pandas as pd
import pytest

from model_code.collection.generations.generation_store import set_default_retriever
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.ledger.tasks import MAX_ATTEMPTS, EventRange, TaskKind, TaskState
from model_code.errors import FreshetError
from model_code.files import write_text
from orchestration.freshness import drift as drift_module
from orchestration.freshness import probes
from orchestration.freshness.drift import batches, check_drift, past_decisions
from orchestration.freshness.due_tasks import request_due_tasks
from orchestration.freshness.retrain import retrain
from orchestration.registry.gate import NO_JUDGED_QUERIES
from tests import live_example
from tests.orchestration.freshness.builds import make_build, open_build
from tests.orchestration.freshness.conftest import make_project
from tests.orchestration.freshness.subjects import PARAMS, SEA, SPACE, add, documents, others


def test_before_anything_arrives_there_is_nothing_to_measure(project):
    assert check_drift(project) is None
    assert not (project.live / "ledger.sqlite").exists(), "looking makes no ledger"


def test_other_documents_trip_and_a_dry_run_keeps_nothing(project):
    ledger = add(project, documents(SPACE, 24, "space", 2))
    first, second = check_drift(project, record=False), check_drift(project, record=False)
    assert "domain_auc" in first.exceeded
    assert "TRIPPED" in first.text
    assert first.decision.dry_run
    assert first.report == second.report
    assert ledger.recent_drift_reports(5) == []
    assert ledger.tasks.last("hce", 5) == []


def test_of_stored_vectors_a_report_takes_those_of_what_arrived_and_no_others(project, monkeypatch):
    add(project, documents(SEA, 24, "more", 1))
    check_drift(project, record=False)  # which makes the reference
    rows = []
    monkeypatch.setattr(probes, "unit", lambda vectors: rows.append(len(vectors)) or vectors)
    check_drift(project)
    assert rows == [24], "150 more lie in the base"


def test_a_small_batch_waits_for_more_and_documents_like_the_old_ones_are_only_added(project):
    ledger = add(project, documents(SEA, 12, "few", 3))
    assert check_drift(project) is None
    assert "too few documents" in check_drift(project, record=False).decision.reasons[0]
    assert ledger.recent_drift_reports(1) == []
    add(project, documents(SEA, 12, "others", 4))
    watched = check_drift(project)
    assert (watched.decision.action, watched.exceeded, watched.report.documents) == ("add", (), 24)
    assert ledger.recent_drift_reports(1)[0]["last_event"] == 24
    assert check_drift(project) is None, "the same documents are not reported twice"


def test_a_look_that_finds_too_few_documents_is_refused_and_more_that_arrive_are_looked_at(project):
    gone = documents(SEA, 12, "gone", 7)
    ledger = add(project, gone)
    collection = LiveIndex(project)
    collection.remove(list(gone), "test")
    collection.apply()
    (look,) = request_due_tasks(project)
    ask_of_later = ledger.tasks.request(
        TaskKind.DRIFT_CHECK, "hce", EventRange(25, 44), "arrived meanwhile", requested_by="sensor"
    )
    assert check_drift(project) is None
    assert ledger.tasks.open() == [ask_of_later]
    (told,) = ledger.tasks.last("hce", 1, TaskKind.DRIFT_CHECK)
    assert (told.id, told.state, told.outcome) == (
        look.id,
        TaskState.REFUSED,
        "fewer than drift.minimum_batch documents arrived",
    )
    assert request_due_tasks(project) == []
    add(project, documents(SEA, 24, "more", 8))
    assert [work.kind for work in request_due_tasks(project)] == [TaskKind.DRIFT_CHECK]
    assert check_drift(project).report.documents == 24
    assert request_due_tasks(project) == []


def test_the_window_holds_the_last_batches_and_one_that_was_trained_on_leaves_it(project):
    ledger = add(project, documents(SEA, 24, "one", 5))
    check_drift(project)
    assert [(one.first, one.last) for one in batches(ledger, 2, 30)] == [(1, 24), (25, 30)]
    assert [(one.first, one.last) for one in batches(ledger, 2, 30, trained=10)] == [
        (11, 24),
        (25, 30),
    ]
    assert [(one.first, one.last) for one in batches(ledger, 2, 30, trained=26)] == [(27, 30)]
    add(project, documents(SEA, 24, "two", 6))
    report = check_drift(project).report
    assert (report.batches, report.window_documents) == (2, 48)


def test_documents_of_the_corpus_that_are_sent_again_are_no_arrivals(project, built, tmp_path):
    """As a full export brings them, before what is new or beside it."""
    corpus, new = documents(SEA, 150, "sea", 0), documents(SPACE, 24, "space", 2)
    add(project, corpus)
    assert check_drift(project) is None
    assert check_drift(project, record=False) is None
    add(project, new)
    report = check_drift(project).report
    assert report.documents == 24
    assert "domain_auc" in {one.name for one in report.exceeded}
    other = make_project(tmp_path / "other")
    open_build(other.root, built)
    add(other, corpus | new)
    assert check_drift(other).report == report


def test_an_arrival_that_came_to_nothing_the_second_time_is_one_still(project):
    """Removed and added again in one application, it is "unchanged", but nothing that training saw."""
    arrived = documents(SPACE, 24, "more", 1)
    add(project, arrived)
    assert check_drift(project, record=False).report.documents == 24
    collection = LiveIndex(project)
    collection.remove(list(arrived), "test")
    collection.receive(
        [{"id": one, "title": one, "text": text} for one, text in arrived.items()], "test"
    )
    collection.apply()
    assert check_drift(project, record=False).report.documents == 24


def test_a_changed_document_of_the_corpus_is_an_arrival(project):
    add(
        project,
        dict(
            zip(
                [f"sea-{i:03}" for i in range(24)],
                documents(SPACE, 24, "x", 2).values(),
                strict=True,
            )
        ),
    )
    assert check_drift(project).report.documents == 24


def test_a_small_corpus_is_measured_in_growth(project, own_measures):
    """With the settings that a project has by itself, for which 150 documents are too few to draw
    batches from.
    """
    ledger = add(project, documents(SPACE, 130, "space", 2))
    write_text(project.params_file, json.dumps({**PARAMS, "drift": {"growth_limit": 2.0}}))
    decision = check_drift(project, record=False).decision
    assert decision.action == "add"
    assert decision.reasons == ("growth 0.8667 is not above 2.0000, and nothing else was measured",)
    write_text(project.params_file, json.dumps({**PARAMS, "drift": {}}))
    watched = check_drift(project)
    assert (watched.exceeded, watched.decision.action) == (("growth",), "retrain")
    why = {measure.name: measure.why for measure in watched.report.unmeasured}["domain_auc"]
    assert why == "the reference has 150, fewer than 3 x drift.minimum_batch = 300"
    assert ledger.recent_drift_reports(1)[0]["last_event"] == 130


def test_what_was_deleted_meanwhile_is_not_measured(project):
    add(project, documents(SEA, 24, "one", 5))
    collection = LiveIndex(project)
    collection.remove(["one-000", "one-001"], "test")
    collection.apply()
    assert check_drift(project).report.documents == 22


@pytest.mark.parametrize("retriever", ["hce", "other"])
def test_what_a_retrain_was_trained_on_is_no_arrival(project, tmp_path, retriever):
    """Also where it promotes another retriever, of which no report was made yet."""
    arrived = documents(SPACE, 24, "space", 2)
    add(project, arrived)
    old = documents(SEA, 150, "sea", 0)
    open_build(tmp_path, make_build(tmp_path / "again", old | arrived), retriever, event=24)
    set_default_retriever(project.live, retriever)
    assert check_drift(project) is None
    add(project, documents(SEA, 24, "more", 1))
    watched = check_drift(project)
    assert (watched.batch, watched.report.documents, watched.report.batches) == (
        EventRange(25, 48),
        24,
        1,
    )


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(live_example.make_project(tmp_path), "hce") as opened:
        yield opened


def told(ledger):
    return [(step.action, step.carried_out, step.waits) for step in past_decisions(ledger, 3)]


def report(ledger, batch, action="add"):
    """As `check_drift` keeps one, with what it calls for."""
    if action == "retrain":
        ledger.tasks.request(TaskKind.RETRAIN, "hce", batch, "topics moved", requested_by="drift")
    ledger.record_drift_report({"decision": {"action": action}}, (batch.first, batch.last))


def test_the_cooldown_counts_retrains_that_were_carried_out(ledger):
    report(ledger, EventRange(1, 24), "retrain")
    assert told(ledger) == [("retrain", False, True)]
    ledger.tasks.fail(*ledger.tasks.open("hce"), "disk full")
    assert told(ledger) == [("retrain", False, True)], "it will be tried again"
    report(ledger, EventRange(25, 48))
    ledger.tasks.close_retrains("hce", TaskState.DONE, "better", {})
    assert told(ledger) == [("add", True, False), ("retrain", True, False)], (
        "as of when it took effect"
    )


def test_a_retrain_that_was_given_up_holds_nothing_back(ledger):
    report(ledger, EventRange(1, 24), "retrain")
    for _ in range(MAX_ATTEMPTS):
        ledger.tasks.fail(*ledger.tasks.open("hce"), "disk full")
    assert told(ledger) == [("retrain", False, False)]


def test_a_person_s_retrain_counts_if_it_was_promoted(ledger):
    report(ledger, EventRange(1, 24))
    ledger.tasks.close_retrains("hce", TaskState.REFUSED, "worse", {})
    assert told(ledger) == [("add", True, False)]
    ledger.tasks.close_retrains("hce", TaskState.DONE, "better", {})
    assert told(ledger) == [("add", True, False), ("retrain", True, False)]


def test_where_nobody_judged_no_retrain_is_asked_for_and_one_by_hand_is_refused_at_once(
    project, corpus
):
    pd.read_parquet(qrels := project.artifacts / "corpus" / "qrels.parquet").iloc[:0].to_parquet(
        qrels
    )
    ledger = add(project, documents(SEA, 80, "more", 1))
    decision = check_drift(project).decision
    assert (decision.action, decision.wanted) == ("add", "retrain"), "growth is past its limit"
    assert decision.reasons[-1] == f"held back: {NO_JUDGED_QUERIES}"
    assert ledger.tasks.last("hce", 5) == []
    with pytest.raises(FreshetError, match="nobody has judged queries"):
        retrain(project, "by hand", print)
    assert not (project.state / "retraining").exists(), "the next one begins with what is live then"


def test_while_a_retrain_runs_no_other_is_asked_for(project, corpus):
    texts = documents(SPACE, 24, "space", 2)
    ledger = add(project, texts, others(texts))
    assert check_drift(project).decision.action == "retrain"
    (work,) = request_due_tasks(project)
    more = documents(SPACE, 24, "more", 3)
    add(project, more, others(more))
    second = check_drift(project).decision
    assert (second.action, second.wanted) == ("add", "retrain")
    assert "held back: a retrain was asked for before and is not settled yet" in second.reasons
    assert request_due_tasks(project) == [work]
    assert ledger.tasks.last("hce", 9) == [work]


def test_two_that_watch_at_once_report_the_same_events_once(project, monkeypatch):
    ledger = add(project, documents(SEA, 24, "more", 1))
    measure, found = drift_module.make_report, []

    def slow(*given):
        time.sleep(0.5)
        return measure(*given)

    monkeypatch.setattr(drift_module, "make_report", slow)
    threads = [
        threading.Thread(target=lambda: found.append(check_drift(project))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one is None for one in found) == [False, True]
    assert len(ledger.recent_drift_reports(9)) == 1
