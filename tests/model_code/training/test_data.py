"""Guards how judgements become pairs: one per relevant document, its best passage, and all that is
known relevant; and which passages hold an answer, against SQuAD's own normalisation and a search
word by word.
"""

from __future__ import annotations

import random
import re
import string
from dataclasses import replace

import numpy as np
import pytest

from model_code.training import data as module
from model_code.training.data import Answers, Passages, TrainingData, make_pairs, squad_form
from tests.model_code.training.example import held

PIECES = [
    "the",
    "The",
    "a",
    "an",
    "An",
    "moss",
    "Moss",
    "fern",
    "fern's",
    "69,197",
    "69197",
    "U.S.",
    "us",
    "(in)",
    "in",
    "-",
    "...",
    "theory",
    "than",
    "Ana",
    "café",
    "1996–2001",
    "–",
    "the.",
    "\n",
    "$",
]


def long_documents() -> Passages:
    return Passages(
        ["alpha beta", "gamma delta", "gamma gamma beta", "delta"], np.array([0, 1, 0, 2])
    )


def test_pair_takes_the_passage_sharing_most_words():
    passages = long_documents()
    assert [passages.of(document).tolist() for document in range(3)] == [[0, 2], [1], [3]], (
        "need not be neighbours"
    )
    assert passages.best(0, "Gamma, beta!") == 2
    assert passages.best(0, "beta") == 0
    assert passages.best(0, "nothing in common") == 0


def test_every_relevant_document_makes_a_pair():
    pairs = make_pairs(long_documents(), [("beta gamma", [0, 2]), ("delta", [1])])
    assert list(pairs.queries) == ["beta gamma", "beta gamma", "delta"]
    assert pairs.passages.tolist() == [2, 3, 1]
    assert list(pairs.relevant) == [frozenset({0, 2}), frozenset({0, 2}), frozenset({1})]
    none = make_pairs(long_documents(), [])
    assert len(none) == 0
    assert none.passages.dtype == np.int64


def test_equal_queries_share_their_relevant_documents():
    passages = long_documents()
    supervised = make_pairs(passages, [("delta", [1])])
    data = TrainingData(passages, supervised, make_pairs(passages, [("delta", [2]), ("beta", [0])]))
    assert list(data.pairs.relevant) == [frozenset({1, 2}), frozenset({1, 2}), frozenset({0})]
    assert data.pairs.passages.tolist() == [1, 3, 0]


def test_answers_of_judged_queries_are_looked_for():
    passages = long_documents()
    supervised = replace(
        make_pairs(passages, [("delta", [1]), ("beta", [0])]), answers={"delta": ["Gamma, gamma"]}
    )
    data = TrainingData(passages, supervised, make_pairs(passages, [("gamma", [1])]))
    assert held(data.answers, data.pairs.queries, range(4)) == [
        [False, False, True, False],
        [False] * 4,
        [False] * 4,
    ]


def squad_normalised(text: str) -> str:
    """`normalize_answer` of SQuAD's evaluate-v1.1.py, step by step."""
    text = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def holds(text: str, answer: str) -> bool:
    """Word by word, whether the answer's words follow one another somewhere in the text."""
    words, wanted = squad_normalised(text).split(), squad_normalised(answer).split()
    starts = range(len(words) - len(wanted) + 1)
    return bool(wanted) and any(words[start : start + len(wanted)] == wanted for start in starts)


def draw_text(draw: random.Random, most: int) -> str:
    return "".join(
        draw.choice(PIECES) + draw.choice([" ", "  ", " ", ""]) for _ in range(draw.randrange(most))
    )


@pytest.mark.parametrize("seed", range(5))
def test_answers_are_found_as_by_word_search(seed: int):
    draw = random.Random(seed)
    texts = [draw_text(draw, 12) for _ in range(40)]
    named = {
        f"query {i}": [draw_text(draw, 4) for _ in range(draw.randrange(4))] for i in range(30)
    }
    queries = [*named, "a query that names none"]
    expected = [
        [any(holds(text, one) for one in named.get(query, [])) for text in texts]
        for query in queries
    ]
    assert 0.05 < np.mean(expected) < 0.95
    assert held(Answers(texts, named), queries, range(40)) == expected


def test_texts_are_normalised_as_squad_does():
    draw = random.Random(9)
    for text in (draw_text(draw, 20) for _ in range(200)):
        assert squad_form(text) == squad_normalised(text)


def test_answer_without_a_word_is_in_no_passage():
    answers = Answers(["the a $"], {"article": ["the", "$"], "none": []})
    assert [answers.of(query) for query in ("article", "none", "unknown")] == [None, None, None]


def test_each_passage_is_normalised_once(monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    monkeypatch.setattr(module, "squad_form", lambda text: read.append(text) or text)
    answers = Answers([f"text {i}" for i in range(1000)], {"one": ["text 3"], "two": ["text 5"]})
    assert held(answers, ["one", "two"], [5, 3, 7]) == [[False, True, False], [True, False, False]]
    # two of them as answers
    assert sorted(read) == ["text 3", "text 3", "text 5", "text 5", "text 7"]
