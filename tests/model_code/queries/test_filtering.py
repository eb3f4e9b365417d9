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
        # Only whole words count: "the cat" does not contain "he cat".
        ("d3", "he cat", None),
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


def reason_by_loop(
    number: int, queries: list[PseudoQuery], documents: dict[str, str]
) -> str | None:
    """Return why a query is dropped: another document holds its text, or it came before."""
    query = queries[number]
    phrase = f" {normalize_phrase(query.text)} "
    fitting = {query.document_id}
    for document, text in documents.items():
        if phrase in f" {text} ":
            fitting.add(document)
    if len(fitting) > 1:
        return AMBIGUOUS
    for earlier in queries[:number]:
        if earlier.document_id == query.document_id and earlier.text == query.text:
            return REPEATED
    return None


def test_reasons_equal_a_double_loop_on_random_texts():
    chance = random.Random(5)
    documents = {f"d{i}": " ".join(chance.choices("abcdefg", k=12)) for i in range(40)}
    queries = []
    for document, text in documents.items():
        for start in (0, 4, 8, 16):
            queries.append(PseudoQuery(document, text[start : start + 8], "k"))

    reasons = reasons_to_drop(queries, documents)

    expected = [reason_by_loop(number, queries, documents) for number in range(len(queries))]
    assert reasons == expected
    assert set(reasons) == {AMBIGUOUS, None}


def test_normalising_keeps_letters_of_any_script():
    assert normalize_phrase("Größe_x = ΔT; 東京") == "grösse_x δt 東 京"
