"""Guards that indexes of the same documents share one map in memory."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest

from model_code.files import write_json
from model_code.retrieval.id_map import AllowedDocuments, IdMap, IdMaps, read_id_map


def test_files_with_equal_ids_share_one_map(tmp_path: Path) -> None:
    write_json(tmp_path / "dense", ["b", "a", "b"])
    write_json(tmp_path / "bm25", ["b", "a", "b"], lines=False)
    write_json(tmp_path / "other", ["b", "a"])
    dense = read_id_map(tmp_path / "dense")
    assert read_id_map(tmp_path / "bm25") is dense
    assert read_id_map(tmp_path / "other").document_ids == ["b", "a"]


def test_map_is_forgotten_with_its_last_index(tmp_path: Path) -> None:
    write_json(tmp_path / "ids", ["only in this test"])
    ids = read_id_map(tmp_path / "ids")
    reference = weakref.ref(ids)
    del ids
    assert reference() is None


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
def test_best_rows_are_those_of_the_best_documents(k: int) -> None:
    """The scores hold equal ones and zeros, and the ids are in no order."""
    maps = IdMaps(
        [(IdMap(["f", "b", "h", "a"]), frozenset()), (IdMap(["g", "c", "e"]), frozenset())]
    )
    random = np.random.default_rng(0)
    for _ in range(20):
        scores = random.integers(0, 3, 7).astype(np.float32)

        rows = maps.best_rows(scores, k)

        documents = [document for document, _ in maps.best_documents(scores, k)]
        assert sorted(maps.document_ids[row] for row in rows.tolist()) == sorted(documents)


def test_maps_with_equal_rows_are_told_apart_from_others() -> None:
    maps = IdMaps([(IdMap(["b", "a"]), frozenset("a"))])

    assert maps.has_equal_rows(IdMaps([(IdMap(["b", "a"]), frozenset("a"))]))
    assert not maps.has_equal_rows(IdMaps([(IdMap(["a", "b"]), frozenset("a"))]))
    assert not maps.has_equal_rows(IdMaps([(IdMap(["b", "a"]), frozenset())]))
    assert not maps.has_equal_rows(IdMaps([(IdMap(["b", "a"]), frozenset("a"))] * 2))
    assert not IdMaps([(IdMap(["a", "a"]), frozenset())]).has_one_row_per_document


def make_maps(ids_are_in_order: bool) -> list[IdMap]:
    """Return the maps of two segments, of 200 and 7 documents with one to three rows each."""
    random = np.random.default_rng(0)
    names = [f"a{number:03d}" for number in range(200)]
    if not ids_are_in_order:
        names = np.repeat(names, random.integers(1, 4, 200)).tolist()
        random.shuffle(names)
    return [IdMap(names), IdMap([f"b{number}" for number in range(7)])]


@pytest.mark.parametrize("ids_are_in_order", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_rows_of_a_filter_are_those_of_its_documents(share: float, ids_are_in_order: bool) -> None:
    maps = make_maps(ids_are_in_order)
    random = np.random.default_rng(1)
    allowed = AllowedDocuments([(ids, random.random(ids.documents) < share) for ids in maps])
    joined = IdMaps([(ids, frozenset()) for ids in maps])

    found = joined.allowed_rows(allowed)

    document_ids = list(joined.document_ids)
    expected = [row for row, name in enumerate(document_ids) if name in allowed]
    assert found.rows.tolist() == expected
    assert found.count == len(expected)
    assert found.documents == len(list(allowed))
    assert found.rows.tolist() == joined.allowed_rows(set(allowed)).rows.tolist()


def test_excluded_rows_begin_at_a_row() -> None:
    rows = IdMap(["a", "b", "c", "d"]).allowed_rows({"a", "c"})

    assert rows.excluded_rows().tolist() == [1, 3]
    assert rows.excluded_rows(2).tolist() == [3]


def test_rows_of_a_filter_are_shared_between_components() -> None:
    maps = make_maps(ids_are_in_order=False)
    allowed = AllowedDocuments([(ids, np.ones(ids.documents, bool)) for ids in maps])

    first = allowed.rows_in(maps)

    assert allowed.rows_in(maps) is first


def test_rows_of_another_map_are_not_shared() -> None:
    ids = IdMap(["b", "a"])
    two_rows_each = IdMap(["b", "b", "a", "a"])
    allowed = AllowedDocuments([(ids, np.array([True, False]))])
    allowed.rows_in([ids])

    assert allowed.rows_in([two_rows_each]).rows.tolist() == [2, 3]


def test_ids_of_the_same_text_are_told_apart(tmp_path: Path) -> None:
    write_json(tmp_path / "first", ["ab", "c"])
    write_json(tmp_path / "second", ["a", "bc"])

    first = read_id_map(tmp_path / "first")

    assert read_id_map(tmp_path / "second") is not first


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b", "é"], ["b", "a"], ["a", "a", "b"]])
def test_positions_are_those_of_the_sorted_ids(names: list[str]) -> None:
    ids = IdMap(names)

    assert list(ids.ids) == sorted(set(names))
    assert list(ids.document_ids) == names
