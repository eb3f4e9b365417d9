"""Guards how the answers that a corpus names reach the training pairs; and the dev metric:
documents ranked by their best passage, all passages or a sample with all relevant ones.
"""

from __future__ import annotations

import numpy as np
import pytest

from model_code.corpus.tables import Corpus, make_table
from model_code.training.data import Passages
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator, TrainingTables
from tests.model_code.training.example import held

NAMED = {"q1": '["x"]', "q2": '["y", "z"]', "q3": None, "q4": '["w"]'}
TEXTS = {"q1": "when", "q2": "when", "q3": "who", "q4": "why"}


def make_tables() -> TrainingTables:
    """Documents d1 to d4, each with one query; two queries ask the same, and q4 is of the test
    split.
    """
    split = {query: "test" if query == "q4" else "train" for query in TEXTS}
    documents = [
        {"document_id": f"d{i}", "title": "", "text": "x", "fields": "{}", "content_hash": ""}
        for i in range(1, 5)
    ]
    passages = [
        {"document_id": f"d{i}", "ordinal": 0, "title": "", "text": f"{i} {'xyzw'[i - 1]}"}
        for i in range(1, 5)
    ]
    queries = [
        {"query_id": q, "text": t, "split": split[q], "answers": NAMED[q]} for q, t in TEXTS.items()
    ]
    qrels = [
        {"query_id": q, "document_id": f"d{q[1]}", "relevance": 1, "split": split[q]} for q in TEXTS
    ]
    corpus = Corpus(
        *map(
            make_table,
            ("documents", "passages", "queries", "qrels"),
            (documents, passages, queries, qrels),
        )
    )
    pseudo = [{"query_id": "p", "document_id": "d4", "text": "4 w", "kind": "cloze"}]
    return TrainingTables(corpus, make_table("pseudo_queries", pseudo), include_title=True)


@pytest.mark.parametrize(
    ("supervision", "answers"), [("joint", {"when": ["x", "y", "z"]}), ("unsupervised", {})]
)
def test_queries_of_equal_text_share_answers(supervision, answers):
    data = make_tables().training_data(TrainingSettings(supervision=supervision))
    assert dict(data.pairs.answers) == answers
    if answers:
        found = held(data.answers, ["when", "who", "4 w"], range(4))
        assert found == [[True, True, True, False], [False] * 4, [False] * 4]


class Lookup:
    """An encoder that knows its texts' vectors."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors, self.encoded = vectors, []

    def encode(self, texts, progress=None):
        self.encoded += list(texts)
        return np.array([self.vectors[text] for text in texts], dtype=np.float32)

    encode_documents = encode


VECTORS = {
    "a1": [1, 0, 0],
    "a2": [0, 0, 1],
    "b": [0, 1, 0],
    "c": [0.6, 0.8, 0],
    "x": [0, 0.1, 0.9],
    "y": [0.1, 0.9, 0],
}
PASSAGES = Passages(["a1", "b", "a2", "c"], np.array([0, 1, 0, 2]))


@pytest.mark.parametrize(
    ("metric", "value"), [("hit@1", 0.5), ("MRR@10", 0.75), ("MAP", 0.75), ("R@1", 0.5)]
)
def test_documents_are_ranked_by_their_best_passage(metric: str, value: float):
    """x is nearest to a2, so document 0 is first; y is nearest to b, and its document 2 second."""
    dev = DevEvaluator(PASSAGES, [("x", {0: 1}), ("y", {2: 1})], metric, seed=0, max_queries=10)
    encoder = Lookup(VECTORS)
    assert dev.score(
        encoder.encode(dev.queries), encoder.encode_documents(dev.texts)
    ) == pytest.approx(value)
    assert dev.rows.tolist() == [0, 1, 2, 3], "all of them unless told otherwise"


def test_a_sample_of_passages_keeps_the_relevant_ones():
    passages = Passages([str(i) for i in range(100)], np.arange(100) // 2)
    queries = [("q", {7: 1}), ("r", {20: 2, 21: 1})]
    for seed in range(5):
        dev = DevEvaluator(passages, queries, "hit@1", seed=seed, max_queries=10, max_passages=30)
        assert len(dev.rows) == 30
        assert {14, 15, 40, 41, 42, 43} <= set(dev.rows.tolist())


def test_queries_are_a_fixed_sample():
    many = [(f"q{i}", {i: 1}) for i in range(50)]
    passages = Passages(["text"] * 50, np.arange(50))
    chosen = [
        DevEvaluator(passages, many, "hit@1", seed=seed, max_queries=7).queries
        for seed in (0, 0, 1)
    ]
    assert len(set(chosen[0])) == 7
    assert chosen[0] == chosen[1] != chosen[2]
    dev = DevEvaluator(passages, many, "hit@1", seed=0, max_queries=7)
    assert [dev.qrels[str(row)] for row in range(7)] == [{query[1:]: 1} for query in dev.queries]


def test_groups_of_training_documents_are_scored_apart():
    """x finds its document first, y second: training asks for the document of y only."""
    dev = DevEvaluator(
        PASSAGES,
        [("x", {0: 1}), ("y", {2: 1})],
        "MRR@10",
        seed=0,
        max_queries=10,
        asked_in_training=[1],
    )
    encoder = Lookup(VECTORS)

    mean = dev.score(encoder.encode(dev.queries), encoder.encode_documents(dev.texts))

    assert mean == pytest.approx(0.75)
    assert dev.groups == {
        "asked_in_training": {"queries": 1, "MRR@10": 0.5},
        "not_asked_in_training": {"queries": 1, "MRR@10": 1.0},
    }


def test_groups_follow_the_query_sample():
    passages = Passages(["text"] * 50, np.arange(50))
    queries = [(f"q{i}", {i: 1}) for i in range(50)]
    dev = DevEvaluator(
        passages, queries, "hit@1", seed=0, max_queries=7, asked_in_training=range(0, 50, 2)
    )

    dev.mean([[(query[1:], 1.0)] if int(query[1:]) % 2 == 0 else [] for query in dev.queries])

    assert dev.groups["asked_in_training"]["hit@1"] == 1.0
    assert dev.groups["not_asked_in_training"]["hit@1"] == 0.0
    assert dev.groups["asked_in_training"]["queries"] < 7
