"""Guards that a filter leaves what a plain reading of its words leaves, and says what it does not
understand.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from model_code.collection.segments.filters import MergedFields, index_fields, matching_documents
from model_code.errors import FreshetError
from model_code.text.documents import parse_date

NAMES = ("package", "year", "date", "and")
DATES = ["2024-01-31", "2024-02-01T00:00:00+00:00", "2024-01-31T23:00-02:00"]
SCALARS = some.sampled_from(["numpy", "scipy", "7", "", 7, 7.5, -1, 2e3, True, None, *DATES])
VALUES = SCALARS | some.lists(SCALARS, max_size=3)
DOCUMENTS = some.lists(some.dictionaries(some.sampled_from(NAMES), VALUES), min_size=1, max_size=6)
BOUNDS = some.sampled_from([7, "7.25", -1, 1999, "2024-01-31", "2024-02-01T01:00:00+00:00"])
TESTS = some.fixed_dictionaries(
    {},
    optional={
        "=": SCALARS,
        "!=": SCALARS,
        "in": some.lists(SCALARS, max_size=3),
        "exists": some.booleans(),
    }
    | dict.fromkeys((">", ">=", "<", "<="), BOUNDS),
).filter(bool)
FIELDS = some.dictionaries(
    some.sampled_from(NAMES[:3]), SCALARS | some.lists(SCALARS, max_size=3) | TESTS, max_size=2
)
FILTERS = some.recursive(
    FIELDS,
    lambda inner: some.fixed_dictionaries(
        {},
        optional={
            "and": some.lists(inner, max_size=3),
            "or": some.lists(inner, max_size=3),
            "not": inner,
        },
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(documents=DOCUMENTS, filters=FILTERS, removed=some.sets(some.integers(0, 5)))
def test_a_filter_leaves_what_a_plain_reading_leaves(documents, filters, removed):
    rows = [
        (str(i), {**dict.fromkeys(NAMES, "there"), **fields}) for i, fields in enumerate(documents)
    ]
    rows.append(("last", dict.fromkeys(NAMES, "there")))  # so that every field is known
    gone = {str(i) for i in removed if i < len(documents)}
    index = MergedFields([(index_fields(rows[::2]), gone), (index_fields(rows[1::2]), gone)])
    left = {name: fields for name, fields in rows if name not in gone}
    fitting = {name for name, fields in left.items() if fits(fields, filters)}
    assert matching_documents(index, filters, left.keys) == fitting


def fits(fields: dict[str, Any], filters: dict[str, Any]) -> bool:
    return all(fits_one(fields, name, wanted) for name, wanted in filters.items())


def fits_one(fields: dict[str, Any], name: str, wanted: Any) -> bool:
    if name == "not":
        return not fits(fields, wanted)
    if name in ("and", "or") and isinstance(wanted, list):
        return (all if name == "and" else any)(fits(fields, one) for one in wanted)
    if isinstance(wanted, dict):
        return all(compares(fields, name, operator, value) for operator, value in wanted.items())
    return compares(fields, name, "in" if isinstance(wanted, list) else "=", wanted)


def compares(fields: dict[str, Any], name: str, operator: str, wanted: Any) -> bool:
    own = fields[name] if isinstance(fields[name], list) else [fields[name]]
    if operator == "exists":
        return bool(own) == wanted
    if operator == "!=":
        return not compares(fields, name, "=", wanted)
    if operator in ("=", "in"):
        values = {as_typed(value) for value in ([wanted] if operator == "=" else wanted)}
        return any(as_typed(one) in values for one in own)
    order = {
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
    }
    pairs = [(measure(one), measure(wanted)) for one in own]
    return any(type(a) is type(b) and order[operator](a, b) for a, b in pairs if a is not None)


def as_typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def measure(value: Any) -> Any:
    try:
        return float(as_typed(value))
    except ValueError:
        return parse_date(value)


INDEX = index_fields(
    [
        ("a", {"year": 2023, "tags": ["x", "y"]}),
        ("b", {"year": 2024}),
        ("c", {"date": "2024-05-01"}),
    ]
)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["year>=2023", "year!=2024"], "a"),
        (["year<=2024", "year>2023"], "b"),
        (['{"tags": ["y", "z"]}'], "a"),
        (['{"or": [{"tags": "x"}, {"year": 2024}]}', "year<2030"], "ab"),
        ({"date": {"<": "2024-06-01"}}, "c"),
        ({"year": {"exists": False}}, "c"),
        ({"year": 1999}, ""),
        ({}, "abc"),
    ],
)
def test_filters_as_one_writes_them(filters, found):
    assert "".join(sorted(matching_documents(INDEX, filters, lambda: set("abc")))) == found


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (["year"], "--filter year: write it as field=value, field>=value, or as JSON"),
        (["{year: 3}"], "this begins as JSON, and is none"),
        (["[1]=3"], r"no document has a field '\[1\]'"),
        ({"colour": "red"}, "no document has a field 'colour'; fields: date, tags, year"),
        ({"year": {"~": 3}}, "year is filtered by '~'; use one of =, !=, >, >=, <, <=, in, exists"),
        ({"year": {">": "soon"}}, "year > soon: ranges are of numbers and of ISO dates"),
        ({"year": {}}, "the filter of year states nothing"),
        ({"year": {"in": 3}}, "in of year takes a list"),
        ({"year": {"exists": 1}}, "exists of year is true or false"),
        ({"or": [3]}, "a filter is an object such as"),
        (["year=1990"], "no document has year=1990; values of year: 2023, 2024"),
        (
            ["year=2023", "tags=x", "date>2000-01-01"],
            "no document has all of year=2023, tags=x, date>2000-01-01",
        ),
    ],
)
def test_what_a_filter_does_not_mean_is_told(filters, message):
    with pytest.raises(FreshetError, match=message):
        matching_documents(INDEX, filters, lambda: set("abc"))


def test_too_deeply_nested_filter_is_refused():
    nested: dict[str, Any] = {"year": 2023}
    for _ in range(20):
        nested = {"not": nested}
    with pytest.raises(FreshetError, match="nested more than 16 deep"):
        matching_documents(INDEX, nested, set)
