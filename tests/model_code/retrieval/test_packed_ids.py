"""Test that compact ids behave like a sorted list and a dictionary."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as some

from model_code.retrieval import packed_ids
from model_code.retrieval.id_map import IdMap, IdMaps
from model_code.retrieval.packed_ids import NOT_FOUND, SortedIds

IDS = some.text(some.characters(exclude_categories=()), max_size=4)
LISTS = some.lists(IDS, max_size=60)


@pytest.fixture(params=["dictionary", "hashes"], autouse=True)
def way_of_finding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with the dictionary of small maps and with the hashes of large ones."""
    if request.param == "hashes":
        monkeypatch.setattr(packed_ids, "MAX_IDS_IN_DICTIONARY", 0)
        monkeypatch.setattr(packed_ids, "MIN_IDS_FOR_ARRAYS", 4)


@given(ids=LISTS, others=LISTS)
def test_ids_are_found_like_in_a_sorted_list(ids: list[str], others: list[str]) -> None:
    expected = sorted(set(ids))
    packed = SortedIds(ids)

    assert list(packed) == expected == packed[:]
    backwards = range(len(expected) - 1, -1, -1)
    assert packed.at(backwards) == expected[::-1]
    wanted = [*ids, *others]
    positions = [expected.index(each) if each in expected else NOT_FOUND for each in wanted]
    assert packed.find(wanted).tolist() == positions
    assert [packed.position(each) for each in wanted] == positions


@given(ids=LISTS)
def test_rows_are_those_of_a_dictionary(ids: list[str]) -> None:
    rows: dict[str, list[int]] = {}
    for row, document_id in enumerate(ids):
        rows.setdefault(document_id, []).append(row)
    packed = IdMap(ids)

    assert list(packed.rows_by_document.items()) == list(rows.items())
    assert packed.document_ids == ids
    assert packed.rows_of(rows).tolist() == list(range(len(ids)))
    groups = packed.group_rows(list(rows))
    assert groups.rows.tolist() == [row for group in rows.values() for row in group]


@given(first=LISTS, second=LISTS)
def test_groups_of_several_maps_leave_out_removed_documents(
    first: list[str], second: list[str]
) -> None:
    removed = frozenset(first) & frozenset(second)
    maps = IdMaps([(IdMap(first), removed), (IdMap(second), frozenset())])
    all_ids = [*first, *second]
    documents = sorted(set(all_ids), reverse=True)

    groups = maps.group_rows(documents)

    assert list(maps.document_ids) == all_ids
    assert maps.documents == len(documents)
    ends = [*groups.starts.tolist()[1:], len(groups.rows)]
    for document, number in zip(documents, groups.group_index.tolist(), strict=True):
        found = groups.rows[groups.starts[number] : ends[number]].tolist()
        live = range(len(first), len(all_ids)) if document in removed else range(len(all_ids))
        assert found == [row for row in live if all_ids[row] == document]


def test_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_ids, "hash", len, raising=False)
    packed = SortedIds(["aa", "bb", "cc", "d"])

    assert packed.find(["cc", "xx", "aa", "d", "bb"]).tolist() == [2, NOT_FOUND, 0, 3, 1]


def test_copies_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = SortedIds(["b", "a"])
    packed.position("a")
    content = pickle.dumps(packed)
    # Another process hashes texts differently.
    monkeypatch.setattr(packed_ids, "hash", len, raising=False)

    assert pickle.loads(content).position("b") == 1
