"""Guards how well documents are found, by pseudo-queries and by the queries that ask for them."""

from __future__ import annotations

import shutil

import pytest

from model_code.collection.generations.refinements import solved_documents
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger.tasks import EventRange
from model_code.corpus.tables import Judgements
from model_code.drift.reference import Question
from orchestration import parameters
from orchestration.freshness import drift as drift_module
from orchestration.freshness.drift import BatchReader, check_drift
from orchestration.freshness.drift_reference import MAX_SCORED_ARRIVALS
from orchestration.freshness.policy import Action
from orchestration.freshness.probes import (
    document_scores,
    first_ranks,
    judged_questions,
    old_document_scores,
    sample_texts,
)
from tests.orchestration.freshness.subjects import SEA, add, documents, others

JUDGEMENTS = Judgements(
    {"1": "a tide", "2": "a reef"}, {"1": {"x": 1, "y": 2}, "2": {"z": 1}}, "qrels"
)


def own_queries(texts):
    """For each document a query with most of its words."""
    return {name: [" ".join(text.split()[:6])] for name, text in texts.items()}


def search_with_rankings(rankings):
    """A search that returns a fixed ranking for each text."""

    def search(texts, k):
        return [rankings[text] for text in texts]

    return search


def read_arrivals(project, events):
    settings = parameters.load(project.params_file)
    searcher = Searcher.open(project.live)
    reader = BatchReader(searcher, settings, LiveIndex(project).ledger_view)
    return reader.read_arrivals(EventRange(1, events), MAX_SCORED_ARRIVALS)


def quality_measures(check):
    """The measures of the batch that compare the scores of old and new documents, by name."""
    measures = check.report.of("new_quality", "asked_quality")
    return {measure.name: measure for measure in measures if measure.scope == "batch"}


def test_document_score_is_mean_reciprocal_rank():
    search = search_with_rankings(
        {
            "a": [("x", 0.9), ("y", 0.8)],
            "b": [("y", 0.9)],
            "c": [("y", 0.9), ("q", 0.8), ("z", 0.7)],
        }
    )
    questions = [
        Question("y", "a", frozenset("y")),
        Question("y", "b", frozenset("y")),
        Question("x", "b", frozenset("x")),
        Question("z", "c", frozenset("zq")),
    ]

    x, y, z = document_scores(search, questions).tolist()

    assert x == 0.0
    assert y == (1 / 2 + 1) / 2
    assert z == 1 / 2


def test_no_questions_give_no_scores():
    assert document_scores(search_with_rankings({}), []).shape == (0,)


def test_query_asks_for_each_answer():
    questions = judged_questions(JUDGEMENTS, {"x", "z"})

    assert questions == [
        Question("x", "a tide", frozenset("xy")),
        Question("z", "a reef", frozenset("z")),
    ]


def test_text_of_several_documents_is_searched_once():
    searched = []

    def search(texts, depth):
        searched.append(texts)
        return [[("b", 2.0), ("a", 1.0)] for _ in texts]

    questions = [
        Question("a", "how?", frozenset("a")),
        Question("b", "how?", frozenset("b")),
        Question("c", "why?", frozenset("c")),
    ]

    assert first_ranks(search, questions).tolist() == [2, 1, 0]
    assert searched == [["how?", "why?"]]


def test_nothing_is_searched_without_questions():
    def search(texts, depth):
        pytest.fail("it searches")

    assert first_ranks(search, []).tolist() == []


def test_sample_does_not_depend_on_order():
    texts = [str(i) for i in range(50)]

    sample = sample_texts(texts, 10, 3)

    assert sample == sample_texts(texts[::-1] * 2, 10, 3)
    assert len(set(sample)) == 10


def test_found_documents_are_not_harmed(project, corpus, unrefined):
    texts = documents(SEA, 24, "more", 1)
    add(project, texts, own_queries(texts))

    check = check_drift(project)

    (measure,) = check.report.of("asked_quality")
    assert not measure.exceeded
    assert measure.detail["documents"] == 24
    assert check.exceeded == ()
    assert check.decision.action == Action.NO_ACTION


def test_refined_documents_are_measured_by_their_encodings(project, corpus):
    texts = documents(SEA, 24, "more", 1)
    add(project, texts, own_queries(texts))
    index = LiveIndex(project)
    assert len(solved_documents(index.generation)) == 24
    refined = read_arrivals(project, 24)

    parameters.write_overrides(project.params_file, ["additions.refine=false"])
    LiveIndex(project).solve_again(list(texts), "test")

    assert solved_documents(index.generation) == []
    assert refined.asked.tolist() == read_arrivals(project, 24).asked.tolist()
    assert len(refined.asked) == 24


def test_documents_missed_by_their_queries_are_harmed(project, corpus, unrefined):
    """Pseudo-queries find them, and do not decide."""
    texts = documents(SEA, 24, "more", 1)
    add(project, texts, others(texts))

    check = check_drift(project)

    (measure,) = check.report.of("asked_quality")
    assert measure.exceeded
    assert measure.detail["documents"] == 24
    assert check.exceeded == ("asked_quality",)
    assert check.decision.wanted == Action.RETRAIN


def test_old_documents_are_scored_in_grown_collection(project, corpus, unrefined):
    """Growth is no harm: old documents compete with the same documents as new ones."""
    first = documents(SEA, 24, "more", 1)
    second = documents(SEA, 96, "again", 2)
    add(project, first, own_queries(first))
    early = quality_measures(check_drift(project))
    add(project, second, own_queries(second))

    grown = quality_measures(check_drift(project, record=False))

    assert list(grown) == ["new_quality", "asked_quality"]
    for name, measure in grown.items():
        assert measure.detail["old"] < 0.9 * early[name].detail["old"]


def test_scores_do_not_depend_on_age_of_reference(project, corpus, unrefined):
    texts = documents(SEA, 24, "more", 1)
    add(project, texts, own_queries(texts))
    check_drift(project)
    more = documents(SEA, 96, "again", 2)
    add(project, more, own_queries(more))
    with_early_reference = quality_measures(check_drift(project, record=False))

    shutil.rmtree(project.state / "drift")

    assert quality_measures(check_drift(project, record=False)) == with_early_reference


def test_changed_old_documents_are_not_scored(project):
    index = LiveIndex(project)
    index.remove(["sea-000"], "test")
    index.apply()
    add(project, {"sea-001": "an orbit about nothing"})

    questions = []
    for number, text in enumerate(documents(SEA, 150, "sea", 0).values()):
        document_id = f"sea-{number:03}"
        questions.append(Question(document_id, text, frozenset([document_id])))
    searcher = Searcher.open(project.live)
    scores = old_document_scores(searcher, searcher.plain_retriever.search, questions, {})

    assert scores.tolist() == [1.0] * 148


def test_new_document_answers_old_query_it_arrived_with(project, corpus, unrefined):
    copies = {f"copy-{number:03}": text for number, text in enumerate(corpus[:120])}
    add(project, copies, {name: [text] for name, text in copies.items()})

    measures = quality_measures(check_drift(project, record=False))

    # Each old query finds its copy first.
    assert measures["asked_quality"].detail["old"] == 1.0


def skip_reason(project, name):
    report = check_drift(project, record=False).report
    return {measure.name: measure.why for measure in report.unmeasured}[name]


def test_nothing_is_compared_without_arrived_queries(project):
    add(project, documents(SEA, 24, "more", 1))

    assert skip_reason(project, "asked_quality").startswith("the reference has 0, fewer than")


def test_nothing_is_compared_without_judged_queries(project, unrefined):
    texts = documents(SEA, 24, "more", 1)
    add(project, texts, others(texts))

    reason = "the reference has 0, fewer than 3 x drift.minimum_batch = 60"
    assert skip_reason(project, "asked_quality") == reason


def test_documents_of_earlier_batches_share_the_searches(project, monkeypatch):
    monkeypatch.setattr(drift_module, "MAX_SCORED_ARRIVALS", 20)
    limits = []
    read = BatchReader.read_arrivals

    def read_arrivals(reader, events, max_scored):
        limits.append(max_scored)
        return read(reader, events, max_scored)

    monkeypatch.setattr(BatchReader, "read_arrivals", read_arrivals)
    for seed in range(1, 5):
        add(project, documents(SEA, 24, f"batch-{seed}", seed))
        limits.clear()
        check_drift(project)

    assert limits == [20, 7, 7, 7]


def test_only_measured_documents_are_scored(project, unrefined):
    texts = documents(SEA, 70, "more", 1)
    add(project, texts, own_queries(texts))

    arrivals = read_arrivals(project, 70)

    assert len(arrivals.vectors) == 70
    assert len(arrivals.quality) == 40
    assert len(arrivals.asked) == 40


def test_shared_query_is_answered_by_each_document(project, unrefined):
    (text,) = documents(SEA, 1, "one", 1).values()
    texts = dict.fromkeys(("a", "b", "c"), text)
    add(project, texts, dict.fromkeys(texts, [text]))

    assert read_arrivals(project, 3).asked.tolist() == [1, 1, 1]


@pytest.fixture
def refined_documents(project):
    """Documents whose vectors were placed, as by default, by the queries that they arrived with."""
    texts = documents(SEA, 24, "more", 1)
    add(project, texts, own_queries(texts))


def test_conflicts_of_refined_documents_are_measured(project, refined_documents):
    report = check_drift(project, record=False).report

    assert len(report.of("conflicts")) == 1
