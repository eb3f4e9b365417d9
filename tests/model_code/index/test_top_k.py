"""Guards the one top-k routine: order, ties, several passages of a document, stability for any k and passage order."""

from __future__ import annotations

import random

import numpy as np

from model_code.index.top_k import best_rows, top_k


def naive_ranking(scores: list[float], document_ids: list[str]) -> list[tuple[str, float]]:
    """Every document with its best score, sorted by the rule as it is written."""
    best: dict[str, float] = {}
    for score, document in zip(scores, document_ids, strict=True):
        best[document] = max(score, best.get(document, float("-inf")))
    return sorted(best.items(), key=lambda item: (-item[1], item[0]))


def test_against_the_full_sort_for_every_k_and_order() -> None:
    chance = random.Random(0)
    for passages in (1, 2, 7, 60):
        scores = [chance.choice([-1.0, 0.0, 0.25, 0.5]) for _ in range(passages)]
        document_ids = [f"d{chance.randint(0, passages // 2)}" for _ in range(passages)]
        expected = naive_ranking(scores, document_ids)
        for k in range(1, passages + 3):
            order = chance.sample(range(passages), passages)
            found = top_k(np.array([scores[i] for i in order]), [document_ids[i] for i in order], k)
            assert found == expected[:k]


def test_one_document_with_most_passages_does_not_hide_the_others() -> None:
    scores = np.array([0.9] * 50 + [0.5, 0.4])
    assert top_k(scores, ["long"] * 50 + ["b", "a"], k=3) == [("long", 0.9), ("b", 0.5), ("a", 0.4)]


def test_nothing_to_rank() -> None:
    assert top_k(np.array([]), [], k=3) == []


def test_the_best_rows_of_many_are_all_that_reach_the_last_of_the_best() -> None:
    chance = np.random.default_rng(0)
    for passages in (1, 5, 300, 5000):
        orders = (chance.permutation, np.sort, lambda scores: np.sort(scores)[::-1], lambda scores: scores * 0)
        for values, order in ((v, o) for v in (3, 50, 10**6) for o in orders):
            scores = order(chance.integers(values, size=passages)).astype(np.float32)
            for count in (1, 2, 26, 299, 1250, 1251, 4999, 6000):
                last = np.sort(scores)[::-1][min(count, passages) - 1]
                assert best_rows(scores, count).tolist() == np.flatnonzero(scores >= last).tolist()


def test_scores_that_are_no_numbers_are_no_results():
    scores = np.array([0.5, np.nan, 0.2, 0.9] * 300, dtype=np.float32)
    assert top_k(scores, [str(row) for row in range(1200)], k=1) == [("1003", np.float32(0.9))]
    assert top_k(np.full(1000, np.nan), [str(row) for row in range(1000)], k=1) == []
