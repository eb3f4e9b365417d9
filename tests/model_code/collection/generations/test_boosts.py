"""Guards boosts: what they add to scores, and which are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from model_code.collection.generations.boosts import (
    Boost,
    add_boosts,
    parse_boosts,
    require_boostable_fields,
)
from model_code.collection.segments.conditions import make_value
from model_code.collection.segments.field_index import FieldIndex
from model_code.collection.segments.filters import CollectionFields
from model_code.errors import FreshetError, SettingsError

NOW = datetime(2024, 7, 31, tzinfo=UTC)


def values(*documents: Any) -> list[list[Any]]:
    """Make the field values of documents with one value each, or None."""
    field_values = []
    for value in documents:
        field_values.append([] if value is None else [make_value(value)])
    return field_values


def test_date_halves_with_every_half_life() -> None:
    (boost,) = parse_boosts({"date": {"half_life": "10d"}})

    strengths = boost.strengths(
        values("2024-07-31", "2024-07-21", "2024-07-11T00:00:00Z", "2025-01-01", None, "soon"), NOW
    )

    assert strengths == [1.0, 0.5, 0.25, 1.0, 0.0, 0.0]


def test_month_and_year_count_from_their_start() -> None:
    (boost,) = parse_boosts({"date": {"half_life": "182d"}})

    assert boost.strengths(values("2024-01-31", "2024", 2024), NOW) == pytest.approx(
        [0.5, 0.446, 0.446], abs=0.001
    )


@pytest.mark.parametrize(
    ("boost", "message"),
    [
        ({"pages": {"half_life": "1y"}}, "half_life, which is for dates, but pages holds numbers"),
        (["day"], "day holds dates, and their boost needs a half_life"),
        (["name"], "name holds neither dates nor numbers"),
        (["name:30d"], "name holds neither dates nor numbers"),
    ],
)
def test_boost_without_effect_is_refused(boost: Any, message: str) -> None:
    index = FieldIndex.build([{"pages": 30, "day": "2024-05-01", "name": "Ann", "year": 2024}])
    fields = CollectionFields([(index, np.ones(1, bool))], ["empty"])

    with pytest.raises(FreshetError, match=message):
        require_boostable_fields(parse_boosts(boost), fields)

    require_boostable_fields(parse_boosts(["pages", "day:30d", "year", "year:1y", "empty"]), fields)


def test_number_saturates_at_the_pivot() -> None:
    (boost,) = parse_boosts({"downloads": {"pivot": 100}})

    strengths = boost.strengths(values(100, "300", 0, -5, None, 10**4000), NOW)

    assert strengths == [0.5, 0.75, 0.0, 0.0, 0.0, 0.0]


def test_median_is_the_default_pivot() -> None:
    (boost,) = parse_boosts({"downloads": {}})

    assert boost.strengths(values(1, 10, 90), NOW) == [1 / 11, 0.5, 0.9]
    assert boost.strengths(values(None, 0), NOW) == [0.0, 0.0]


def test_addition_is_a_share_of_the_spread() -> None:
    boost = Boost("date", weight=0.5, half_life_seconds=864_000)

    (additions,) = add_boosts([boost], [-1.0, -3.0], [values("2024-07-21", "2024-07-31")], NOW)

    assert additions == [0.5 * 2.0 * 0.5, 0.5 * 2.0 * 1.0]


def test_equal_scores_are_ordered_by_the_boost() -> None:
    boost = Boost("date", weight=0.5, half_life_seconds=864_000)

    (additions,) = add_boosts([boost], [2.0, 2.0], [values("2024-07-21", "2024-07-31")], NOW)

    assert additions == [0.25, 0.5]
    assert add_boosts([boost], [], [[]], NOW) == [[]]


def test_typed_boosts() -> None:
    boosts = parse_boosts(["date:12h", "downloads", "author.rank:0.5"])

    assert boosts == (
        Boost("date", half_life_seconds=43_200),
        Boost("downloads"),
        Boost("author.rank", weight=0.5),
    )


@pytest.mark.parametrize(
    ("boost", "message"),
    [
        ("date:30d", "boost is the text 'date:30d'"),
        ({"date": "30d"}, "the boost of date is 30d; it is an object"),
        ({"date": {"halflife": "30d"}}, "it is an object with some of the keys half_life"),
        ({"date": {"half_life": "30 months"}}, "half_life of the boost of date is '30 months'"),
        ({"date": {"half_life": "0d"}}, "write a number above 0 of hours, days, weeks or years"),
        ({"date": {"half_life": "1d", "pivot": 2}}, "has both half_life and pivot"),
        ({"x": {"pivot": 0}}, "pivot of the boost of x is '0'; it must be a number above 0"),
        ({"x": {"weight": True}}, "weight of the boost of x is 'True'"),
        ({"x": {"weight": float("nan")}}, "it must be a number above 0"),
        ({"x": {"weight": 101}}, "weight of x is 101; the largest is 100"),
        (["x:much"], "weight of the boost of x is 'much'"),
    ],
)
def test_malformed_boost_is_refused(boost: Any, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse_boosts(boost)

    assert message in str(error.value)


ANYTHING = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=6),
    lambda inner: (
        some.lists(inner, max_size=2)
        | some.dictionaries(some.sampled_from(["half_life", "pivot", "weight", "x"]), inner)
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    boost=some.dictionaries(some.sampled_from(["date", "x"]), ANYTHING)
    | some.lists(some.text(max_size=8), max_size=2),
    documents=some.lists(some.integers() | some.floats(allow_nan=False) | some.text(max_size=5)),
)
def test_any_boost_is_read_or_refused(boost: Any, documents: list[Any]) -> None:
    try:
        boosts = parse_boosts(boost)
    except SettingsError:
        return

    values_or_none = [None if document == "" else document for document in documents]
    field_values = values(*values_or_none)
    known = [[value for value in document if value is not None] for document in field_values]
    scores = [float(-i) for i in range(len(known))]
    for additions in add_boosts(boosts, scores, [known] * len(boosts), NOW):
        assert len(additions) == len(known)
        assert all(0 <= addition < float("inf") for addition in additions)
