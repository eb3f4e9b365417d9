"""Guards sorting, grouping and counting of a ranking, and the checks of search options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from model_code.collection.generations.query_options import (
    QueryOptions,
    count_facets,
    group_ranking,
    sort_ranking,
)
from model_code.collection.segments.conditions import FieldValue, iterate_field_values
from model_code.errors import SettingsError

FIELDS: dict[str, dict[str, Any]] = {
    "a": {"year": 2019, "kind": "x"},
    "b": {"year": "2021", "kind": ["y", "x"]},
    "c": {"kind": "x"},
    "d": {"year": 2021.0, "name": "Beta"},
    "e": {"year": [2018, 2030], "name": "alpha"},
    "f": {"mixed": "2020-01-01"},
    "g": {"mixed": "text"},
    "h": {"mixed": 3},
    "i": {"mixed": True},
    "j": {"mixed": "2019-06"},
    "k": {"mixed": 2019},
    "l": {"word": "zebra"},
    "m": {"word": "Arger"},
    "n": {"word": "apple"},
    "o": {"word": "Ärger"},
}
RANKING = [("a", 5.0), ("b", 4.0), ("c", 3.0), ("d", 2.0), ("e", 1.0)]


def read(field: str, document_ids: Sequence[str]) -> list[list[FieldValue]]:
    values = []
    for document_id in document_ids:
        fields = iterate_field_values(FIELDS[document_id])
        values.append([value for name, value in fields if name == field])
    return values


def ids(ranking: Sequence[tuple[str, float]]) -> str:
    return "".join(document_id for document_id, _ in ranking)


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        (["year"], "eabdc"),
        (["-year"], "ebdac"),
        (["name"], "edabc"),
        (["-name"], "deabc"),
        (["kind", "-year"], "baced"),
        ([], "abcde"),
    ],
)
def test_sort_puts_missing_values_last(sort: list[str], expected: str) -> None:
    assert ids(sort_ranking(RANKING, sort, read)) == expected


def test_sort_orders_types_and_keeps_scores() -> None:
    ranking = [("i", 4.0), ("g", 3.0), ("f", 2.0), ("h", 1.0)]

    assert sort_ranking(ranking, ["mixed"], read) == [
        ("h", 1.0),
        ("f", 2.0),
        ("g", 3.0),
        ("i", 4.0),
    ]


def test_dates_of_mixed_precision_are_in_order_of_time() -> None:
    ranking = [("j", 4.0), ("k", 3.0), ("f", 2.0)]

    assert ids(sort_ranking(ranking, ["mixed"], read)) == "kjf"


def test_accents_count_only_among_equal_letters() -> None:
    ranking = [("l", 4.0), ("m", 3.0), ("n", 2.0), ("o", 1.0)]

    assert ids(sort_ranking(ranking, ["word"], read)) == "nmol"


def test_group_by_is_one_field() -> None:
    with pytest.raises(SettingsError, match="must be the name of one field"):
        QueryOptions(group_by=["year"])  # type: ignore[arg-type]


def test_group_keeps_the_first_of_each_value() -> None:
    assert ids(group_ranking(RANKING, "kind", read)) == "abde"
    assert ids(group_ranking(RANKING, "year", read)) == "abcde"


def test_facets_count_documents_by_value() -> None:
    assert count_facets("abcd", ["kind", "year"], read, 20) == {
        "kind": {"x": 3, "y": 1},
        "year": {"2021": 2, "2019": 1},
    }
    assert count_facets("abcd", ["kind"], read, 1) == {"kind": {"x": 3}}
    assert count_facets([], ["kind"], read, 1) == {"kind": {}}


@pytest.mark.parametrize(
    ("options", "depth"),
    [
        ({"k": 7}, 7),
        ({"k": 7, "offset": 200}, 207),
        ({"facets": ["x"]}, 100),
        ({"k": 200, "facets": ["x"]}, 200),
        ({"k": 200, "sort": ["x"]}, 100),
        ({"group_by": "x", "window": 30}, 30),
        ({"boost": ["x"]}, 100),
    ],
)
def test_depth_covers_page_and_window(options: dict[str, Any], depth: int) -> None:
    assert QueryOptions(**options).depth == depth


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k is 0, but a page has at least one hit"),
        ({"offset": -1}, "offset is -1, but it must not be negative"),
        ({"window": 1001}, "window is 1001, but it must be between 1 and 1000"),
        ({"sort": "year"}, "sort is the text 'year', but it must be a list of fields"),
        ({"facets": "year"}, "facets is the text 'year', but it must be a list of fields"),
    ],
)
def test_option_out_of_range_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        QueryOptions(**options)

    assert message in str(error.value)
