"""Guards that indexes of the same documents share one map in memory."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest

from model_code.files import write_json
from model_code.retrieval.id_map import IdMap, IdMaps, read_id_map


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
