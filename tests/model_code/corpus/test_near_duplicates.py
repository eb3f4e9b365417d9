"""Guards the search for near-duplicates, against a double loop."""

from __future__ import annotations

import random

import pytest

from model_code.corpus.near_duplicates import near_duplicates


def slow_near_duplicates(texts: dict[str, str], threshold: float) -> dict[str, set[str]]:
    word_sets = {document: set(text.split()) for document, text in texts.items()}
    found: dict[str, set[str]] = {}
    for one, first in word_sets.items():
        for other, second in word_sets.items():
            if one != other and len(first & second) > threshold * len(first | second):
                found.setdefault(one, set()).add(other)
    return found


@pytest.mark.parametrize("threshold", [0.5, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_near_duplicates_are_those_of_a_double_loop(seed, threshold):
    draw = random.Random(seed)
    originals = [draw.sample([f"w{i}" for i in range(60)], draw.randint(5, 30)) for _ in range(20)]
    texts = {}
    for i in range(120):
        words = list(draw.choice(originals))
        for _ in range(draw.randint(0, 3)):
            words[draw.randrange(len(words))] = f"x{draw.randrange(40)}"
        texts[f"d{i}"] = " ".join(words)

    found = near_duplicates(texts, list(texts), threshold)

    assert found == slow_near_duplicates(texts, threshold)
    assert found


def test_near_duplicates_ignore_case_and_order():
    texts = {"a": "Sort a LIST of numbers", "b": "numbers of a list, sort", "c": "open a file"}

    assert near_duplicates(texts, ["a", "c"]) == {"a": {"b"}}


def test_empty_texts_are_no_near_duplicates():
    assert near_duplicates({"a": "", "b": "", "c": "."}, ["a", "b", "c"]) == {}
