"""Guards how the answers that a corpus names reach the training pairs, and that a cloze can be cut out of its text."""

from __future__ import annotations

import pytest

from model_code.corpus.tables import Corpus, frame
from model_code.training.settings import TrainingSettings
from model_code.training.tables import TrainingTables
from tests.model_code.training.example import held

NAMED = {"q1": '["x"]', "q2": '["y", "z"]', "q3": None, "q4": '["w"]'}
TEXTS = {"q1": "when", "q2": "when", "q3": "who", "q4": "why"}


def make_tables() -> TrainingTables:
    """Documents d1 to d4, each with one query; two queries ask the same, and q4 is of the test split."""
    split = {query: "test" if query == "q4" else "train" for query in TEXTS}
    documents = [
        {"document_id": f"d{i}", "title": "", "text": "x", "fields": "{}", "content_hash": ""} for i in range(1, 5)
    ]
    passages = [
        {"document_id": f"d{i}", "ordinal": 0, "title": "", "text": f"{i} {'xyzw'[i - 1]}"} for i in range(1, 5)
    ]
    queries = [{"query_id": q, "text": t, "split": split[q], "answers": NAMED[q]} for q, t in TEXTS.items()]
    qrels = [{"query_id": q, "document_id": f"d{q[1]}", "relevance": 1, "split": split[q]} for q in TEXTS]
    corpus = Corpus(*map(frame, ("documents", "passages", "queries", "qrels"), (documents, passages, queries, qrels)))
    pseudo = [{"query_id": "p", "document_id": "d4", "text": "4 w", "kind": "cloze"}]
    return TrainingTables(corpus, frame("pseudo_queries", pseudo), include_title=True)


@pytest.mark.parametrize(
    ("supervision", "answers"), [("joint", {"when": ["x", "y", "z"]}), ("unsupervised", {})]
)  # fmt: skip
def test_training_queries_keep_their_answers_and_those_of_equal_text_share_them(supervision, answers):
    data = make_tables().training_data(TrainingSettings(supervision=supervision))
    assert dict(data.pairs.answers) == answers
    if answers:
        assert held(data.answers, ["when", "who", "4 w"], range(4)) == [
            [True, True, True, False],
            [False] * 4,
            [False] * 4,
        ]
