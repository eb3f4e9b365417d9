"""Guards BM25: its scores against the formula in float64, best passage per document, ties by id, empty corner cases."""

from __future__ import annotations

import math

import pytest

from model_code.index.bm25 import Bm25
from model_code.index.settings import Bm25Settings

TEXTS = ["sort list numbers", "sort sort table", "read file", "read table file numbers numbers", "read file"]
DOCUMENTS = ["b", "b", "d", "a", "c"]


def formula(query: str, k1: float, b: float) -> list[float]:
    """The module docstring's formula, word by word, for each of `TEXTS`."""
    passages = [text.split() for text in TEXTS]
    mean = sum(map(len, passages)) / len(passages)
    scores = []
    for passage in passages:
        score = 0.0
        for term in query.split():
            having = sum(term in other for other in passages)
            idf = math.log(1 + (len(passages) - having + 0.5) / (having + 0.5))
            f = passage.count(term)
            score += idf * f / (f + k1 * (1 - b + b * len(passage) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75)])
def test_scores_and_ranks_follow_the_formula(k1: float, b: float) -> None:
    index = Bm25(TEXTS, DOCUMENTS, Bm25Settings(k1=k1, b=b))
    for query in ("sort", "numbers table", "read file numbers", "sort sort"):
        best: dict[str, float] = {}
        for document, score in zip(DOCUMENTS, formula(query, k1, b), strict=True):
            best[document] = max(score, best.get(document, 0.0))
        expected = sorted(((d, s) for d, s in best.items() if s > 0), key=lambda item: (-round(item[1], 5), item[0]))
        found = index.search([query], k=10)[0]
        assert [document for document, _ in found] == [document for document, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], rel=1e-5)


def test_equal_documents_tie_by_id_and_k_cuts() -> None:
    index = Bm25(TEXTS, DOCUMENTS)
    assert [document for document, _ in index.search(["read file"], k=2)[0]] == ["c", "d"]


def test_nothing_in_common_and_nothing_at_all() -> None:
    index = Bm25([*TEXTS, ""], [*DOCUMENTS, "e"])
    assert index.search(["zebra", "", "the", "zebra read"], k=1)[:3] == [[], [], []]
    assert index.search(["zebra read"], k=1)[0][0][0] == "c"
    assert Bm25(["the", "a"], ["x", "y"]).search(["sort"], k=1) == [[]]
    kept = Bm25(["the cat", "dog"], ["x", "y"], Bm25Settings(stopwords=None))
    assert [document for document, _ in kept.search(["the"], k=2)[0]] == ["x"]


def test_allowed_documents_are_ranked_as_among_all() -> None:
    index = Bm25(TEXTS, DOCUMENTS)
    whole = index.search(["sort table numbers read"], 9)[0]
    assert len(whole) == 4
    for allowed in (["a", "c"], ["b"], [], ["unknown"]):
        found = index.search(["sort table numbers read"], 2, allowed)[0]
        assert found == [hit for hit in whole if hit[0] in allowed][:2]
