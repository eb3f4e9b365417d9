"""Guards the pages of encoders and indexes: a real picture of the curve beside its last rows, an
index's facts.
"""

from __future__ import annotations

import base64

import numpy as np

from assets.pages import index_page, learning_curve
from model_code.files import write_json
from model_code.retrieval.dense_index import DenseIndex


def test_learning_curve_is_shown_as_png(tmp_path):
    rows = [{"step": 0, "nDCG@10": 0.5}] + [
        {"step": step, "loss": 1 / step} for step in range(1, 20)
    ]
    write_json(tmp_path / "history.json", [*rows, {"step": 20, "loss": 0.1, "nDCG@10": 0.7}])
    shown = learning_curve(tmp_path)
    assert list(shown) == ["learning curve", "history"]
    prefix = "![training](data:image/png;base64,"
    text = shown["learning curve"].value
    assert text.startswith(prefix)
    assert base64.b64decode(text[len(prefix) : -1]).startswith(b"\x89PNG")
    assert [row.data["step"] for row in shown["history"].records] == list(range(11, 21))
    assert [column.name for column in shown["history"].schema.columns] == [
        "step",
        "loss",
        "nDCG@10",
    ]


def test_an_index_shows_its_kind_rows_and_size(tmp_path):
    DenseIndex.build(np.eye(4, dtype=np.float32), ["a", "a", "b", "c"], "f" * 64).save(
        tmp_path / "index"
    )
    facts = {row.data["fact"]: row.data["value"] for row in index_page(tmp_path)["index"].records}
    expected = {
        "kind": "dense",
        "passages": "4",
        "documents": "3",
        "factory": "Flat",
        "files": "3",
        "size": "0.0 MB",
    }
    assert expected.items() <= facts.items()
