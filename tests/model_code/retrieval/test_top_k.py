"""Guards selection: the top-k routine's order, ties and stability for any k and passage order; that
the ranker of token scores gives the same; and exact search, whose scores and rows are those of a
full sort, whatever is asked at once.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from model_code.retrieval import top_k as selection
from model_code.retrieval.id_map import IdMap, IdMaps
from model_code.retrieval.top_k import nearest_rows, select_best_rows, top_k


def naive_ranking(scores: list[float], document_ids: list[str]) -> list[tuple[str, float]]:
    """Every document with its best score, sorted by the rule as it is written."""
    best: dict[str, float] = {}
    for score, document in zip(scores, document_ids, strict=True):
        best[document] = max(score, best.get(document, float("-inf")))
    return sorted(best.items(), key=lambda item: (-item[1], item[0]))


def test_top_k_equals_full_sort() -> None:
    chance = random.Random(0)
    for passages in (1, 2, 7, 60):
        scores = [chance.choice([-1.0, 0.0, 0.25, 0.5]) for _ in range(passages)]
        document_ids = [f"d{chance.randint(0, passages // 2)}" for _ in range(passages)]
        expected = naive_ranking(scores, document_ids)
        for k in range(1, passages + 3):
            order = chance.sample(range(passages), passages)
            found = top_k(np.array([scores[i] for i in order]), [document_ids[i] for i in order], k)
            assert found == expected[:k]


def test_many_passages_do_not_hide_other_documents() -> None:
    scores = np.array([0.9] * 50 + [0.5, 0.4])
    assert top_k(scores, ["long"] * 50 + ["b", "a"], k=3) == [("long", 0.9), ("b", 0.5), ("a", 0.4)]


def test_best_rows_include_ties_with_the_last() -> None:
    chance = np.random.default_rng(0)
    for passages in (1, 5, 300, 5000):
        orders = (
            chance.permutation,
            np.sort,
            lambda scores: np.sort(scores)[::-1],
            lambda scores: scores * 0,
        )
        for values, order in ((v, o) for v in (3, 50, 10**6) for o in orders):
            scores = order(chance.integers(values, size=passages)).astype(np.float32)
            for count in (1, 2, 26, 299, 1250, 1251, 4999, 6000):
                last = np.sort(scores)[::-1][min(count, passages) - 1]
                assert (
                    select_best_rows(scores, count).tolist()
                    == np.flatnonzero(scores >= last).tolist()
                )


def test_scores_that_are_no_numbers_are_no_results():
    scores = np.array([0.5, np.nan, 0.2, 0.9] * 300, dtype=np.float32)
    assert top_k(scores, [str(row) for row in range(1200)], k=1) == [("1003", np.float32(0.9))]
    assert top_k(np.full(1000, np.nan), [str(row) for row in range(1000)], k=1) == []


def test_top_k_of_some_rows_equals_all() -> None:
    chance = np.random.default_rng(0)
    ids, scores = (
        [f"d{i}" for i in chance.integers(75, size=300)],
        np.round(np.exp(chance.standard_normal(300)), 1),
    )
    some = chance.permutation(300)[:77]
    for k in (1, 2, 50, 100):
        assert top_k(scores[some], ids, k, some) == top_k(
            scores[some], [ids[row] for row in some], k
        )


@pytest.mark.parametrize("many", [0, selection.MIN_SCORES_FOR_GROUPS])
@pytest.mark.parametrize("passages", [1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_zero_scores_can_be_left_out(
    seed: int, passages: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "MIN_SCORES_FOR_GROUPS", many)
    chance = np.random.default_rng(seed)
    names = (
        [f"d{i}é" for i in chance.integers(300 // passages, size=300)]
        if passages > 1
        else list(map(str, range(300)))
    )
    # some are 0, some equal
    scores = np.round(np.exp(6 * chance.standard_normal(300)), 1).astype(np.float32)
    some = chance.permutation(300)[:99]
    for ids in (IdMap(names), IdMaps([(IdMap(names), frozenset()), (IdMap([]), frozenset())])):
        for k in (1, 2, 50, 98, 99, 299, 300, 1000):
            assert ids.best_documents(scores, k) == [
                item for item in top_k(scores, names, k) if item[1] > 0
            ]
            expected = [item for item in top_k(scores[some], names, k, some) if item[1] > 0]
            assert ids.best_documents(scores[some], k, some) == expected
        assert ids.best_documents(np.zeros(300, np.float32), 3) == []


def test_there_is_nothing_to_rank() -> None:
    assert top_k(np.zeros(0), [], 3) == IdMap([]).best_documents(np.zeros(0, np.float32), 3) == []


def whole_numbers(seed: int, rows: int) -> np.ndarray:
    """(rows, 6): their inner products are exact in float32, and many are equal."""
    return np.random.default_rng(seed).integers(-2, 3, size=(rows, 6)).astype(np.float32)


@pytest.mark.parametrize("asked", [0, 1, 5, selection.MIN_QUERIES_FOR_MATMUL, 40])
@pytest.mark.parametrize("kept", [1, 700, selection.MAX_SCORES_IN_MEMORY])
def test_the_nearest_are_those_of_a_full_sort(
    asked: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number of scores is in memory at a time."""
    monkeypatch.setattr(selection, "MAX_SCORES_IN_MEMORY", kept)
    queries = whole_numbers(1, asked)
    for passages in (0, 1, 30, 600):
        vectors = whole_numbers(0, passages)
        products = queries.astype(int) @ vectors.astype(int).T
        order = np.argsort(-products, axis=1, kind="stable")
        for count in (1, 10, 100, 1000):
            scores, rows = nearest_rows(queries, np.array_split(vectors, 3), count)
            assert scores.dtype == np.float32
            assert rows.dtype == np.int64
            np.testing.assert_array_equal(rows, order[:, :count])
            np.testing.assert_array_equal(scores, np.take_along_axis(products, rows, axis=1))
            left = order[order % 5 > 0].reshape(asked, passages - -(-passages // 5))
            scores, rows = nearest_rows(
                queries, [vectors], count, excluded_rows=np.arange(0, passages, 5)
            )
            np.testing.assert_array_equal(rows[:, : left.shape[1]], left[:, :count])
            assert (scores[:, left.shape[1] :] == -np.inf).all()


@pytest.mark.parametrize(
    ("passages", "asked", "blocks"),
    [
        # FEW queries' scores are too many
        (
            1_000,
            2 * selection.MIN_QUERIES_FOR_MATMUL + 5,
            [selection.MIN_QUERIES_FOR_MATMUL, selection.MIN_QUERIES_FOR_MATMUL, 5],
        ),
        (60, 41, [16, 16, 9]),  # as many queries as their scores have room for
        (60, 16, [16]),
    ],
)
def test_large_searches_use_blocks_of_queries(passages, asked, blocks, monkeypatch):
    """A block of fewer than FEW queries would go through all vectors once for each of them."""
    monkeypatch.setattr(selection, "MAX_SCORES_IN_MEMORY", 16 * 60)
    chance = np.random.default_rng(0)
    queries, vectors = (chance.standard_normal((n, 48), np.float32) for n in (asked, passages))
    products, seen = selection._inner_products, []

    def counted(some: np.ndarray, among: np.ndarray) -> np.ndarray:
        seen.append(len(some))
        return products(some, among)

    monkeypatch.setattr(selection, "_inner_products", counted)
    scores, rows = nearest_rows(queries, [vectors], 20)
    oracle = queries.astype(np.float64) @ vectors.astype(np.float64).T
    np.testing.assert_array_equal(rows, np.argsort(-oracle, axis=1, kind="stable")[:, :20])
    np.testing.assert_allclose(scores, np.take_along_axis(oracle, rows, axis=1), rtol=1e-5)
    assert seen == blocks
