"""Tests of plain text from markup."""

from __future__ import annotations

import pytest

from model_code.text.markup import strip_markup


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Oak trees They *bear* acorns.", "Oak trees They bear acorns."),
        ("- one item", "one item"),
        ("> quoted", "quoted"),
        ("![a tree](tree.png) in [the wood][1]", "a tree in the wood"),
        ("| name | age | |------|-----| | Ann | 7 |", "name age Ann 7"),
        ("```python print(1) ```", "print(1)"),
        ("Title ===== Text", "Title Text"),
        ("See :class:`~a.B` and `the site <https://example.org>`_.", "See a.B and the site."),
        ("``x`` is <em>set</em><br/>to &quot;1&quot;", 'x is set to "1"'),
        ("shown <!-- hidden --> again", "shown again"),
        ("It is <b>bold</b>.", "It is bold."),
        (".. note:: Call it as follows:: sort(x)", "note: Call it as follows: sort(x)"),
        ("b`` is solved for ``x", "b is solved for x"),
    ],
)
def test_markup_is_removed(text: str, expected: str) -> None:
    assert strip_markup(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "f(*args, **kwargs) returns a * b",
        "snake_case_name and __init__.py",
        "a < b and b > c, or x <n> times",
        "a - b = c; 3 > 2",
        "one [optional] argument",
        "the tag <ul> starts a list",
        "std::vector, x :: Int and a[1::2]",
        "two words ` between blanks",
    ],
)
def test_plain_text_stays(text: str) -> None:
    assert strip_markup(text) == text


def test_tag_in_code_stays() -> None:
    assert strip_markup("`<b>` and `</b>` make text bold") == "<b> and </b> make text bold"


def test_tag_is_markup_if_the_source_closes_it() -> None:
    source = "<p>The first sentence. The last one.</p>"

    assert strip_markup("<p>The first sentence.", source) == "The first sentence."
