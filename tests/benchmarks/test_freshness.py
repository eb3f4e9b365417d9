"""Guards `freshet bench freshness`: measured through a real service, with verdicts that follow from
the numbers, and a check for mixed generations that can fail.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.freshness import STEPS, SearchLog, documents, require_found, rows
from model_code.errors import FreshetError
from tests.benchmarks.rows import COLUMNS
from tests.tiny_encoder import make_tiny_encoder


@pytest.mark.full
def test_rows_are_measured(tmp_path, monkeypatch):
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    texts = [f"{each['title']} {each['text']}" for each in documents("single", 30)]
    base = make_tiny_encoder(
        tmp_path / "tiny", [*texts, "the marked page of this edition of the almanac"]
    )
    found = rows(passages=300, singles=3, batch=10, seconds=0.6, readers=2, base=base)
    kinds = ["p50", "p95", "10 documents", *STEPS, "failed", "mix", "search p50", "search p99"]
    assert all(kind in each["what"] for kind, each in zip(kinds, found, strict=True))
    for each in found:
        assert list(each) == COLUMNS
        assert each["ratio"] == pytest.approx(each["ours"] / each["peer"])
    assert [each["met"] for each in found[-4:-2]] == [True, True]
    steps = found[3 : 3 + len(STEPS)]
    assert all(each["ours"] > 0 for each in steps)
    assert 0.3 < sum(each["ratio"] for each in steps) < 1
    assert found[0]["met"] == (found[0]["ours"] <= 0.1)
    assert found[2]["met"] == (found[2]["ratio"] <= 1.5)


def test_a_mixed_answer_is_noticed():
    reading = SearchLog(editions={1: "one", 2: "two"})
    reading.answers = [(1, ("one",) * 5), (2, ("two",) * 5), (9, ("other",) * 5)]
    assert reading.mixed == 0
    reading.answers += [(1, ("two",) * 5), (2, ("one", *("two",) * 4)), (2, ("two",) * 4)]
    assert reading.mixed == 3


def test_what_is_not_found_is_an_error():
    class Blind:
        def search(self, text, k):
            return SimpleNamespace(hits=[SimpleNamespace(document_id="another")])

    with pytest.raises(FreshetError, match=r"document a\.0 was sent, but another is found"):
        require_found(Blind(), documents("a", 1)[0], SimpleNamespace(searchable=True))
