"""Guards how well documents are found, by made and by real queries."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest

from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger.tasks import EventRange
from model_code.corpus.tables import Judgements
from model_code.drift.reference import Question
from model_code.files import write_text
from orchestration import parameters
from orchestration.freshness.drift import BatchReader, check_drift
from orchestration.freshness.probes import (
    document_scores,
    first_ranks,
    judged_questions,
    old_document_scores,
    sample_texts,
)
from tests.orchestration.freshness.subjects import PARAMS, SEA, add, documents, others

JUDGEMENTS = Judgements(
    {"1": "a tide", "2": "a reef"}, {"1": {"x": 1, "y": 2}, "2": {"z": 1}}, "qrels"
)


def stub(rankings):
    """What `document_scores` needs of a searcher."""
    return SimpleNamespace(
        retriever=SimpleNamespace(search=lambda texts, k: [rankings[text] for text in texts])
    )


def own(texts):
    """For each document most of its words."""
    return {name: [" ".join(text.split()[:6])] for name, text in texts.items()}


def test_a_document_scores_the_mean_reciprocal_rank_of_its_questions():
    searcher = stub(
        {
            "a": [("x", 0.9), ("y", 0.8)],
            "b": [("y", 0.9)],
            "c": [("y", 0.9), ("q", 0.8), ("z", 0.7)],
        }
    )
    asked = [
        Question("y", "a", frozenset("y")),
        Question("y", "b", frozenset("y")),
        Question("x", "b", frozenset("x")),
    ]
    asked.append(Question("z", "c", frozenset("zq")))
    assert document_scores(searcher, asked).tolist() == [0.0, (1 / 2 + 1) / 2, 1 / 2], (
        "of x, y and z"
    )
    assert document_scores(searcher, []).shape == (0,)


def test_a_query_counts_for_each_document_that_answers_it():
    found = [
        (one.document_id, one.text, set(one.answers))
        for one in judged_questions(JUDGEMENTS, {"x", "z"})
    ]
    assert found == [("x", "a tide", {"x", "y"}), ("z", "a reef", {"z"})]


@pytest.mark.parametrize(("asked", "harmed"), [(own, False), (others, True)])
def test_documents_that_their_queries_miss_are_harmed_though_made_ones_find_them(
    project, corpus, asked, harmed
):
    texts = documents(SEA, 24, "more", 1)
    add(project, texts, asked(texts))
    watched = check_drift(project)
    (measured,) = watched.report.of("asked_quality")
    assert (measured.exceeded, measured.detail["documents"]) == (harmed, 24)
    assert watched.exceeded == ("asked_quality",) * harmed
    assert watched.decision.action == ("retrain" if harmed else "add")


def harm(watched):
    """The mean scores of old documents, and what new ones are compared with."""
    found = [one for name in ("new_quality", "asked_quality") for one in watched.report.of(name)]
    return [
        (one.name, one.detail["old"], one.value, one.threshold)
        for one in found
        if one.scope == "batch"
    ]


def test_growth_is_no_harm_to_what_comes_later(project, corpus):
    """Old documents have the rivals of today, also where the reference was made before these came."""
    first, second = documents(SEA, 24, "more", 1), documents(SEA, 96, "again", 2)
    add(project, first, own(first))
    early = harm(check_drift(project))
    add(project, second, own(second))
    grown = harm(check_drift(project, record=False))
    assert [name for name, *_ in grown] == ["new_quality", "asked_quality"]
    assert all(
        now < 0.9 * before for (_, before, *_), (_, now, *_) in zip(early, grown, strict=True)
    )
    shutil.rmtree(project.state / "drift")
    assert harm(check_drift(project, record=False)) == grown


def test_old_documents_that_were_changed_or_deleted_are_no_measure(project):
    collection = LiveIndex(project)
    collection.remove(["sea-000"], "test")
    collection.apply()
    add(project, {"sea-001": "an orbit about nothing"})
    asked = [
        Question(f"sea-{number:03}", text, frozenset([f"sea-{number:03}"]))
        for number, text in enumerate(documents(SEA, 150, "sea", 0).values())
    ]
    assert old_document_scores(Searcher.open(project.live), asked, {}).tolist() == [1.0] * 148


def test_in_a_report_an_old_query_is_answered_by_what_came_with_it(project, corpus):
    texts = {f"copy-{number:03}": text for number, text in enumerate(corpus[:120])}
    add(project, texts, {name: [text] for name, text in texts.items()})
    ((_, old, *_),) = [
        each for each in harm(check_drift(project, record=False)) if each[0] == "asked_quality"
    ]
    assert old == 1.0, "each query finds its copy first, which was given with it"


def test_without_queries_or_judged_ones_of_old_documents_there_is_nothing_to_compare_with(project):
    def why():
        return {one.name: one.why for one in check_drift(project, record=False).report.unmeasured}[
            "asked_quality"
        ]

    texts = documents(SEA, 24, "more", 1)
    add(project, texts)
    assert why() == "nothing of the kind was given"
    add(project, texts, others(texts))
    assert why() == "the reference has 0, fewer than 3 x drift.minimum_batch = 60"


def arrivals(project, number):
    settings = parameters.load(project.params_file)
    gatherer = BatchReader(Searcher.open(project.live), settings, LiveIndex(project).ledger_view)
    return gatherer.arrivals(EventRange(1, number))


def test_no_more_documents_are_scored_than_are_measured(project):
    texts = documents(SEA, 70, "more", 1)
    add(project, texts, own(texts))
    found = arrivals(project, 70)
    assert [len(found.vectors), len(found.quality), len(found.asked)] == [70, 40, 40]


def test_a_question_that_several_documents_came_with_is_answered_by_each_of_them(project):
    (text,) = documents(SEA, 1, "one", 1).values()
    texts = dict.fromkeys(("a", "b", "c"), text)
    add(project, texts, dict.fromkeys(texts, [text]))
    assert arrivals(project, 3).asked.tolist() == [1, 1, 1]


def test_where_additions_are_refined_conflicts_are_measured_and_no_document_is_judged_by_its_own_queries(
    project,
):
    """It was placed by them."""
    write_text(project.params_file, json.dumps({**PARAMS, "additions": {"refine": True}}))
    texts = documents(SEA, 24, "more", 1)
    add(project, texts, own(texts))
    assert arrivals(project, 24).asked is None
    report = check_drift(project, record=False).report
    assert [one.name for one in report.of("conflicts")] == ["conflicts"]


def test_a_text_that_several_documents_answer_is_searched_once():
    asked = []

    def search(texts, depth):
        asked.append(texts)
        return [[("b", 2.0), ("a", 1.0)] for _ in texts]

    both = [Question(one, "how?", frozenset({one})) for one in ("a", "b")]
    assert first_ranks(search, [*both, Question("c", "why?", frozenset({"c"}))]).tolist() == [
        2,
        1,
        0,
    ]
    assert asked == [["how?", "why?"]]
    assert first_ranks(search, []).tolist() == []
    assert len(asked) == 1


def test_a_sample_depends_on_no_order():
    texts = [str(i) for i in range(50)]
    assert sample_texts(texts, 10, 3) == sample_texts(texts[::-1] * 2, 10, 3)
    assert len(set(sample_texts(texts, 10, 3))) == 10
