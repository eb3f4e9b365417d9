"""Guards that the index of a segment's fields finds what `matches_fields` defines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from model_code.collection.segments.conditions import matches_fields, parse_filters
from model_code.collection.segments.field_index import FieldIndex
from model_code.errors import Damaged
from model_code.mapped_tensors import map_tensors

HUGE = 10**20
TEXTS = ["ship", "Ship yard", "yard", "STRASSE", "straße", "7", "7.0", "true", "\x00", "é", ""]
NUMBERS = [7, 7.0, 7.5, -1, HUGE, HUGE + 1, 2**53, 2**53 + 1, float("inf"), 10**400]
DATES = ["2024-01-31", "2024-01-31T23:00-02:00", "2024-02", "2024"]
SCALARS = some.sampled_from([*TEXTS, *NUMBERS, *DATES, True, False, None])


def nest_values(inner: some.SearchStrategy) -> some.SearchStrategy:
    """Make lists and objects of values."""
    return some.lists(inner, max_size=3) | some.dictionaries(some.just("name"), inner)


VALUES = some.recursive(SCALARS, nest_values, max_leaves=4)
NAMES = some.sampled_from(["a", "a.name", "b"])
DOCUMENTS = some.lists(some.dictionaries(NAMES, VALUES), max_size=8)
PATTERNS = some.sampled_from(["s", "sHiP", "ard", "strass", "7", "\x00", "é", "tru"])
BOUNDS = some.sampled_from([7, "7.25", HUGE, HUGE + 1, 2**53 + 1, -1, 2024, *DATES])
COMPARISONS = some.one_of(
    some.fixed_dictionaries({"=": SCALARS}),
    some.fixed_dictionaries({"!=": SCALARS}),
    some.fixed_dictionaries({"in": some.lists(SCALARS, max_size=4)}),
    some.fixed_dictionaries({"exists": some.booleans()}),
    some.fixed_dictionaries({"prefix": PATTERNS}),
    some.fixed_dictionaries({"contains": PATTERNS}),
    some.dictionaries(some.sampled_from([">", ">=", "<", "<="]), BOUNDS, min_size=1),
)
FIELDS = some.dictionaries(NAMES, COMPARISONS, max_size=2)


def combine_filters(inner: some.SearchStrategy) -> some.SearchStrategy:
    """Make the negation, the alternatives and the conjunctions of filters."""
    return some.one_of(
        some.fixed_dictionaries({"not": inner}),
        some.fixed_dictionaries({"or": some.lists(inner, max_size=2)}),
        some.fixed_dictionaries({"and": some.lists(inner, max_size=2)}),
    )


FILTERS = some.recursive(FIELDS, combine_filters, max_leaves=3)


def find(documents: list[dict[str, Any]], filters: dict[str, Any]) -> list[bool]:
    return FieldIndex.build(documents).find(parse_filters(filters)).tolist()


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(documents=DOCUMENTS, filters=FILTERS)
def test_index_finds_what_the_definition_matches(
    documents: list[dict[str, Any]], filters: dict[str, Any]
) -> None:
    condition = parse_filters(filters)
    expected = [matches_fields(condition, document) for document in documents]

    assert find(documents, filters) == expected


def test_many_selected_values_are_marked_at_once() -> None:
    documents = [{"year": year, "other": year % 2} for year in range(1000)]

    found = find(documents, {"year": {">=": 300, "<": 900}})

    assert found == [300 <= year < 900 for year in range(1000)]


def test_saved_index_is_equal_and_mapped(tmp_path: Path) -> None:
    index = FieldIndex.build([{"tags": ["a", "b"]}, {"tags": "b", "year": 2020}])

    index.save(tmp_path / "fields")
    loaded = FieldIndex.load(tmp_path / "fields")
    loaded.save(tmp_path / "again")

    assert loaded.value_ranges == index.value_ranges
    assert (tmp_path / "again").read_bytes() == (tmp_path / "fields").read_bytes()
    assert not loaded.documents.flags.owndata
    assert not loaded.documents.flags.writeable


@pytest.fixture
def tags() -> FieldIndex:
    """An index of three documents, of which the last alone has the tag z."""
    return FieldIndex.build([{"tag": ["x", "x", "y"]}, {"tag": "x"}, {"tag": "z"}])


def test_counts_leave_out_removed_documents(tags: FieldIndex) -> None:
    counts = tags.count_documents("tag", np.array([True, True, False]))

    assert {value.text: count for value, count in counts.items()} == {"x": 2, "y": 1}


def test_text_of_removed_documents_is_absent(tags: FieldIndex) -> None:
    assert tags.has_text("tag", "z", np.array([True, True, True]))
    assert not tags.has_text("tag", "z", np.array([True, True, False]))


def test_values_of_documents_are_those_of_their_fields() -> None:
    index = FieldIndex.build([{"tag": ["y", "x"]}, {"tag": "x"}, {"other": 1}, {"tag": 3}])

    values_of_documents = index.values_of("tag", [3, 0, 2])

    texts = [[value.text for value in values] for values in values_of_documents]
    assert texts == [["3"], ["x", "y"], []]


def test_unknown_field_has_no_values() -> None:
    index = FieldIndex.build([{"tag": "x"}])

    assert index.values_of("none", [0]) == [[]]


@pytest.mark.parametrize("end", [-1, 40])
def test_truncated_file_is_damaged(tmp_path: Path, end: int) -> None:
    path = tmp_path / "fields"
    FieldIndex.build([{"tag": "x"}] * 50).save(path)

    path.write_bytes(path.read_bytes()[:end])

    with pytest.raises(Damaged, match="torn"):
        map_tensors(path)
