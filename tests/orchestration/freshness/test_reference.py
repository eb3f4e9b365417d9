"""Guards the drift reference: which documents and queries it keeps, and the protected queries."""

from __future__ import annotations

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.status import live_status, live_status_lines
from model_code.corpus.tables import Judgements, make_table
from model_code.drift.measures import MAX_COUNTED_RANK
from model_code.drift.reference import Question, Questions
from model_code.project import Project
from orchestration.freshness import drift_reference, probes
from orchestration.freshness.check_cache import CheckCache
from orchestration.freshness.drift import BatchReader, check_drift
from orchestration.freshness.drift_reference import (
    calibration_folder,
    score_protected_queries,
    select_protected_queries,
    select_reference_documents,
)
from orchestration.freshness.policy import Action
from tests.model_code.collection.known_collection import PAGES, judged, open_known_collection
from tests.orchestration.freshness.subjects import SEA, SPACE, add, documents

OLD = documents(SEA, 150, "sea", 0)
COPIES = {f"copy-{number:03}": text for number, text in enumerate(list(OLD.values())[:40])}
"""Copies of old documents, which come first where scores are equal, by their ids."""


def live_generation(project):
    return Searcher.open(project.live).generation


def score_protected(project, reference):
    settings = SimpleNamespace(drift=SimpleNamespace(minimum_batch=1))
    searcher = Searcher.open(project.live)
    return score_protected_queries(searcher, reference, settings, {}, CheckCache())


def select_protected(project):
    return select_protected_queries(project, Searcher.open(project.live), seed=0)


def protected_measure(check):
    (measure,) = check.report.of("protected_old")
    return measure


def skip_reason(check):
    return {measure.name: measure.why for measure in check.report.unmeasured}["protected_old"]


def status_text(project):
    """The text of `freshet status`."""
    return "\n".join(live_status_lines(live_status(project, "hce")))


@pytest.fixture
def dev_queries(project, corpus):
    """The corpus's 120 test queries, as dev queries. Many old documents share their six words."""
    path = project.artifacts / "corpus" / "qrels.parquet"
    qrels = pd.read_parquet(path)
    qrels["split"] = qrels["split"].replace("test", "dev")
    qrels.to_parquet(path)


@pytest.fixture
def exact_dev_queries(project, dev_queries):
    """The same queries, each with the whole text of its document, which no other document has."""
    path = project.artifacts / "corpus" / "queries.parquet"
    queries = pd.read_parquet(path)
    queries.loc[:119, "text"] = list(OLD.values())[:120]
    queries.to_parquet(path)


def test_documents_with_training_queries_are_left_out(project, corpus):
    selected, note = select_reference_documents(project, live_generation(project), 120)

    assert selected == {f"sea-{i:03}" for i in range(120)}
    assert note == ""


def test_documents_with_training_queries_fill_small_reference(project, corpus):
    selected, note = select_reference_documents(project, live_generation(project), 121)

    assert selected == set(OLD)
    assert "120 of 150 have no such query, and 121 are needed" in note


def test_all_documents_of_baseline_are_selected(project, corpus):
    baseline = replace(live_generation(project), retriever="untrained")

    selected, note = select_reference_documents(project, baseline, 121)

    assert selected == set(OLD)
    assert note == ""


def test_all_trained_documents_are_selected_without_corpus(project):
    selected, note = select_reference_documents(project, live_generation(project), 60)

    assert selected == set(OLD)
    assert "0 of 150" in note


def test_report_shows_note_of_reference(project):
    add(project, documents(SEA, 24, "more", 1))

    check = check_drift(project)

    note = check.report.reference
    assert note.startswith("also documents that training queries ask for")
    assert note in check.text


def test_captured_old_queries_call_for_retrain(project, exact_dev_queries):
    add(project, COPIES)

    check = check_drift(project)

    measure = protected_measure(check)
    assert measure.exceeded
    assert measure.value < -0.1
    assert check.decision.wanted == Action.RETRAIN
    reason = f"protected_old {measure.value:.4f} is below {measure.threshold:.4f}"
    assert reason in check.decision.reasons


def test_captured_old_queries_are_shown(project, exact_dev_queries):
    add(project, COPIES)

    check = check_drift(project)

    measure = protected_measure(check)
    assert "protected_old" in check.text
    line = f"protected_old {measure.value:.3g} is past its threshold {measure.threshold:.3g}"
    assert line in status_text(project)


def test_earlier_ranks_do_not_depend_on_reference_age(project, exact_dev_queries):
    add(project, COPIES)
    first = protected_measure(check_drift(project, record=False))

    shutil.rmtree(project.state / "drift")

    assert protected_measure(check_drift(project)) == first


@pytest.mark.parametrize("words", [SEA, SPACE])
def test_ordinary_additions_do_not_harm_old_documents(project, exact_dev_queries, words):
    add(project, documents(words, 24, "more", 1))

    measure = protected_measure(check_drift(project))

    assert measure.value == 0.0
    assert not measure.exceeded
    assert measure.detail["measured"] == 120


def test_cost_of_growth_is_no_harm(project, dev_queries):
    add(project, documents(SEA, 72, "more", 1))

    measure = protected_measure(check_drift(project))

    assert not measure.exceeded
    assert measure.value < -0.05
    assert measure.detail["crowding"] > 0.05


def test_document_answers_old_query_it_arrived_with(project, exact_dev_queries, unrefined):
    add(project, COPIES, {name: [text] for name, text in COPIES.items()})

    assert protected_measure(check_drift(project)).value == 0


def test_queries_with_changed_answers_are_left_out(project, exact_dev_queries):
    add(project, documents(SEA, 24, "more", 1))
    index = LiveIndex(project)
    index.remove([f"sea-{number:03}" for number in range(30)], "test")
    index.apply()
    add(project, {"sea-030": "an orbit about nothing"})

    assert protected_measure(check_drift(project)).detail["measured"] == 89


@pytest.fixture
def check_without_queries(project, exact_dev_queries):
    """A drift check that was made while the corpus's queries were missing."""
    queries = project.artifacts / "corpus" / "queries.parquet"
    moved = project.root / "moved.parquet"
    queries.rename(moved)
    add(project, documents(SEA, 24, "more", 1))
    check = check_drift(project)
    moved.rename(queries)
    return check


def test_missing_protected_queries_are_reported(project, check_without_queries):
    reason = skip_reason(check_without_queries)

    assert check_without_queries.decision.action == Action.NO_ACTION
    assert reason.startswith("0 protected queries")
    line = f"whether additions push old documents down was not measured: {reason}"
    assert line in status_text(project)


def test_reference_is_made_again_with_queries(project, check_without_queries):
    add(project, documents(SEA, 24, "again", 2))

    measure = protected_measure(check_drift(project, record=False))

    assert measure.detail["measured"] == 120


def test_uncounted_ranks_are_kept(project, dev_queries):
    """The expected cost of growth depends on them."""
    ranks = [question.rank for question in select_protected(project)]

    assert max(ranks) > MAX_COUNTED_RANK
    assert 0 not in ranks


def test_answer_at_last_counted_rank_is_found(project, exact_dev_queries):
    text = OLD["sea-000"]
    add(project, {f"copy-{number}": text for number in range(9)})
    (question,) = [query for query in select_protected(project) if query.text == text]
    reference = SimpleNamespace(questions=Questions((), (), (question,)), trained=len(OLD))

    scores = score_protected(project, reference)

    assert question.rank == 1
    assert scores.before.tolist() == [1.0]
    assert scores.after.tolist() == [0.1]


@pytest.fixture
def known_project(tmp_path):
    """A live BM25 index that finds one document only by a query that it is known to answer."""
    open_known_collection(tmp_path, known={"tar": [judged("tar", "bundle documents")]})
    return Project(tmp_path)


def test_earlier_ranks_ignore_known_words(known_project, monkeypatch):
    """Later ranks ignore them as well, so that nothing changes while nothing is added."""
    judgements = Judgements({"q": "bundle all documents"}, {"q": {"tar": 1}}, "qrels")
    monkeypatch.setattr(probes, "judged_queries", lambda artifacts, split: judgements)

    protected = select_protected(known_project)
    reference = SimpleNamespace(questions=Questions((), (), tuple(protected)), trained=4)
    scores = score_protected(known_project, reference)

    assert scores.after.tolist() == [0.0]
    assert scores.before.tolist() == [0.0]


def test_former_ranks_ignore_known_words(known_project):
    reader = BatchReader(Searcher.open(known_project.live), SimpleNamespace(), SimpleNamespace())
    question = Question("tar", "bundle all documents", frozenset({"tar"}))

    assert reader._former_ranks([question]).tolist() == [0]


def test_build_of_equal_number_has_another_folder(tmp_path):
    settings = SimpleNamespace(drift=None)
    folders = []
    for text in ("Count the lines of a text.", "Count the words of a text."):
        shutil.rmtree(tmp_path / "live", ignore_errors=True)
        searcher = Searcher.open(open_known_collection(tmp_path, {**PAGES, "wc": text}))
        assert searcher.generation.base == 0
        folders.append(calibration_folder(Project(tmp_path), searcher, settings))

    assert folders[0] != folders[1]


def test_test_queries_are_not_protected(project, corpus):
    assert select_protected(project) == []


def test_no_query_is_protected_without_qrels(project, corpus):
    make_table("qrels", []).to_parquet(project.artifacts / "corpus" / "qrels.parquet")
    add(project, documents(SEA, 24, "more", 1))

    assert skip_reason(check_drift(project)).startswith("0 protected queries")


def test_number_of_protected_queries_is_limited(project, exact_dev_queries, monkeypatch):
    monkeypatch.setattr(drift_reference, "MAX_PROTECTED_QUERIES", 30)

    questions = select_protected(project)

    assert len(questions) == 30
    assert {question.rank for question in questions} == {1}
    assert {len(question.answers) for question in questions} == {1}
