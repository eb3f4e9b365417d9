"""Guards a drift check: what it measures, what it requests, and what it writes to the ledger."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import pandas as pd
import pytest

from model_code.collection.generations.generation_store import set_default_retriever
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.index.status import held_back_step
from model_code.collection.ledger.tasks import MAX_ATTEMPTS, EventRange, TaskKind, TaskState
from model_code.collection.segments.solved import SolvedSummary
from model_code.drift.measures import MAX_EXAMPLES
from model_code.errors import FreshetError
from model_code.files import read_json, write_text
from model_code.retrieval.dense import DenseRetriever
from orchestration import parameters
from orchestration.freshness import drift as drift_module
from orchestration.freshness import probes
from orchestration.freshness.drift import (
    BatchReader,
    batches_to_measure,
    check_drift,
    past_decisions,
)
from orchestration.freshness.drift_page import drift_files
from orchestration.freshness.due_tasks import request_due_tasks
from orchestration.freshness.policy import Action, PastDecision
from orchestration.freshness.retrain import retrain
from orchestration.registry.gate import NO_JUDGED_QUERIES
from tests import live_example
from tests.orchestration.freshness.builds import make_build, open_build
from tests.orchestration.freshness.conftest import make_project
from tests.orchestration.freshness.subjects import PARAMS, SEA, SPACE, add, documents, others

NO_ACTION, RETUNE, PILOT, RETRAIN = Action


def remove(project, document_ids):
    index = LiveIndex(project)
    index.remove(list(document_ids), "test")
    index.apply()


def exceeded_names(report):
    return {measure.name for measure in report.exceeded}


def test_nothing_is_measured_before_arrivals(project):
    assert check_drift(project) is None
    # Looking makes no ledger.
    assert not (project.live / "ledger.sqlite").exists()


def test_shifted_documents_exceed_threshold(project):
    add(project, documents(SPACE, 24, "space", 2))

    check = check_drift(project)

    assert "domain_auc" in check.exceeded
    assert "TRIPPED" in check.text


def test_dry_run_records_nothing(project):
    ledger = add(project, documents(SPACE, 24, "space", 2))

    check = check_drift(project, record=False)

    assert check.decision.dry_run
    assert "dry run" in check.page
    assert not any(path.exists() for path in drift_files(project))
    assert ledger.recent_drift_reports(5) == []
    assert ledger.tasks.last("hce", 5) == []


def test_check_writes_report_as_json_and_page(project):
    added = documents(SPACE, 24, "space", 2)
    add(project, added)

    check = check_drift(project)

    json_path, page_path = drift_files(project)
    assert page_path.read_text() == check.page
    report = read_json(json_path)["report"]["report"]
    for name in ("domain_auc", "new_quality", "growth"):
        examples = report["examples"][name]
        assert 0 < len(examples) <= MAX_EXAMPLES
        for example in examples:
            assert example["document_id"] in added
            assert example["document_id"] in check.page


def test_repeated_dry_run_gives_same_report(project):
    add(project, documents(SPACE, 24, "space", 2))

    first = check_drift(project, record=False)
    second = check_drift(project, record=False)

    assert first.report == second.report


def test_only_vectors_of_arrivals_are_read(project, monkeypatch):
    add(project, documents(SEA, 24, "more", 1))
    # The first check makes the reference.
    check_drift(project, record=False)

    normalized_rows = []

    def normalize_rows(vectors):
        normalized_rows.append(len(vectors))
        return vectors

    monkeypatch.setattr(probes, "normalize_rows", normalize_rows)
    check_drift(project)

    # The base has 150 more.
    assert normalized_rows == [24]


def test_small_batch_waits_for_more_documents(project):
    ledger = add(project, documents(SEA, 12, "few", 3))

    assert check_drift(project) is None
    assert ledger.recent_drift_reports(1) == []

    add(project, documents(SEA, 12, "others", 4))
    assert check_drift(project).report.documents == 24
    assert ledger.recent_drift_reports(1)[0]["last_event"] == 24


def test_dry_run_measures_small_batch(project):
    add(project, documents(SEA, 12, "few", 3))

    decision = check_drift(project, record=False).decision

    assert "too few documents" in decision.reasons[0]


def test_report_tells_the_effect_of_incdsi_on_arrivals(project, monkeypatch):
    summary = SolvedSummary(2, 5, 3, 5, 0, 1)
    asked = []

    def summarize(generation, document_ids):
        asked.extend(document_ids)
        return summary

    monkeypatch.setattr(drift_module, "summarize_refinements", summarize)
    arrivals = documents(SEA, 12, "few", 3)
    add(project, arrivals)

    report = check_drift(project, record=False).report

    assert summary.sentence() in report.text
    assert set(asked) == arrivals.keys()


def test_similar_documents_need_no_action(project):
    add(project, documents(SEA, 12, "few", 3) | documents(SEA, 12, "others", 4))

    check = check_drift(project)

    assert check.decision.action == NO_ACTION
    assert check.exceeded == ()


def test_changed_documents_are_compared_with_their_former_versions(project):
    changed = documents(SEA, 24, "sea", 5)
    add(project, changed)

    check = check_drift(project)

    (measure,) = check.report.of("changed_quality")
    assert measure.detail["measured"] == 24
    assert check.report.documents == 24
    assert check.exceeded == ()


def test_too_few_documents_open_no_index(project, monkeypatch):
    add(project, documents(SEA, 12, "few", 3))

    def open_index(*_):
        raise AssertionError("an index was opened")

    monkeypatch.setattr(drift_module.Searcher, "open", open_index)

    assert check_drift(project) is None


def test_scored_changed_documents_are_not_searched_again(project, monkeypatch):
    first = documents(SEA, 48, "sea", 5)
    add(project, dict(list(first.items())[:24]))
    check_drift(project)
    searched = []
    first_ranks = probes.first_ranks

    def count_questions(search, questions, *depth):
        searched.append(len(questions))
        return first_ranks(search, questions, *depth)

    monkeypatch.setattr(probes, "first_ranks", count_questions)
    add(project, dict(list(first.items())[24:]))
    check = check_drift(project)

    window = [
        measure for measure in check.report.of("changed_quality") if measure.scope == "window"
    ]
    assert window[0].detail["measured"] == 48
    # The former and the changed versions of the second batch.
    assert sum(searched) == 48


def test_kept_scores_belong_to_one_document(project):
    """Events of a repaired ledger have the numbers of other events in the former one."""
    new_texts = documents(SPACE, 2, "sea", 1)
    old_texts = list(documents(SEA, 150, "sea", 0).values())
    add(project, new_texts)
    add(project, {"sea-148": old_texts[5], "sea-149": old_texts[6]})
    searcher = Searcher.open(project.live)
    settings = parameters.load(project.params_file)
    with open_ledger(project, "hce") as ledger:
        view = ledger.view_at(searcher.generation.cursor)
        first = view.arrivals(1, 2)
        second = view.arrivals(3, 4)
        expected = BatchReader(searcher, settings, view)._score_changed(second, 10)
        reader = BatchReader(searcher, settings, view)
        earlier = reader._score_changed(first, 10)
        renumbered = [replace(event, id=event.id - 2) for event in second]

        scores = reader._score_changed(renumbered, 10)

    assert scores.after.tolist() == expected.after.tolist()
    assert scores.after.tolist() != earlier.after.tolist()


def test_learned_vectors_are_not_compared_with_encodings(project, monkeypatch):
    monkeypatch.setattr(DenseRetriever, "learns_documents", True)
    add(project, documents(SPACE, 24, "new", 1))

    report = check_drift(project).report

    skipped = {measure.name: measure.why for measure in report.unmeasured}
    assert report.of("domain_auc") == ()
    assert skipped["domain_auc"] == "learned document vectors cannot be compared with encodings"


def test_changed_documents_are_not_new(project):
    add(project, documents(SPACE, 24, "sea", 5))

    report = check_drift(project).report

    assert report.of("domain_auc", "new_quality") == ()


def test_changed_documents_that_cannot_be_told_apart_call_for_retrain(project):
    text = "wave tide harbour sail anchor gull reef current"
    add(project, {f"sea-{i:03}": text for i in range(40)})

    decision = check_drift(project).decision

    assert decision.wanted == RETRAIN
    assert "changed_quality" in decision.reasons[0]


def test_reported_documents_are_not_reported_again(project):
    add(project, documents(SEA, 24, "more", 3))
    check_drift(project)

    assert check_drift(project) is None


@pytest.fixture
def check_of_deleted_documents(project):
    """A requested drift check of documents that were deleted."""
    deleted = documents(SEA, 12, "gone", 7)
    add(project, deleted)
    remove(project, deleted)
    (check,) = request_due_tasks(project)
    return check


def test_check_with_too_few_documents_is_closed(project, check_of_deleted_documents):
    ledger = open_ledger(project, "hce")

    assert check_drift(project) is None

    (task,) = ledger.tasks.last("hce", 1, TaskKind.DRIFT_CHECK)
    assert task.id == check_of_deleted_documents.id
    assert task.state == TaskState.REFUSED
    assert task.outcome == "fewer than drift.minimum_batch documents arrived"
    assert request_due_tasks(project) == []


def test_check_of_later_events_stays_open(project, check_of_deleted_documents):
    ledger = open_ledger(project, "hce")
    later_check = ledger.tasks.request(
        TaskKind.DRIFT_CHECK, "hce", EventRange(25, 44), "arrived meanwhile", requested_by="sensor"
    )

    check_drift(project)

    assert ledger.tasks.open() == [later_check]


def test_documents_after_closed_check_are_measured(project, check_of_deleted_documents):
    check_drift(project)
    add(project, documents(SEA, 24, "more", 8))
    assert [task.kind for task in request_due_tasks(project)] == [TaskKind.DRIFT_CHECK]

    assert check_drift(project).report.documents == 24

    assert request_due_tasks(project) == []


@pytest.mark.parametrize(
    ("last_trained", "batches"),
    [
        (0, [EventRange(1, 24), EventRange(25, 30)]),
        (10, [EventRange(11, 24), EventRange(25, 30)]),
        (26, [EventRange(27, 30)]),
    ],
)
def test_trained_events_leave_the_window(tmp_path, last_trained, batches):
    with open_ledger(live_example.make_project(tmp_path), "hce") as ledger:
        record_report(ledger, EventRange(1, 24))

        assert batches_to_measure(ledger, 2, 30, last_trained) == batches


def test_window_of_no_reports_has_the_newest_batch_alone(tmp_path):
    with open_ledger(live_example.make_project(tmp_path), "hce") as ledger:
        record_report(ledger, EventRange(1, 24))

        assert batches_to_measure(ledger, 0, 30) == [EventRange(25, 30)]


def test_window_pools_last_batches(project):
    add(project, documents(SEA, 24, "one", 5))
    check_drift(project)
    add(project, documents(SEA, 24, "two", 6))

    report = check_drift(project).report

    assert report.batches == 2
    assert report.window_documents == 48


def test_resent_corpus_documents_are_no_arrivals(project):
    add(project, documents(SEA, 150, "sea", 0))

    assert check_drift(project) is None
    assert check_drift(project, record=False) is None


def test_resent_corpus_documents_do_not_change_report(project, built, tmp_path):
    """As if a full export of a source was added, before new documents or with them."""
    corpus = documents(SEA, 150, "sea", 0)
    new = documents(SPACE, 24, "space", 2)
    add(project, corpus)
    add(project, new)
    report = check_drift(project).report
    assert report.documents == 24
    assert "domain_auc" in exceeded_names(report)

    other = make_project(tmp_path / "other")
    open_build(other.root, built)
    add(other, corpus | new)

    assert check_drift(other).report == report


def test_document_added_again_is_still_an_arrival(project):
    """Removed and added in one application it is "unchanged", but no training has seen it."""
    arrived = documents(SPACE, 24, "more", 1)
    add(project, arrived)
    assert check_drift(project, record=False).report.documents == 24

    index = LiveIndex(project)
    index.remove(list(arrived), "test")
    rows = [{"id": name, "title": name, "text": text} for name, text in arrived.items()]
    index.receive(rows, "test")
    index.apply()

    assert check_drift(project, record=False).report.documents == 24


def test_changed_corpus_document_is_an_arrival(project):
    ids = [f"sea-{i:03}" for i in range(24)]
    texts = documents(SPACE, 24, "x", 2).values()
    add(project, dict(zip(ids, texts, strict=True)))

    assert check_drift(project).report.documents == 24


def test_deleted_arrivals_are_not_measured(project):
    add(project, documents(SEA, 24, "one", 5))
    remove(project, ["one-000", "one-001"])

    assert check_drift(project).report.documents == 22


def set_drift_settings(project, **settings):
    write_text(project.params_file, json.dumps({**PARAMS, "drift": settings}))


def test_small_corpus_is_measured_by_growth(project, own_measures):
    """By default, 150 documents are too few to draw batches of 70 from."""
    set_drift_settings(project, minimum_batch=70)
    add(project, documents(SPACE, 70, "space", 2))

    decision = check_drift(project, record=False).decision

    assert decision.action == NO_ACTION
    assert decision.reasons == ("growth 0.4667 is not above 0.5000, and nothing else was measured",)


def test_growth_past_limit_calls_for_retrain(project, own_measures):
    set_drift_settings(project)
    ledger = add(project, documents(SPACE, 130, "space", 2))

    check = check_drift(project)

    assert check.exceeded == ("growth",)
    assert check.decision.action == RETRAIN
    skipped = {measure.name: measure.why for measure in check.report.unmeasured}
    reason = "the reference has 150, fewer than 3 x drift.minimum_batch = 300"
    assert skipped["domain_auc"] == reason
    assert ledger.recent_drift_reports(1)[0]["last_event"] == 130


@pytest.mark.parametrize("retriever", ["hce", "other"])
def test_retrained_documents_are_no_arrivals(project, tmp_path, retriever):
    """Also if the retrain promotes another retriever, of which no report was made yet."""
    arrived = documents(SPACE, 24, "space", 2)
    add(project, arrived)
    old = documents(SEA, 150, "sea", 0)
    build = make_build(tmp_path / "again", old | arrived)
    open_build(tmp_path, build, retriever, event=24)
    set_default_retriever(project.live, retriever)
    assert check_drift(project) is None

    add(project, documents(SEA, 24, "more", 1))
    check = check_drift(project)

    assert check.events == EventRange(25, 48)
    assert check.report.documents == 24
    assert check.report.batches == 1


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(live_example.make_project(tmp_path), "hce") as opened:
        yield opened


def record_report(ledger, events, action=NO_ACTION):
    """Record a report and request the retrain, as `check_drift` does."""
    if action == RETRAIN:
        ledger.tasks.request(TaskKind.RETRAIN, "hce", events, "topics moved", requested_by="drift")
    ledger.record_drift_report({"decision": {"action": action}}, (events.first, events.last))


def test_open_retrain_is_a_past_decision(ledger):
    record_report(ledger, EventRange(1, 24), RETRAIN)

    assert past_decisions(ledger, 3) == [PastDecision(RETRAIN, is_open=True)]


def test_failed_attempt_keeps_retrain_open(ledger):
    record_report(ledger, EventRange(1, 24), RETRAIN)
    ledger.tasks.fail(*ledger.tasks.open("hce"), "disk full")

    assert past_decisions(ledger, 3) == [PastDecision(RETRAIN, is_open=True)]


def test_retrain_counts_from_its_end(ledger):
    record_report(ledger, EventRange(1, 24), RETRAIN)
    record_report(ledger, EventRange(25, 48))
    ledger.tasks.close_retrains("hce", TaskState.DONE, "better", {})

    assert past_decisions(ledger, 3) == [
        PastDecision(NO_ACTION),
        PastDecision(RETRAIN, carried_out=True),
    ]


def test_finally_failed_retrain_was_not_carried_out(ledger):
    record_report(ledger, EventRange(1, 24), RETRAIN)
    for _ in range(MAX_ATTEMPTS):
        ledger.tasks.fail(*ledger.tasks.open("hce"), "disk full")

    assert past_decisions(ledger, 3) == [PastDecision(RETRAIN)]


def test_rejected_manual_retrain_does_not_count(ledger):
    record_report(ledger, EventRange(1, 24))
    ledger.tasks.close_retrains("hce", TaskState.REFUSED, "worse", {})

    assert past_decisions(ledger, 3) == [PastDecision(NO_ACTION)]


def test_promoted_manual_retrain_counts(ledger):
    record_report(ledger, EventRange(1, 24))
    ledger.tasks.close_retrains("hce", TaskState.DONE, "better", {})

    assert past_decisions(ledger, 3) == [
        PastDecision(NO_ACTION),
        PastDecision(RETRAIN, carried_out=True),
    ]


@pytest.fixture
def project_without_qrels(project, corpus):
    """80 documents were added to 150, and no query is judged."""
    qrels = project.artifacts / "corpus" / "qrels.parquet"
    pd.read_parquet(qrels).iloc[:0].to_parquet(qrels)
    add(project, documents(SEA, 80, "more", 1))
    return project


def test_no_retrain_is_requested_without_judged_queries(project_without_qrels):
    decision = check_drift(project_without_qrels).decision

    assert decision.action == NO_ACTION
    assert decision.wanted == RETRAIN
    assert decision.reasons[-1] == f"held back: {NO_JUDGED_QUERIES}"
    assert open_ledger(project_without_qrels, "hce").tasks.last("hce", 5) == []


def test_manual_retrain_is_refused_without_judged_queries(project_without_qrels):
    with pytest.raises(
        FreshetError, match="no retrain is possible yet: this corpus has no judged queries"
    ):
        retrain(project_without_qrels, "by-hand")

    # The next retrain starts with what is live then.
    assert not (project_without_qrels.state / "retraining").exists()


def test_few_gate_queries_hold_back_retrain(project, corpus):
    # The few queries of this corpus cannot show so small a gain.
    params = {**PARAMS, "promotion": {"largest_plausible_gain": 0.01}}
    write_text(project.params_file, json.dumps(params))
    texts = documents(SPACE, 24, "space", 2)
    add(project, texts, others(texts))

    decision = check_drift(project).decision

    assert decision.action == NO_ACTION
    assert decision.wanted == RETRAIN
    assert "held back: the gate would probably refuse it" in decision.reasons[-1]
    assert request_due_tasks(project) == []
    assert held_back_step(project) == f"retrain {decision.reasons[-1]}"


def test_one_retrain_is_requested_at_a_time(project, corpus):
    params = {**PARAMS, "promotion": {"largest_plausible_gain": None}}
    write_text(project.params_file, json.dumps(params))
    texts = documents(SPACE, 24, "space", 2)
    ledger = add(project, texts, others(texts))
    assert check_drift(project).decision.action == RETRAIN
    (task,) = request_due_tasks(project)

    more = documents(SPACE, 24, "more", 3)
    add(project, more, others(more))
    decision = check_drift(project).decision

    assert decision.action == NO_ACTION
    assert decision.wanted == RETRAIN
    assert "held back: an earlier retrain is still open" in decision.reasons
    assert request_due_tasks(project) == [task]
    assert ledger.tasks.last("hce", 9) == [task]


def test_concurrent_checks_report_events_once(project, monkeypatch):
    ledger = add(project, documents(SEA, 24, "more", 1))
    make_report = drift_module.make_report

    def make_report_slowly(*arguments):
        time.sleep(0.5)
        return make_report(*arguments)

    monkeypatch.setattr(drift_module, "make_report", make_report_slowly)
    checks = []
    threads = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: checks.append(check_drift(project)))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()

    assert sorted(check is None for check in checks) == [False, True]
    assert len(ledger.recent_drift_reports(5)) == 1
