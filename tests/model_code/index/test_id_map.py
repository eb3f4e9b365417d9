"""Guards the one owner of row numbers: look-ups and refusals."""

from __future__ import annotations

import pytest

from model_code.errors import FreshetError
from model_code.index.id_map import IdMap


def test_rows_are_found_and_unknown_documents_refused() -> None:
    ids = IdMap(["a", "b", "a"])
    assert ids.rows_of(["b", "a"]).tolist() == [0, 1, 2]
    assert "a" in ids
    assert "z" not in ids
    assert ids.documents == 2
    with pytest.raises(FreshetError, match="no document 'x' .2 unknown"):
        ids.rows_of(["a", "y", "x"])
