"""Guards that passages cover every word, never exceed their length, and overlap as stated."""

from __future__ import annotations

import pytest

from model_code.corpus.passages import passage_rows, windows
from model_code.corpus.settings import PassageSettings
from model_code.documents import Document


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 8, 9, 10, 23])
@pytest.mark.parametrize(("words", "stride"), [(1, 1), (4, 4), (5, 3), (6, 1), (7, 6)])
def test_windows_cover_every_word_with_no_window_too_many(length, words, stride):
    text = [f"w{i}" for i in range(length)]
    found = [window.split() for window in windows(" ".join(text), words, stride)]
    assert {word for window in found for word in window} == set(text)
    assert all(len(window) <= words for window in found)
    assert [window[0] for window in found] == [f"w{stride * i}" for i in range(len(found))]
    if len(found) > 1:  # without the last window the last word would be missing
        assert text[-1] not in found[-2]


def test_a_short_document_stays_as_it_is_and_zero_words_never_cut():
    text = "one  two\nthree"
    assert windows(text, 3, 1) == windows(text, 0, 1) == [text]
    assert windows("", 3, 1) == windows("", 0, 1) == [""]


def test_rows_count_a_documents_passages_and_carry_its_title():
    documents = [Document("a", "A", "one two three"), Document("b", "B", "one")]
    rows = passage_rows(documents, PassageSettings(words=2, stride=1))
    assert [(row["document_id"], row["ordinal"], row["title"], row["text"]) for row in rows] == [
        ("a", 0, "A", "one two"), ("a", 1, "A", "two three"), ("b", 0, "B", "one")
    ]  # fmt: skip
