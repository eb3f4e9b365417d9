"""Guards the filters of pseudo-queries, against a double loop over queries and documents."""

from __future__ import annotations

import random

import pytest

from model_code.queries.pseudo_queries import (
    AMBIGUOUS,
    EMPTY,
    REPEATED,
    PseudoQuery,
    reasons_to_drop,
)
from model_code.text.phrases import normalize_phrase

TEXTS = {
    "d1": "The quick brown fox.",
    "d2": "A lazy dog: the QUICK brown bear",
    "d3": "the cat sat",
}


@pytest.mark.parametrize(
    ("document", "text", "reason"),
    [
        ("d1", "brown fox", None),
        ("d1", "--- !", EMPTY),
        ("d1", "Quick, brown", AMBIGUOUS),
        # a generated query that another document answers word for word
        ("d3", "lazy dog", AMBIGUOUS),
        ("d3", "quick fox", None),
        ("d3", "he cat", None),  # whole words only: "the cat" does not contain it
    ],
)
def test_reasons_by_example(document, text, reason):
    assert reasons_to_drop([PseudoQuery(document, text, "k")], TEXTS) == [reason]


@pytest.mark.parametrize(
    ("queries", "reasons"),
    [
        ([("d1", "which animal?"), ("d3", "Which animal")], [AMBIGUOUS, AMBIGUOUS]),
        ([("d1", "brown fox"), ("d1", "Brown fox!"), ("d1", "fox")], [None, REPEATED, None]),
    ],
)
def test_equal_queries_are_dropped(queries, reasons):
    assert reasons_to_drop([PseudoQuery(*query, "k") for query in queries], TEXTS) == reasons


def test_equals_a_double_loop_on_random_texts():
    chance = random.Random(5)
    documents = {f"d{i}": " ".join(chance.choices("abcdefg", k=12)) for i in range(40)}
    queries = [
        PseudoQuery(document, documents[document][start : start + 8], "k")
        for document in documents
        for start in (0, 4, 8, 16)
    ]
    slow = []
    for n, query in enumerate(queries):
        fitting = {query.document_id}
        for document, text in documents.items():
            if f" {normalize_phrase(query.text)} " in f" {text} ":
                fitting.add(document)
        again = any(
            (query.document_id, query.text) == (other.document_id, other.text)
            for other in queries[:n]
        )
        slow.append(AMBIGUOUS if len(fitting) > 1 else REPEATED if again else None)
    assert reasons_to_drop(queries, documents) == slow
    assert set(slow) == {AMBIGUOUS, None}


def test_normalising_keeps_letters_of_any_script():
    assert normalize_phrase("Größe_x = ΔT; 東京") == "grösse_x δt 東 京"
