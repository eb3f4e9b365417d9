"""Guards which passages hold an answer, against SQuAD's own normalisation and a search word by word, and that no other
passages are read than those asked about.
"""

from __future__ import annotations

import random
import re
import string

import numpy as np
import pytest

from model_code.training import answers as module
from model_code.training.answers import Answers, normalised

PIECES = ["the", "The", "a", "an", "An", "moss", "Moss", "fern", "fern's", "69,197", "69197", "U.S.", "us", "(in)",
          "in", "-", "...", "theory", "than", "Ana", "café", "1996–2001", "–", "the.", "\n", "$"]  # fmt: skip


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
    return "".join(draw.choice(PIECES) + draw.choice([" ", "  ", " ", ""]) for _ in range(draw.randrange(most)))


@pytest.mark.parametrize("seed", range(5))
def test_passages_hold_what_a_search_word_by_word_finds(seed: int):
    draw = random.Random(seed)
    texts = [draw_text(draw, 12) for _ in range(40)]
    named = {f"query {i}": [draw_text(draw, 4) for _ in range(draw.randrange(4))] for i in range(30)}
    queries = [*named, "a query that names none"]
    expected = [[any(holds(text, one) for one in named.get(query, [])) for text in texts] for query in queries]
    assert 0.05 < np.mean(expected) < 0.95
    assert Answers(texts, named).held(queries, np.arange(40)).tolist() == expected


def test_texts_are_normalised_as_squad_does():
    draw = random.Random(9)
    for text in (draw_text(draw, 20) for _ in range(200)):
        assert normalised(text) == squad_normalised(text)


def test_an_answer_without_a_word_is_in_no_passage():
    answers = Answers(["the a $"], {"article": ["the", "$"], "none": []})
    assert [answers.of(query) for query in ("article", "none", "unknown")] == [None, None, None]


def test_only_the_passages_asked_about_are_read_and_each_once(monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    monkeypatch.setattr(module, "normalised", lambda text: read.append(text) or text)
    answers = Answers([f"text {i}" for i in range(1000)], {"one": ["text 3"], "two": ["text 5"]})
    assert answers.held(["one", "two"], np.array([5, 3, 7])).tolist() == [[False, True, False], [True, False, False]]
    assert sorted(read) == ["text 3", "text 3", "text 5", "text 5", "text 7"]  # two of them as answers
