"""Guards the syntax of queries, and that ordinary text is never taken for it."""

from __future__ import annotations

import pytest

from model_code.text.query_syntax import (
    ConditionMatcher,
    ParsedQuery,
    TextCondition,
    parse_query,
)


@pytest.mark.parametrize(
    "text",
    [
        'a 7" tablet and a 9" one',
        'the "unclosed quote',
        'print("hello") in python',
        "self-service e-mail",
        "shopping list - milk - eggs",
        "temperature of -40 degrees",
        "-5",
        "-verbose",
        '-"only excluded"',
        "-title:only",
        '"???"',
        '"" - --',
        "title: the great escape",
        "subtitle:word",
        "rsync -a --delete",
        "cp -r source target -verbose",
        "first\n-second\n-third",
        "a — b – c",
        "gcc -O2 -std=c99",
        "see https://example.org/-/raw?title:x",
        "-",
        "???",
    ],
)
def test_ordinary_text_stays_text(text: str) -> None:
    assert parse_query(text) == ParsedQuery(text)


@pytest.mark.parametrize(
    ("typed", "text", "conditions"),
    [
        ('a "lock gate" opens', "a lock gate opens", [TextCondition("lock gate")]),
        ("“lock gate”, please", "lock gate, please", [TextCondition("lock gate")]),
        (
            "jaguar -car",
            "jaguar",
            [TextCondition("car", is_excluded=True, is_exact=False, literal="-car")],
        ),
        ('-"used car" jaguar', "jaguar", [TextCondition("used car", is_excluded=True)]),
        ("»lock gate«", "lock gate", [TextCondition("lock gate")]),
        ("「夜明け」", "夜明け", [TextCondition("夜明け")]),
        ("＂lock gate＂", "lock gate", [TextCondition("lock gate")]),
        ('("lock gate")', "(lock gate)", [TextCondition("lock gate")]),
        ('\ufeff"lock gate"', "\ufefflock gate", [TextCondition("lock gate")]),
        (
            "猫 －犬",
            "猫",
            [TextCondition("犬", is_excluded=True, is_exact=False, literal="-犬")],
        ),
        (
            "猫 -犬",
            "猫",
            [TextCondition("犬", is_excluded=True, is_exact=False, literal="-犬")],
        ),
        (
            "नदी -हिन्दी",
            "नदी",
            [TextCondition("हिन्दी", is_excluded=True, is_exact=False, literal="-हिन्दी")],
        ),
        (
            "Title:Weir flow",
            "Weir flow",
            [TextCondition("Weir", in_title=True, is_exact=False)],
        ),
        ('title:"Old Weir"', "Old Weir", [TextCondition("Old Weir", in_title=True)]),
        (
            "flow -title:weir",
            "flow",
            [TextCondition("weir", is_excluded=True, in_title=True, is_exact=False)],
        ),
    ],
)
def test_syntax_is_separated_from_the_text(
    typed: str, text: str, conditions: list[TextCondition]
) -> None:
    assert parse_query(typed) == ParsedQuery(text, tuple(conditions))


@pytest.mark.parametrize(
    ("phrase", "text", "is_met"),
    [
        ("leap year", "Every leap-year has 366 days.", True),
        ("leap year", "Leap\nyear", True),
        ("leap year", "a leap in a year", False),
        ("leap year", "leap years", False),
        ("leap year", "leap\u00ad year", True),
        ("grosse strasse", "Große Straße", True),
        ("C compiler", "the C++ compiler", False),
        ("C++ compiler", "the C++ compiler", True),
        ("net core", "the .NET Core runtime", True),
        ("列表排序", "把列表排序一下", True),
        ("列表排序", "列表的排序", False),
        ("5 €", "it costs 5 €.", True),
        ("5 €", "it costs 15 €.", False),
    ],
)
def test_phrase_is_met_word_for_word(phrase: str, text: str, is_met: bool) -> None:
    matcher = ConditionMatcher(TextCondition(phrase), "auto")

    assert matcher.meets("", text) is is_met


def test_phrase_is_found_in_the_title_but_not_across_title_and_text() -> None:
    matcher = ConditionMatcher(TextCondition("old weir"), "auto")

    assert matcher.meets("The old weir", "A text.")
    assert not matcher.meets("The old", "weir of the town")


def test_excluded_word_counts_in_all_its_forms() -> None:
    condition = TextCondition("boat", is_excluded=True, is_exact=False, literal="-boat")
    matcher = ConditionMatcher(condition, "auto")

    assert not matcher.meets("", "Boats in the harbour")
    assert not matcher.meets("A boat", "")
    assert matcher.meets("", "A steamboat")


def test_word_that_documents_contain_with_its_dash_is_text() -> None:
    (condition,) = parse_query("find -name").conditions
    matcher = ConditionMatcher(condition, "auto")

    assert matcher.contains_literal("find . -name pattern")
    assert not matcher.contains_literal("a file-name")
    assert not matcher.contains_literal("-names")
    assert parse_query("find -name", {"-name"}) == ParsedQuery("find -name")


def test_title_condition_ignores_the_text() -> None:
    matcher = ConditionMatcher(TextCondition("river", in_title=True, is_exact=False), "auto")

    assert matcher.meets("Rivers of the north", "")
    assert not matcher.meets("Lakes", "a river")
