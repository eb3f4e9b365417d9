"""Guards the drift reference of a live build: which documents and queries it keeps, and protected
queries.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.status import live_status, live_status_lines
from model_code.corpus.tables import make_table
from model_code.drift.measures import MAX_COUNTED_RANK
from model_code.drift.reference import Questions
from orchestration.freshness import drift_reference
from orchestration.freshness.drift import check_drift
from orchestration.freshness.drift_reference import (
    protected_queries,
    protected_scores,
    reference_documents,
)
from tests.orchestration.freshness.subjects import SEA, SPACE, add, documents

SEAS = {f"sea-{i:03}" for i in range(150)}


def generation(project):
    return Searcher.open(project.live).generation


def test_documents_that_training_asked_for_are_left_out_where_others_are_enough(project, corpus):
    found, note = reference_documents(project, generation(project), 120)
    assert (found, note) == ({f"sea-{i:03}" for i in range(120)}, "")
    found, note = reference_documents(project, generation(project), 121)
    assert found == SEAS
    assert "120 of 150 are asked for by none, and 121 are wanted" in note
    untrained = replace(generation(project), retriever="untrained")
    assert reference_documents(project, untrained, 121) == (SEAS, ""), "no training asked for any"


def test_without_a_corpus_every_trained_document_is_compared_with(project):
    found, note = reference_documents(project, generation(project), 60)
    assert found == SEAS
    assert "0 of 150" in note
    add(project, documents(SEA, 24, "more", 1))
    watched = check_drift(project)
    assert watched.report.reference.startswith("also documents that training queries ask for")
    assert watched.report.reference in watched.text


OLD = documents(SEA, 150, "sea", 0)
CAPTURING = {f"copy-{number:03}": text for number, text in enumerate(list(OLD.values())[:40])}
"""Documents that say what old queries ask and come first where scores are equal, by their ids."""


@pytest.fixture
def judged(project, corpus):
    """The corpus's 120 test queries, of six words that many old documents share, are dev queries."""
    path = project.artifacts / "corpus" / "qrels.parquet"
    qrels = pd.read_parquet(path)
    qrels["split"] = qrels["split"].replace("test", "dev")
    qrels.to_parquet(path)


@pytest.fixture
def dev(project, judged):
    """The same, each of the whole text of its document, which no other has."""
    path = project.artifacts / "corpus" / "queries.parquet"
    queries = pd.read_parquet(path)
    queries.loc[:119, "text"] = list(OLD.values())[:120]
    queries.to_parquet(path)


def measured(watched):
    (found,) = watched.report.of("protected_old")
    return found


def why_not(watched):
    return {one.name: one.why for one in watched.report.unmeasured}["protected_old"]


def status(project):
    """What `freshet status` says."""
    return "\n".join(live_status_lines(live_status(project, "hce")))


def test_additions_that_capture_old_queries_are_harm(project, dev):
    """Whenever the reference is made, it is of the collection as it was opened."""
    add(project, CAPTURING)
    early = measured(check_drift(project, record=False))
    shutil.rmtree(project.state / "drift")
    watched = check_drift(project)
    assert measured(watched) == early
    found = measured(watched)
    assert found.exceeded
    assert found.value < -0.1
    assert watched.decision.wanted == "retrain"
    assert (
        f"protected_old {found.value:.4f} is below {found.threshold:.4f}"
        in watched.decision.reasons
    )
    assert "protected_old" in watched.text
    assert f"protected_old {found.value:.3g} is past its threshold {found.threshold:.3g}" in status(
        project
    )


@pytest.mark.parametrize("words", [SEA, SPACE])
def test_ordinary_additions_take_nothing_from_old_documents(project, dev, words):
    add(project, documents(words, 24, "more", 1))
    found = measured(check_drift(project))
    assert (found.value, found.exceeded, found.detail["queries"]) == (0.0, False, 120)


def test_what_a_larger_collection_costs_by_itself_is_no_harm(project, judged):
    add(project, documents(SEA, 72, "more", 1))
    found = measured(check_drift(project))
    assert not found.exceeded
    assert found.value < -0.05
    assert found.detail["crowding"] > 0.05


def test_documents_that_came_with_an_old_query_answer_it(project, dev):
    add(project, CAPTURING, {name: [text] for name, text in CAPTURING.items()})
    assert measured(check_drift(project)).value == 0


def test_queries_whose_answers_were_changed_or_deleted_are_left_out(project, dev):
    add(project, documents(SEA, 24, "more", 1))
    collection = LiveIndex(project)
    collection.remove([f"sea-{number:03}" for number in range(30)], "test")
    collection.apply()
    add(project, {"sea-030": "an orbit about nothing"})
    assert measured(check_drift(project)).detail["queries"] == 89


def test_without_protected_queries_it_is_said_and_later_reports_are_not_without(project, dev):
    made = project.artifacts / "corpus" / "queries.parquet"
    made.rename(aside := project.root / "aside.parquet")
    add(project, documents(SEA, 24, "more", 1))
    watched = check_drift(project)
    assert watched.decision.action == "add"
    assert why_not(watched).startswith("0 protected queries")
    missing = f"whether additions push old documents down was not measured: {why_not(watched)}"
    assert missing in status(project)
    aside.rename(made)
    add(project, documents(SEA, 24, "again", 2))
    assert measured(check_drift(project, record=False)).detail["queries"] == 120


def test_ranks_beyond_those_that_are_scored_are_known_as_what_growth_costs_depends_on_them(
    project, judged
):
    ranks = [one.rank for one in protected_queries(project, Searcher.open(project.live), 0)]
    assert max(ranks) > MAX_COUNTED_RANK
    assert not any(rank == 0 for rank in ranks), "each answer is among so many"


def test_an_answer_that_additions_push_to_the_last_scored_rank_is_still_found(project, dev):
    asked = list(OLD.values())[0]
    add(project, {f"copy-{number}": asked for number in range(9)})
    searcher = Searcher.open(project.live)
    one = next(one for one in protected_queries(project, searcher, 0) if one.text == asked)
    reference = SimpleNamespace(questions=Questions((), (), (one,)), trained=len(OLD))
    scores = protected_scores(searcher, reference, {})
    assert (one.rank, scores.before.tolist(), scores.after.tolist()) == (1, [1.0], [0.1])


def test_where_the_corpus_judges_for_the_gate_alone_or_nothing_no_query_is_protected(
    project, corpus
):
    assert protected_queries(project, Searcher.open(project.live), 0) == []
    make_table("qrels", []).to_parquet(project.artifacts / "corpus" / "qrels.parquet")
    add(project, documents(SEA, 24, "more", 1))
    assert why_not(check_drift(project)).startswith("0 protected queries")


def test_no_more_queries_are_protected_than_a_report_can_search_in_passing(
    project, dev, monkeypatch
):
    monkeypatch.setattr(drift_reference, "PROTECTED", 30)
    found = protected_queries(project, Searcher.open(project.live), 0)
    assert (len(found), {one.rank for one in found}, {len(one.answers) for one in found}) == (
        30,
        {1},
        {1},
    )
