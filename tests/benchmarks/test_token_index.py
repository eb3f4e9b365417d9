"""Guards the bench `token-index`: complete rows that follow from their numbers, on a BEIR folder
and, where no data set is at hand, on docstrings; and that the index passes its checks against a
product over all postings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import token_index
from tests.benchmarks.rows import WORDS, check, write_beir
from tests.tiny_encoder import make_tiny_encoder


def check_all(found: list[dict[str, Any]]) -> None:
    kinds = [
        "documents/s",
        "batch",
        "one at a time",
        "all 128",
        "recall",
        "recall",
        "recall",
        "bytes",
        "first answer",
    ]
    kinds += ["documents/s built", "queries/s in a batch", "one at a time"]
    assert all(kind in line["what"] for kind, line in zip(kinds, found, strict=True))
    # The fifth and sixth rows are recalls.
    assert [line["ours"] for line in found[4:6]] == [1.0, 1.0]
    # Of a size, less is better.
    size = found.pop(7)
    assert size["ratio"] == pytest.approx(size["peer"] / size["ours"])
    assert size["met"] is (size["ratio"] >= size["goal"])
    check(found)


def test_on_a_folder(tmp_path: Path) -> None:
    """60 documents of random words, and for each a question of three of its words."""
    chance = np.random.default_rng(0)
    texts = [" ".join(chance.choice(WORDS, 12)) for _ in range(60)]
    folder = write_beir(
        tmp_path / "data", "dev", texts, [" ".join(text.split()[:3]) for text in texts]
    )
    base = make_tiny_encoder(tmp_path / "encoder", WORDS)

    check_all(token_index.rows(folder, base, questions=10, repeats=1))


def test_on_docstrings_where_there_is_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_index, "SQUAD", tmp_path / "absent")
    monkeypatch.setattr(token_index, "PACKAGES", ("logging", "email"))
    base = make_tiny_encoder(tmp_path / "encoder", ["log message handler the a of"])
    found = token_index.rows(base=base, questions=10, repeats=1)

    assert found[0]["what"].startswith("docstrings")
    check_all(found)
