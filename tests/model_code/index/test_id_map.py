"""Guards the one owner of row numbers: stable keys, look-ups after deletions, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.index import id_map
from model_code.index.id_map import IdMap, stable_key


def test_keys_are_63_bits_and_survive_deletion_and_reordering() -> None:
    ids = IdMap(["b", "a", "b", "c"])
    assert ids.keys.tolist() == [stable_key("b", 0), stable_key("a", 0), stable_key("b", 1), stable_key("c", 0)]
    assert all(0 <= key < 2**63 for key in ids.keys.tolist())
    assert stable_key("é", 3) == 2509922335296290617
    left = ids.without(ids.rows_of(["a"]))
    assert left.document_ids == ["b", "b", "c"]
    assert left.rows_with(ids.keys).tolist() == [0, -1, 1, 2]
    assert left.rows_with(np.array([[-1, stable_key("c", 0)]])).tolist() == [[-1, 2]]


def test_two_passages_with_one_key_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_map, "stable_key", lambda document, ordinal: 7)
    with pytest.raises(FreshetError, match="same 63-bit key"):
        _ = IdMap(["a", "b"]).keys


def test_adding_known_and_finding_unknown_documents_is_refused() -> None:
    ids = IdMap(["a", "b"])
    assert "a" in ids
    assert "z" not in ids
    assert ids.documents == 2
    assert ids.added(["c", "c"]).document_ids == ["a", "b", "c", "c"]
    with pytest.raises(FreshetError, match="already holds 'b'"):
        ids.added(["c", "b"])
    with pytest.raises(FreshetError, match="no document 'x' .2 unknown"):
        ids.rows_of(["a", "y", "x"])


def test_a_map_that_grew_equals_one_made_at_once() -> None:
    parts = [["a", "b", "a"], ["d", "c", "d"], ["e"], []]
    grown = IdMap(parts[0])
    for part in parts[1:]:
        grown = grown.added(part)
    whole = IdMap([name for part in parts for name in part])
    assert grown.document_ids == whole.document_ids
    assert grown.documents == whole.documents == 5
    np.testing.assert_array_equal(grown.keys, whole.keys)
    np.testing.assert_array_equal(grown.rows_with(whole.keys), np.arange(7))
    np.testing.assert_array_equal(grown.rows_of(["d", "a"]), [0, 2, 3, 5])
