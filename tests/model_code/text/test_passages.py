"""Test passages: they cover every word, keep their length, and overlap by the settings."""

from __future__ import annotations

from typing import get_args

import pytest

from model_code.text.documents import Document
from model_code.text.passages import Cut, cut_passages, passage_rows, passage_spans
from model_code.text.settings import PassageSettings


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 8, 9, 10, 23])
@pytest.mark.parametrize(("words", "stride"), [(1, 1), (4, 4), (5, 3), (6, 1), (7, 6)])
def test_windows_cover_all_words_without_excess(length, words, stride):
    text_words = [f"w{i}" for i in range(length)]

    windows = [window.split() for window in cut_passages(" ".join(text_words), words, stride)]

    assert set().union(*windows) == set(text_words)
    assert all(len(window) <= words for window in windows)
    assert [window[0] for window in windows] == [f"w{stride * i}" for i in range(len(windows))]
    # The last window is needed for the last word.
    if len(windows) > 1:
        assert text_words[-1] not in windows[-2]


@pytest.mark.parametrize("text", ["one  two\nthree", ""])
@pytest.mark.parametrize(("words", "stride"), [(3, 1), (0, 1)])
def test_short_documents_are_not_cut(text, words, stride):
    assert cut_passages(text, words, stride) == [text]


def test_passage_rows_have_numbers_and_titles():
    documents = [Document("a", "A", "one two three"), Document("b", "B", "one")]

    rows = passage_rows(documents, PassageSettings(words=2, stride=1))

    assert [row["document_id"] for row in rows] == ["a", "a", "b"]
    assert [row["ordinal"] for row in rows] == [0, 1, 0]
    assert [row["title"] for row in rows] == ["A", "A", "B"]
    assert [row["text"] for row in rows] == ["one two", "two three", "one"]


TEXT = "One two three.\n\n# A\n\nfour five six\nseven eight\n\n## B\n\nnine ten eleven"

# Headings of `TEXT`. They are prefixes of passages, and no parts of spans.
WORDS_OUTSIDE_SPANS = {
    "lines": ["One", "two", "three."],
    "sections": ["#", "A", "##", "B"],
    "words": [],
}


@pytest.mark.parametrize("cut", get_args(Cut))
def test_passage_is_prefix_and_text_slice(cut):
    spans = passage_spans(TEXT, 2, 2, cut)

    assert spans
    for span in spans:
        assert span.read(TEXT) == span.prefix + TEXT[span.start : span.end]


@pytest.mark.parametrize("cut", get_args(Cut))
def test_spans_and_headings_cover_the_text(cut):
    spans = passage_spans(TEXT, 2, 2, cut)

    span_words = " ".join(TEXT[span.start : span.end] for span in spans).split()
    assert sorted(span_words + WORDS_OUTSIDE_SPANS[cut]) == sorted(TEXT.split())


def test_prose_counts_one_word_per_word():
    assert len(cut_passages("plain words of prose that are short", 7, 7)) == 1


def test_addresses_count_as_many_words():
    """If they counted as one word, half of the passages of documentation would be too long."""
    address = "https://example.org/a/long/path"

    assert len(cut_passages(f"{address} and {address}", 7, 7)) == 3


def test_long_words_are_cut():
    line = "=" * 1_000

    passages = cut_passages(line, 60, 60)

    assert max(len(passage) for passage in passages) == 80
    assert "".join(passages) == line
