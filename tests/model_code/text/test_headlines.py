"""Tests of headlines: readable titles with first sentences."""

from __future__ import annotations

import pytest

from model_code.text import headlines
from model_code.text.headlines import MAX_HEADLINE_WORDS, make_headline, readable_title
from model_code.text.words import split_first_sentence


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("pandas.DataFrame.to_csv", "pandas DataFrame to csv"),
        ("notes/oak-tree.md", "notes oak tree md"),
        ("std::vector", "std vector"),
        ("__init__", "init"),
        ("Release 1.5 of 2024-01-02", "Release 1.5 of 2024-01-02"),
        ("Wie geht es?", "Wie geht es?"),
        ("", ""),
    ],
)
def test_identifiers_become_words(title: str, expected: str) -> None:
    assert readable_title(title) == expected


@pytest.mark.parametrize(
    ("title", "text", "expected"),
    [
        ("Oak", "An oak bears acorns. It is old.", "Oak. An oak bears acorns."),
        ("Oak", "***\n\n> A quotation.", "Oak. A quotation."),
        ("", "## Oak trees\n\nThey grow.", "Oak trees"),
        ("Oak", "", "Oak"),
        ("Oak", " \n--- \n", "Oak"),
        ("", "", ""),
        ("排序", "排序一个列表。然后", "排序. 排序一个列表。"),
    ],
)
def test_headline_has_the_first_sentence(title: str, text: str, expected: str) -> None:
    assert make_headline(title, text) == expected


def test_long_first_sentence_is_cut() -> None:
    headline = make_headline("Oak", "acorn " * 1000)

    assert len(headline.split()) == MAX_HEADLINE_WORDS + 1


def test_lines_without_words_are_skipped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, each such line would copy the rest of the text."""
    calls = []

    def split(text: str) -> tuple[str, str]:
        calls.append(text)
        return split_first_sentence(text)

    monkeypatch.setattr(headlines, "split_first_sentence", split)

    assert make_headline("", "----\n" * 50 + "# Oak trees. Tall ones.") == "Oak trees."
    assert len(calls) == 1
