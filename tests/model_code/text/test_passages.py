"""Guards that passages cover every word, never exceed their length, and overlap as stated."""

from __future__ import annotations

from typing import get_args

import pytest

from model_code.text.documents import Document
from model_code.text.passages import Cut, cut_passages, passage_rows, passage_spans
from model_code.text.settings import PassageSettings


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 8, 9, 10, 23])
@pytest.mark.parametrize(("words", "stride"), [(1, 1), (4, 4), (5, 3), (6, 1), (7, 6)])
def test_windows_cover_all_words_without_excess(length, words, stride):
    text = [f"w{i}" for i in range(length)]
    found = [window.split() for window in cut_passages(" ".join(text), words, stride)]
    assert {word for window in found for word in window} == set(text)
    assert all(len(window) <= words for window in found)
    assert [window[0] for window in found] == [f"w{stride * i}" for i in range(len(found))]
    if len(found) > 1:  # without the last window the last word would be missing
        assert text[-1] not in found[-2]


def test_short_documents_are_not_cut():
    text = "one  two\nthree"
    assert cut_passages(text, 3, 1) == cut_passages(text, 0, 1) == [text]
    assert cut_passages("", 3, 1) == cut_passages("", 0, 1) == [""]


def test_passage_rows_have_numbers_and_titles():
    documents = [Document("a", "A", "one two three"), Document("b", "B", "one")]
    rows = passage_rows(documents, PassageSettings(words=2, stride=1))
    assert [(row["document_id"], row["ordinal"], row["title"], row["text"]) for row in rows] == [
        ("a", 0, "A", "one two"),
        ("a", 1, "A", "two three"),
        ("b", 0, "B", "one"),
    ]


@pytest.mark.parametrize("by", get_args(Cut))
def test_passage_is_prefix_and_text_slice(by):
    text = "One two three.\n\n# A\n\nfour five six\nseven eight\n\n## B\n\nnine ten eleven"
    found = passage_spans(text, 2, 2, by)
    assert found
    assert all(place.read(text) == place.prefix + text[place.start : place.end] for place in found)
    read = " ".join(text[place.start : place.end] for place in found).split()
    headings = {"lines": ["One", "two", "three."], "sections": ["#", "A", "##", "B"], "words": []}[
        by
    ]
    assert sorted([*read, *headings]) == sorted(text.split())


def test_what_makes_many_tokens_counts_as_many_words():
    """Half of the passages of package documentation ran past 256 tokens where addresses and code
    counted as prose.
    """
    address = "https://example.org/a/long/path"
    assert len(cut_passages("plain words of prose that are short", 7, 7)) == 1
    assert len(cut_passages(f"{address} and {address}", 7, 7)) == 3
    assert max(map(len, cut_passages("=" * 1_000, 60, 60))) == 80
    assert "".join(cut_passages("=" * 1_000, 60, 60)) == "=" * 1_000
