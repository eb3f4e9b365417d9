"""Tests of training data from a corpus, and of the dev metric.

The answers that a corpus names reach the training pairs. The dev metric ranks documents by their
best passage, among all passages or a sample that holds every relevant one.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from model_code.corpus.tables import Corpus, make_table
from model_code.training.data import Passages
from model_code.training.negatives import Bm25Negatives
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator, TrainingTables
from tests.model_code.training.example import answer_matrix

ANSWERS = {"q1": '["x"]', "q2": '["y", "z"]', "q3": None, "q4": '["w"]'}
QUERY_TEXTS = {"q1": "when", "q2": "when", "q3": "who", "q4": "why"}
SPLITS = {"q1": "train", "q2": "train", "q3": "train", "q4": "test"}
ROW_QUERIES = {"d4": '["who is it"]'}
PASSAGE_TEXTS = {"d1": "1 x", "d2": "2 y", "d3": "3 z", "d4": "4 w"}


def make_tables() -> TrainingTables:
    """Make documents d1 to d4 with one query each; q1 and q2 ask the same, q4 is a test query."""
    documents = []
    passages = []
    for document, text in PASSAGE_TEXTS.items():
        documents.append(
            {
                "document_id": document,
                "title": "",
                "text": "x",
                "fields": "{}",
                "content_hash": "",
                "queries": ROW_QUERIES.get(document),
            }
        )
        passages.append({"document_id": document, "ordinal": 0, "title": "", "text": text})

    queries = []
    qrels = []
    for query, text in QUERY_TEXTS.items():
        split = SPLITS[query]
        queries.append({"query_id": query, "text": text, "split": split, "answers": ANSWERS[query]})
        qrels.append(
            {"query_id": query, "document_id": f"d{query[1]}", "relevance": 1, "split": split}
        )

    corpus = Corpus(
        make_table("documents", documents),
        make_table("passages", passages),
        make_table("queries", queries),
        make_table("qrels", qrels),
    )
    pseudo_query = {"query_id": "p", "document_id": "d4", "text": "4 w", "kind": "cloze"}
    return TrainingTables(corpus, make_table("pseudo_queries", [pseudo_query]), include_title=True)


def test_long_id_does_not_lengthen_all_ids():
    passages = []
    for number in range(2000):
        document_id = "b" * 2000 if number == 7 else f"a{number}"
        passages.append({"document_id": document_id, "ordinal": 0, "title": "", "text": "x"})
    tables = [make_table(name, []) for name in ("documents", "queries", "qrels")]
    corpus = Corpus(tables[0], make_table("passages", passages), tables[1], tables[2])
    pseudo_queries = make_table("pseudo_queries", [])

    tracemalloc.start()
    training = TrainingTables(corpus, pseudo_queries, include_title=True)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert training.number["b" * 2000] == 1999
    assert training.passages.documents[7] == 1999
    assert peak_bytes < 2_000_000


def test_queries_of_equal_text_share_answers():
    data = make_tables().training_data(TrainingSettings(supervision="joint"))

    assert dict(data.pairs.answers) == {"when": ["x", "y", "z"]}
    assert answer_matrix(data.answers, ["when", "who", "4 w"], range(4)) == [
        [True, True, True, False],
        [False, False, False, False],
        [False, False, False, False],
    ]


def test_known_queries_are_no_words_of_passages_in_training():
    """The query of d3 is "who". The row of d4 brings a query with this word."""
    settings = TrainingSettings(supervision="supervised", negatives="bm25")
    data = make_tables().training_data(settings)
    pair = list(data.pairs.queries).index("who")

    assert list(data.passages.texts) == list(PASSAGE_TEXTS.values())
    assert Bm25Negatives(data, settings).candidates(pair).tolist() == []


def test_unsupervised_training_has_no_answers():
    data = make_tables().training_data(TrainingSettings(supervision="unsupervised"))

    assert dict(data.pairs.answers) == {}


class LookupEncoder:
    """An encoder that looks up the vectors of its texts."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors = vectors

    def encode_queries(self, texts, progress=None):
        return np.array([self.vectors[text] for text in texts], dtype=np.float32)

    encode_documents = encode_queries


VECTORS = {
    "a1": [1, 0, 0],
    "a2": [0, 0, 1],
    "b": [0, 1, 0],
    "c": [0.6, 0.8, 0],
    "x": [0, 0.1, 0.9],
    "y": [0.1, 0.9, 0],
}
PASSAGES = Passages(["a1", "b", "a2", "c"], np.array([0, 1, 0, 2]))
QUERIES = [("x", {0: 1}), ("y", {2: 1})]


def score_with_lookup(dev: DevEvaluator) -> float:
    """Return the metric of VECTORS."""
    encoder = LookupEncoder(VECTORS)
    return dev.score(encoder.encode_queries(dev.queries), encoder.encode_documents(dev.texts))


@pytest.mark.parametrize(
    ("metric", "value"), [("hit@1", 0.5), ("MRR@10", 0.75), ("MAP", 0.75), ("R@1", 0.5)]
)
def test_documents_are_ranked_by_their_best_passage(metric: str, value: float):
    """x is nearest to a2, so document 0 is first; y is nearest to b, and its document 2 second."""
    dev = DevEvaluator(PASSAGES, QUERIES, metric, seed=0, max_queries=10)

    assert score_with_lookup(dev) == pytest.approx(value)


def test_all_passages_are_searched_by_default():
    dev = DevEvaluator(PASSAGES, QUERIES, "hit@1", seed=0, max_queries=10)

    assert dev.rows.tolist() == [0, 1, 2, 3]


def test_passage_sample_keeps_the_relevant_passages():
    passages = Passages([str(i) for i in range(100)], np.arange(100) // 2)
    queries = [("q", {7: 1}), ("r", {20: 2, 21: 1})]

    for seed in range(5):
        dev = DevEvaluator(passages, queries, "hit@1", seed=seed, max_queries=10, max_passages=30)
        assert len(dev.rows) == 30
        assert {14, 15, 40, 41, 42, 43} <= set(dev.rows.tolist())


def make_sampling_evaluator(seed: int, **options) -> DevEvaluator:
    """Make an evaluator that samples seven of 50 queries; query `q7` asks for document 7."""
    queries = [(f"q{i}", {i: 1}) for i in range(50)]
    passages = Passages(["text"] * 50, np.arange(50))
    return DevEvaluator(passages, queries, "hit@1", seed=seed, max_queries=7, **options)


def test_query_sample_depends_on_the_seed_only():
    queries = make_sampling_evaluator(seed=0).queries

    assert len(set(queries)) == 7
    assert make_sampling_evaluator(seed=0).queries == queries
    assert make_sampling_evaluator(seed=1).queries != queries


def test_query_sample_keeps_its_judgements():
    dev = make_sampling_evaluator(seed=0)

    for row, query in enumerate(dev.queries):
        document = query.removeprefix("q")
        assert dev.qrels[str(row)] == {document: 1}


def test_groups_of_training_documents_are_scored_separately():
    """x finds its document first, y second: training asks for the document of y only."""
    dev = DevEvaluator(PASSAGES, QUERIES, "MRR@10", seed=0, max_queries=10, with_known=[1])

    mean = score_with_lookup(dev)

    assert mean == pytest.approx(0.75)
    assert dev.groups == {
        "with_known": {"queries": 1, "MRR@10": 0.5},
        "without_known": {"queries": 1, "MRR@10": 1.0},
    }


def test_groups_follow_the_query_sample():
    dev = make_sampling_evaluator(seed=0, with_known=range(0, 50, 2))
    rankings = []
    for query in dev.queries:
        document = query.removeprefix("q")
        is_asked = int(document) % 2 == 0
        ranking = [(document, 1.0)] if is_asked else []
        rankings.append(ranking)

    dev.mean(rankings)

    assert dev.groups["with_known"]["hit@1"] == 1.0
    assert dev.groups["without_known"]["hit@1"] == 0.0
    assert dev.groups["with_known"]["queries"] < 7
