"""Guards the typed comparison of field values with filters."""

from __future__ import annotations

from typing import Any

import pytest

from model_code.collection.segments.conditions import (
    condition_fields,
    iterate_field_values,
    matches_fields,
    parse_filters,
)
from model_code.errors import SettingsError

ANN = {"name": "Ann", "address": {"city": "Oslo"}}


@pytest.mark.parametrize(
    ("fields", "filters"),
    [
        ({"pages": 310.0}, {"pages": 310}),
        ({"pages": 310}, {"pages": 310.0}),
        ({"pages": "310"}, {"pages": 310}),
        ({"pages": "310.0"}, {"pages": 310}),
        ({"pages": 310.0}, ["pages = 310"]),
        ({"pages": "310"}, ["pages>=300"]),
        ({"pages": "1e3"}, {"pages": {">": 999}}),
        ({"pages": 9007199254740993}, {"pages": "9007199254740993"}),
        ({"pages": 10**4000}, {"pages": {">": 1e300}}),
        ({"version": "1.10"}, ["version=1.10"]),
        ({"name": "a b"}, ['name = "a b"']),
        ({"name": "it's"}, ["name=it's"]),
        ({"name": 'say "a" or "b"'}, ['name=say "a" or "b"']),
        ({"pages": 310}, ["pages >= '300'"]),
        ({"open": True}, {"open": True}),
        ({"open": True}, ["open=true"]),
        ({"open": True}, ["open=True"]),
        ({"open": "FALSE"}, {"open": False}),
        ({"tags": ["a", "b"]}, {"tags": "b"}),
        ({"tags": ["a", "b"]}, {"tags": ["b", "c"]}),
        ({"tags": ["a", "b"]}, {"tags": {"=": ["b", "c"]}}),
        ({"title": "cafe\u0301"}, {"title": "café"}),
        ({"name": "numpy.sort"}, {"name": {"prefix": "NUMPY."}}),
        ({"name": "numpy.sort"}, ["name ^= numpy"]),
        ({"name": "numpy.sort"}, ["name *= Sort"]),
        ({"code": 90210}, {"code": {"prefix": "902"}}),
        ({"author": ANN}, {"author.name": "Ann"}),
        ({"author": [ANN, {"name": "Bo"}]}, {"author.name": ["Bo"]}),
        ({"author": ANN}, ["author.address.city=Oslo"]),
        ({"author": ANN}, {"author": {"exists": True}}),
        ({"author": ANN}, {"author.address": {"exists": True}}),
    ],
)
def test_value_matches(fields: dict[str, Any], filters: Any) -> None:
    assert matches_fields(parse_filters(filters), fields)


@pytest.mark.parametrize(
    ("fields", "filters"),
    [
        ({"pages": 310.5}, {"pages": 310}),
        ({"version": "1.10"}, ["version=1.1"]),
        ({"version": "1.10"}, {"version": {"!=": "1.10"}}),
        ({"pages": 9007199254740992}, {"pages": 9007199254740993}),
        ({"open": True}, {"open": 1}),
        ({"open": 1}, {"open": True}),
        ({"open": True}, {"open": {">": 0}}),
        ({"open": True}, {"open": {"prefix": "tr"}}),
        ({"name": "Numpy"}, {"name": "numpy"}),
        ({"name": "numpy"}, {"name": {"prefix": "umpy"}}),
        ({"tags": ["a", "b"]}, {"tags": {"!=": ["b", "c"]}}),
        ({"author": ANN}, {"author.nam": {"exists": True}}),
        ({"pages": "unknown"}, {"pages": {"<": 10}}),
        ({"pages": "9" * 5000}, {"pages": {">": 10}}),
    ],
)
def test_value_does_not_match(fields: dict[str, Any], filters: Any) -> None:
    assert not matches_fields(parse_filters(filters), fields)


@pytest.mark.parametrize("empty", [None, "", " ", [], {}, [None, ""], {"inner": None}])
def test_empty_value_does_not_exist(empty: Any) -> None:
    fields = {"doi": empty, "other": 1}

    assert matches_fields(parse_filters({"doi": {"exists": False}}), fields)
    assert matches_fields(parse_filters({"doi": None}), fields)
    assert matches_fields(parse_filters({"doi": ""}), fields)
    assert matches_fields(parse_filters({"doi": [None, "10.1/x"]}), fields)
    assert matches_fields(parse_filters(["doi="]), fields)
    assert not matches_fields(parse_filters({"doi": {"!=": None}}), fields)
    assert not matches_fields(parse_filters({"doi": {"contains": "n"}}), fields)


DAY_BORDERS = [
    "2023-03-04T23:59:59.999999Z",
    "2023-03-05",
    "2023-03-05T00:00:00+00:00",
    "2023-03-05T23:59:59.999999Z",
    "2023-03-06",
    "2023-03-05T20:00:00-05:00",
]


@pytest.mark.parametrize(
    ("operator", "found"),
    [
        ("=", [1, 2, 3]),
        ("!=", [0, 4, 5]),
        ("<", [0]),
        ("<=", [0, 1, 2, 3]),
        (">", [4, 5]),
        (">=", [1, 2, 3, 4, 5]),
        ("in", [1, 2, 3]),
    ],
)
def test_date_means_the_whole_day(operator: str, found: list[int]) -> None:
    operand = ["2023-03-05"] if operator == "in" else "2023-03-05"
    condition = parse_filters({"date": {operator: operand}})

    matching = [
        i for i, date in enumerate(DAY_BORDERS) if matches_fields(condition, {"date": date})
    ]

    assert matching == found


@pytest.mark.parametrize(
    ("date", "filters"),
    [
        ("2023-03-05T10:00:00Z", ["date=2023-03"]),
        ("2023-12-31T23:59:59Z", {"date": 2023}),
        ("2023-12-31T23:59:59Z", {"date": {"<=": 2023}}),
        ("2024-02-29", {"date": "2024-02"}),
        ("9999-12-31", {"date": {"<=": "9999-12-31"}}),
        ("0001-01-01T00:00:00+14:00", {"date": {"<": "0001-01-01"}}),
        ("2023-03-05T10:00:00+00:00", {"date": "2023-03-05T12:00:00+02:00"}),
        ("2023-03-05T10:00:00Z", {"date": {"<=": "2023-03-05 10:00"}}),
        ("2019-06", {"date": {">=": "2019-01-01", "<": "2019-06-02"}}),
        ("2019-06", {"date": "2019"}),
        ("2019", {"date": {">": "2018-12-31", "<=": "2019-01-01"}}),
        (2019, {"date": {">": "2018-12-31", "<=": "2019-01-01"}}),
        (2019, {"date": "2019"}),
    ],
)
def test_month_year_and_instant_match(date: str | int, filters: Any) -> None:
    assert matches_fields(parse_filters(filters), {"date": date})


@pytest.mark.parametrize(
    ("date", "filters"),
    [
        ("2023-04-01", ["date=2023-03"]),
        ("2024-01-01", {"date": {"<=": 2023}}),
        ("2023-12-31T23:59:59Z", {"date": {">": 2023}}),
        ("2023-03-05T10:00:00.000001Z", {"date": {"<=": "2023-03-05T10:00"}}),
        ("2023", {"date": "2023-01-01"}),
        ("2023", {"date": "2023-01"}),
        (2023, {"date": "2023-01"}),
        ("2023-01", {"date": "2023-01-01"}),
        ("2019-06", {"date": {"<": "2019-06-01"}}),
        ("2019-13", {"date": {">": "2018-01-01"}}),
        (20190601, {"date": {">": "2018-01-01"}}),
    ],
)
def test_month_year_and_instant_do_not_match(date: str | int, filters: Any) -> None:
    assert not matches_fields(parse_filters(filters), {"date": date})


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ("year=3", "not the text 'year=3'"),
        (["year"], "--filter year: write it as field=value, field>=value, or as JSON"),
        ([" =3"], "write it as field=value"),
        ([{"year": 3}], "a list of filters holds texts such as year>=2020, not \"{'year': 3}\""),
        ([None], "not 'None'; give one object instead"),
        (["{year: 3}"], "this begins as JSON, and is none"),
        ({"year": {"~": 3}}, "year is filtered by '~'; use one of =, !=, >, >=, <, <=, in, exists"),
        ({"year": {">": "soon"}}, "year > soon: ranges are of numbers and of ISO dates"),
        ({"year": {">": None}}, "year > null: ranges are of numbers"),
        ({"year": {">": "2024-13"}}, "ranges are of numbers and of ISO dates"),
        ({"year": {">": float("nan")}}, "year is compared with NaN"),
        ({"year": {}}, "the filter of year states nothing"),
        ({"year": {"in": 3}}, "in of year takes a list"),
        ({"year": [{"a": 1}]}, 'year is compared with {"a": 1}; use a text, a number'),
        ({"year": {"exists": 1}}, "exists of year is true or false"),
        ({"year": {"prefix": ""}}, "prefix of year takes a text that is not empty"),
        ({"year": {"contains": 2}}, "contains of year takes a text that is not empty, not 2"),
        ({"or": [3]}, "a filter is an object such as"),
        ({"or": {"year": 3}}, "or takes a list of filter objects"),
        ({"and": {}}, "and takes a list of filter objects"),
    ],
)
def test_malformed_filter_is_refused(filters: Any, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse_filters(filters)

    assert message in str(error.value)


def test_deeply_nested_document_is_read() -> None:
    fields: dict[str, Any] = {"leaf": 1}
    for _ in range(5000):
        fields = {"a": fields}

    values = list(iterate_field_values(fields))

    assert len(values) == 1


def test_fields_that_must_be_known() -> None:
    condition = parse_filters(
        {"a": 1, "not": {"b": {">": 2}}, "or": [{"c": {"exists": True}}, {"d": None}]}
    )

    assert list(condition_fields(condition)) == ["a", "b"]


def test_blanks_of_typed_filters_are_read_fast() -> None:
    with pytest.raises(SettingsError, match="write it as field=value"):
        parse_filters([" " * 100_000])
