"""Guards that indexes of the same documents share one map in memory."""

from __future__ import annotations

import weakref
from pathlib import Path

from model_code.files import write_json
from model_code.retrieval.id_map import read_id_map


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
