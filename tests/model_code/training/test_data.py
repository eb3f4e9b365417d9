"""Tests of training pairs and of the passages that hold an answer.

Judgements become one pair per relevant document, with its best passage and all that is known
relevant. The passages with an answer are compared with SQuAD's own normalisation and a search word
by word.
"""

from __future__ import annotations

import random
import re
import string
from dataclasses import replace

import numpy as np
import pytest

from model_code.training import data as data_module
from model_code.training.data import Answers, Passages, TrainingData, make_pairs, squad_form
from tests.model_code.training.example import answer_matrix

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


@pytest.fixture
def passages() -> Passages:
    """Four passages of three documents. The two of document 0 are not neighbours."""
    texts = ["alpha beta", "gamma delta", "gamma gamma beta", "delta"]
    return Passages(texts, np.array([0, 1, 0, 2]))


def test_passages_of_a_document_need_not_be_neighbours(passages: Passages):
    assert passages.of(0).tolist() == [0, 2]
    assert passages.of(1).tolist() == [1]
    assert passages.of(2).tolist() == [3]


@pytest.mark.parametrize(
    ("query", "passage"), [("Gamma, beta!", 2), ("beta", 0), ("nothing in common", 0)]
)
def test_pair_takes_the_passage_sharing_most_words(passages: Passages, query: str, passage: int):
    assert passages.best(0, query) == passage


def test_every_relevant_document_makes_a_pair(passages: Passages):
    pairs = make_pairs(passages, [("beta gamma", [0, 2]), ("delta", [1])])

    assert list(pairs.queries) == ["beta gamma", "beta gamma", "delta"]
    assert pairs.passages.tolist() == [2, 3, 1]
    assert list(pairs.relevant) == [frozenset({0, 2}), frozenset({0, 2}), frozenset({1})]


def test_no_judgements_make_no_pairs(passages: Passages):
    pairs = make_pairs(passages, [])

    assert len(pairs) == 0
    assert pairs.passages.dtype == np.int64


def test_equal_queries_share_their_relevant_documents(passages: Passages):
    supervised = make_pairs(passages, [("delta", [1])])
    unsupervised = make_pairs(passages, [("delta", [2]), ("beta", [0])])

    data = TrainingData(passages, supervised, unsupervised)

    assert list(data.pairs.relevant) == [frozenset({1, 2}), frozenset({1, 2}), frozenset({0})]
    assert data.pairs.passages.tolist() == [1, 3, 0]


def test_answers_of_judged_queries_are_found(passages: Passages):
    judged = make_pairs(passages, [("delta", [1]), ("beta", [0])])
    supervised = replace(judged, answers={"delta": ["Gamma, gamma"]})
    unsupervised = make_pairs(passages, [("gamma", [1])])

    data = TrainingData(passages, supervised, unsupervised)

    assert list(data.pairs.queries) == ["delta", "beta", "gamma"]
    assert answer_matrix(data.answers, data.pairs.queries, range(4)) == [
        [False, False, True, False],
        [False, False, False, False],
        [False, False, False, False],
    ]


def normalize_like_squad(text: str) -> str:
    """Follow `normalize_answer` of SQuAD's evaluate-v1.1.py, step by step."""
    punctuation = set(string.punctuation)
    without_punctuation = "".join(letter for letter in text.lower() if letter not in punctuation)
    without_articles = re.sub(r"\b(a|an|the)\b", " ", without_punctuation)
    return " ".join(without_articles.split())


def contains_words(text: str, answer: str) -> bool:
    """Return whether the answer's words follow one another somewhere in the text."""
    words = normalize_like_squad(text).split()
    answer_words = normalize_like_squad(answer).split()
    if not answer_words:
        return False

    last_start = len(words) - len(answer_words)
    for start in range(last_start + 1):
        if words[start : start + len(answer_words)] == answer_words:
            return True
    return False


def draw_text(draw: random.Random, max_pieces: int) -> str:
    """Join fewer than `max_pieces` random pieces by random spaces."""
    pieces = []
    for _ in range(draw.randrange(max_pieces)):
        pieces.append(draw.choice(PIECES))
        pieces.append(draw.choice([" ", "  ", " ", ""]))
    return "".join(pieces)


@pytest.mark.parametrize("seed", range(5))
def test_answers_are_found_as_by_word_search(seed: int):
    draw = random.Random(seed)
    texts = [draw_text(draw, 12) for _ in range(40)]
    answers: dict[str, list[str]] = {}
    for number in range(30):
        answers[f"query {number}"] = [draw_text(draw, 4) for _ in range(draw.randrange(4))]
    queries = [*answers, "a query without answers"]

    expected = []
    for query in queries:
        row = []
        for text in texts:
            row.append(any(contains_words(text, answer) for answer in answers.get(query, [])))
        expected.append(row)

    assert 0.05 < np.mean(expected) < 0.95
    assert answer_matrix(Answers(texts, answers), queries, range(40)) == expected


def test_texts_are_normalised_as_squad_does():
    draw = random.Random(9)
    texts = [draw_text(draw, 20) for _ in range(200)]

    for text in texts:
        assert squad_form(text) == normalize_like_squad(text)


@pytest.mark.parametrize("query", ["article", "none", "unknown"])
def test_answer_without_a_word_is_in_no_passage(query: str):
    answers = Answers(["the a $"], {"article": ["the", "$"], "none": []})

    assert answers.of(query) is None


def test_each_passage_is_normalised_once(monkeypatch: pytest.MonkeyPatch):
    normalised: list[str] = []

    def record_text(text: str) -> str:
        normalised.append(text)
        return text

    monkeypatch.setattr(data_module, "squad_form", record_text)
    texts = [f"text {i}" for i in range(1000)]
    answers = Answers(texts, {"one": ["text 3"], "two": ["text 5"]})
    found = answer_matrix(answers, ["one", "two"], [5, 3, 7])

    assert found == [[False, True, False], [True, False, False]]
    # Two of the five texts are the answers.
    assert sorted(normalised) == ["text 3", "text 3", "text 5", "text 5", "text 7"]
