"""Guards the bench `token-index`: complete rows that follow from their numbers, on a BEIR folder and, where no data set
is at hand, on docstrings; and that the index passes its checks against a product over all postings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import token_index
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"{a}{b}" for a in ("red", "blue", "old", "new", "wet", "dry", "big", "odd") for b in ("cat", "dog", "car")]


def write_beir(folder: Path) -> Path:
    """60 documents of random words in BEIR layout, and for each a question of three of its words."""
    chance = np.random.default_rng(0)
    (folder / "qrels").mkdir(parents=True)
    texts = [" ".join(chance.choice(WORDS, 12)) for _ in range(60)]
    documents = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": " ".join(text.split()[:3])} for i, text in enumerate(texts)]
    for name, lines in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(60))
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


def check(found: list[dict[str, Any]]) -> None:
    for line in found:
        assert list(line) == ["what", "ours", "peer", "ratio", "goal", "met"]
        if "seconds to the first" in line["what"]:
            assert line["met"] is (line["ours"] <= line["peer"])
            continue
        less_is_better = "bytes" in line["what"]
        ratio = line["peer"] / line["ours"] if less_is_better else line["ours"] / line["peer"]
        assert line["ratio"] == pytest.approx(ratio)
        assert line["met"] is (line["ratio"] >= line["goal"])
    kinds = ["documents/s", "batch", "one at a time", "all 128", "recall", "recall", "recall", "bytes", "first answer"]
    kinds += ["documents/s built", "queries/s in a batch", "one at a time"]
    assert all(kind in line["what"] for kind, line in zip(kinds, found, strict=True))
    recalls = [line["ours"] for line in found[4:6]]
    assert recalls == [1.0, 1.0]


def test_on_a_folder(tmp_path: Path) -> None:
    base = make_tiny_encoder(tmp_path / "encoder", WORDS)
    check(token_index.rows(write_beir(tmp_path / "data"), base, questions=10, repeats=1))


def test_on_docstrings_where_there_is_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_index, "SQUAD", tmp_path / "absent")
    monkeypatch.setattr(token_index, "PACKAGES", ("logging", "email"))
    base = make_tiny_encoder(tmp_path / "encoder", ["log message handler the a of"])
    found = token_index.rows(base=base, questions=10, repeats=1)
    check(found)
    assert found[0]["what"].startswith("docstrings")
