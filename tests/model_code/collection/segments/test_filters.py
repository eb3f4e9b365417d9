"""Guards that a filter leaves what a plain reading of its words leaves, and says what it does not
understand.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from model_code.collection.segments.conditions import OPERATORS, matches_fields, parse_filters
from model_code.collection.segments.field_index import FieldIndex
from model_code.collection.segments.filters import CollectionFields, commonest
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


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(documents=DOCUMENTS, filters=FILTERS, removed=some.sets(some.integers(0, 5)))
def test_a_filter_leaves_what_a_plain_reading_leaves(documents, filters, removed):
    rows = [
        (str(i), {**dict.fromkeys(NAMES, "there"), **fields}) for i, fields in enumerate(documents)
    ]
    # The last document has every field, so that every field is known.
    rows.append(("last", dict.fromkeys(NAMES, "there")))
    gone = {str(i) for i in removed if i < len(documents)}
    left = {name: fields for name, fields in rows if name not in gone}
    fitting = {name for name, fields in left.items() if fits(fields, filters)}

    assert filter_rows([rows[::2], rows[1::2]], filters, gone) == fitting


def filter_rows(
    segments: list[list[tuple[str, dict[str, Any]]]], filters: Any, removed: set[str] | None = None
) -> set[str]:
    """Filter segments of rows by their indexes."""
    indexes = []
    ids = []
    for rows in segments:
        ordered = sorted(rows, key=lambda row: row[0])
        names = [name for name, _ in ordered]
        is_live = np.array([name not in (removed or ()) for name in names], bool)
        indexes.append((FieldIndex.build([fields for _, fields in ordered]), is_live))
        ids.append(names)
    found = set()
    for names, mask in zip(ids, CollectionFields(indexes).find(filters), strict=True):
        found.update(names[i] for i in np.flatnonzero(mask))
    return found


def fits(fields: dict[str, Any], filters: dict[str, Any]) -> bool:
    return all(fits_one(fields, name, wanted) for name, wanted in filters.items())


def fits_one(fields: dict[str, Any], name: str, wanted: Any) -> bool:
    if name == "not":
        return not fits(fields, wanted)
    if name == "and" and isinstance(wanted, list):
        return all(fits(fields, condition) for condition in wanted)
    if name == "or" and isinstance(wanted, list):
        return any(fits(fields, condition) for condition in wanted)
    if isinstance(wanted, dict):
        return all(compares(fields, name, operator, value) for operator, value in wanted.items())
    if isinstance(wanted, list):
        return compares(fields, name, "in", wanted)
    return compares(fields, name, "=", wanted)


def compares(fields: dict[str, Any], name: str, operator: str, wanted: Any) -> bool:
    value = fields.get(name)
    members = value if isinstance(value, list) else [value]
    own = [member for member in members if member not in (None, "")]
    if operator == "exists":
        return bool(own) == wanted
    if operator == "!=":
        return not compares(fields, name, "=", wanted)
    if operator == "in":
        return any(compares(fields, name, "=", value) for value in wanted)
    if operator == "=":
        if wanted in (None, ""):
            return not own
        return any(equals(member, wanted) for member in own)
    return any(is_beside(member, operator, wanted) for member in own)


def equals(member: Any, wanted: Any) -> bool:
    if isinstance(member, bool) or isinstance(wanted, bool):
        return member is wanted or str(member).lower() == str(wanted).lower()
    if isinstance(member, str) and isinstance(wanted, str):
        if is_day(wanted):
            return day_of(member) == wanted
        return member == wanted or (
            None not in (moment(member), moment(wanted)) and moment(member) == moment(wanted)
        )
    return measure(member) == measure(wanted)


def is_beside(member: Any, operator: str, wanted: Any) -> bool:
    """Return whether a value lies on the wanted side of a bound.

    Days are compared with days, moments with moments and numbers with numbers. The number 1999 is
    also a year, which is compared with dates.
    """
    bound: Any = wanted
    if is_day(wanted):
        value = day_of(member)
    elif moment(wanted) is not None:
        value = moment(member)
        bound = moment(wanted)
    else:
        value = measure(member)
        bound = measure(wanted)
        day = day_of(member)
        if value is None and bound == 1999 and day:
            value = day[:4]
            bound = "1999"

    if value is None:
        return False
    if operator == "<":
        return value < bound
    if operator == "<=":
        return value <= bound
    if operator == ">":
        return value > bound
    return value >= bound


def is_day(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 10


def day_of(value: Any) -> str | None:
    instant = moment(value)
    return None if instant is None else instant.astimezone(UTC).date().isoformat()


def moment(value: Any) -> datetime | None:
    return parse_date(value) if isinstance(value, str) and "-" in value[1:] else None


def measure(value: Any) -> Any:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except ValueError:
        return None


ROWS = [
    ("a", {"year": 2023, "tags": ["x", "y"]}),
    ("b", {"year": 2024}),
    ("c", {"date": "2024-05-01"}),
]


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
        (["year=1990"], ""),
        (["year = 2023", "tags=x", "date>2000-01-01"], ""),
        ({}, "abc"),
    ],
)
def test_filters_as_one_writes_them(filters, found):
    assert "".join(sorted(filter_rows([ROWS], filters))) == found


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (["[1]=3"], r"no document has a field '\[1\]'"),
        ({"colour": "red"}, "no document has a field 'colour'; fields: date, tags, year"),
        (["tags=z"], "no document has tags=z; values of tags: x, y"),
    ],
)
def test_what_a_filter_does_not_mean_is_told(filters, message):
    with pytest.raises(FreshetError, match=message):
        filter_rows([ROWS], filters)


def test_too_deeply_nested_filter_is_refused():
    nested: dict[str, Any] = {"year": 2023}
    for _ in range(20):
        nested = {"not": nested}

    with pytest.raises(FreshetError, match="nested more than 16 deep"):
        filter_rows([ROWS], nested)


def test_field_of_deleted_documents_matches_nothing():
    index = FieldIndex.build([fields for _, fields in ROWS])
    fields = CollectionFields([(index, np.array([False, True, True]))])

    assert fields.find({"tags": "x"})[0].tolist() == [False, False, False]
    assert fields.find(["tags=x"])[0].tolist() == [False, False, False]
    assert fields.find({"not": {"tags": "x"}})[0].tolist() == [False, True, True]
    assert fields.names() == ["date", "year"]


def test_object_field_names_the_fields_inside():
    index = FieldIndex.build([{"author": {"name": "Ann", "age": 30}, "doi": {}}])
    fields = CollectionFields([(index, np.ones(1, bool))])

    with pytest.raises(FreshetError, match="'author' is an object; .*: author.age, author.name"):
        fields.find({"author": "Ann"})
    assert fields.find({"author": {"exists": True}})[0].tolist() == [True]
    assert fields.find({"doi": "x"})[0].tolist() == [False]


def test_typed_month_finds_the_days_in_it():
    index = FieldIndex.build([{"day": "2024-05-01"}, {"day": "2024-06-01"}])
    fields = CollectionFields([(index, np.ones(2, bool))])

    assert fields.find(["day=2024-05"])[0].tolist() == [True, False]


def test_number_and_text_written_alike_are_counted_together():
    index = FieldIndex.build([{"year": 2020.0}, {"year": "2020"}, {"year": 2020}])
    fields = CollectionFields([(index, np.ones(3, bool))])

    assert commonest(fields.count("year"), 5) == {"2020": 3}


SCALAR_JSON = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats(allow_nan=True)
    | some.sampled_from(
        [2024, "2024", "2024-02", "2024-02-29", "2024-02-29T12:00:00-05:00", " ", "1e400", "True"]
    )
    | some.text(max_size=8)
)
JSON = some.recursive(
    SCALAR_JSON,
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(some.sampled_from(["a", "b", "a.b", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)
COMPARISONS = some.dictionaries(some.sampled_from([*OPERATORS, "like"]), JSON, max_size=2)
WILD_FILTERS = some.dictionaries(
    some.sampled_from(["a", "b", "a.b", "and", "or", "not"]), JSON | COMPARISONS, max_size=3
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    documents=some.lists(some.dictionaries(some.sampled_from("abc"), JSON)), filters=WILD_FILTERS
)
def test_index_agrees_with_single_documents_or_refuses(documents, filters):
    rows = [(str(i), fields) for i, fields in enumerate(documents)]
    try:
        condition = parse_filters(filters)
        found = filter_rows([rows], filters)
    except FreshetError:
        return

    assert found == {name for name, fields in rows if matches_fields(condition, fields)}


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(texts=some.lists(some.text(max_size=12), min_size=1, max_size=3))
def test_any_typed_text_is_read_or_refused(texts):
    try:
        condition = parse_filters(texts)
    except FreshetError:
        return

    assert matches_fields(condition, {}) in (True, False)
