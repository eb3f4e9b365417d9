"""Tests of selecting the best documents and rows.

The order, the ties and the stability of `top_k` hold for any k and any order of the passages. The
ranking of token scores gives the same. Exact search has the scores and rows of a full sort,
whatever number of queries is searched at once.
"""

from __future__ import annotations

import random
from time import process_time
from typing import NamedTuple

import numpy as np
import pytest

from model_code.retrieval import top_k as selection
from model_code.retrieval.id_map import IdMap, IdMaps
from model_code.retrieval.top_k import nearest_rows, select_best_rows, top_k


def rank_by_sorting(scores: list[float], document_ids: list[str]) -> list[tuple[str, float]]:
    """Return every document with its best score, best first; equal scores by id."""
    best: dict[str, float] = {}
    for score, document in zip(scores, document_ids, strict=True):
        best[document] = max(score, best.get(document, float("-inf")))

    def sort_key(hit: tuple[str, float]) -> tuple[float, str]:
        document, score = hit
        return -score, document

    return sorted(best.items(), key=sort_key)


@pytest.mark.parametrize("passages", [1, 2, 7, 60])
def test_top_k_equals_full_sort(passages: int) -> None:
    chance = random.Random(passages)
    scores = [chance.choice([-1.0, 0.0, 0.25, 0.5]) for _ in range(passages)]
    document_ids = [f"d{chance.randint(0, passages // 2)}" for _ in range(passages)]
    expected = rank_by_sorting(scores, document_ids)

    for k in range(1, passages + 3):
        order = chance.sample(range(passages), passages)
        shuffled_scores = np.array([scores[row] for row in order])
        shuffled_ids = [document_ids[row] for row in order]
        assert top_k(shuffled_scores, shuffled_ids, k) == expected[:k]


def test_many_passages_do_not_hide_other_documents() -> None:
    scores = np.array([0.9] * 50 + [0.5, 0.4])

    ranking = top_k(scores, ["long"] * 50 + ["b", "a"], k=3)

    assert ranking == [("long", 0.9), ("b", 0.5), ("a", 0.4)]


def sort_descending(scores: np.ndarray) -> np.ndarray:
    """Sort scores, largest first."""
    return np.sort(scores)[::-1]


@pytest.mark.parametrize("passages", [1, 5, 300, 5000])
@pytest.mark.parametrize("order", ["random", "ascending", "descending", "equal"])
@pytest.mark.parametrize("different_scores", [3, 50, 10**6])
def test_best_rows_include_ties_with_the_last(
    passages: int, order: str, different_scores: int
) -> None:
    chance = np.random.default_rng(0)
    scores = chance.integers(different_scores, size=passages).astype(np.float32)
    if order == "ascending":
        scores = np.sort(scores)
    elif order == "descending":
        scores = sort_descending(scores)
    elif order == "equal":
        scores = np.zeros_like(scores)

    for count in (1, 2, 26, 299, 1250, 1251, 4999, 6000):
        last_score = sort_descending(scores)[min(count, passages) - 1]
        expected = np.flatnonzero(scores >= last_score)
        assert select_best_rows(scores, count).tolist() == expected.tolist()


def test_scores_that_are_no_numbers_are_no_results() -> None:
    scores = np.array([0.5, np.nan, 0.2, 0.9] * 300, dtype=np.float32)
    document_ids = [str(row) for row in range(1200)]

    assert top_k(scores, document_ids, k=1) == [("1003", np.float32(0.9))]


def test_only_nan_scores_give_no_results() -> None:
    document_ids = [str(row) for row in range(1000)]

    assert top_k(np.full(1000, np.nan), document_ids, k=1) == []


@pytest.mark.parametrize("k", [1, 2, 50, 100])
def test_top_k_of_selected_rows_equals_a_smaller_index(k: int) -> None:
    chance = np.random.default_rng(0)
    document_ids = [f"d{i}" for i in chance.integers(75, size=300)]
    scores = np.round(np.exp(chance.standard_normal(300)), 1)
    rows = chance.permutation(300)[:77]
    ids_of_rows = [document_ids[row] for row in rows]

    ranking = top_k(scores[rows], document_ids, k, rows)

    assert ranking == top_k(scores[rows], ids_of_rows, k)


def without_zero_scores(ranking: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Leave out the documents that no query token matches."""
    return [(document, score) for document, score in ranking if score > 0]


class TokenScores(NamedTuple):
    """Scores of 300 passages, some 0 and some equal, and the documents of the passages."""

    document_ids: list[str]
    scores: np.ndarray
    # A random third of the rows.
    rows: np.ndarray


def make_token_scores(seed: int, passages_per_document: int) -> TokenScores:
    """Make random scores."""
    chance = np.random.default_rng(seed)
    document_ids = [str(row) for row in range(300)]
    if passages_per_document > 1:
        documents = chance.integers(300 // passages_per_document, size=300)
        document_ids = [f"d{document}é" for document in documents]
    scores = np.round(np.exp(6 * chance.standard_normal(300)), 1).astype(np.float32)
    return TokenScores(document_ids, scores, chance.permutation(300)[:99])


@pytest.fixture(params=[0, selection.MIN_SCORES_FOR_GROUPS])
def _min_scores_for_groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank in groups always, or for many scores only."""
    monkeypatch.setattr(selection, "MIN_SCORES_FOR_GROUPS", request.param)


@pytest.mark.usefixtures("_min_scores_for_groups")
@pytest.mark.parametrize("has_several_indexes", [False, True])
@pytest.mark.parametrize("passages", [1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_best_documents_leave_out_zero_scores(
    seed: int, passages: int, has_several_indexes: bool
) -> None:
    document_ids, scores, rows = make_token_scores(seed, passages)
    ids = IdMap(document_ids)
    if has_several_indexes:
        ids = IdMaps([(ids, frozenset()), (IdMap([]), frozenset())])

    for k in (1, 2, 50, 98, 99, 299, 300, 1000):
        expected = without_zero_scores(top_k(scores, document_ids, k))
        expected_of_rows = without_zero_scores(top_k(scores[rows], document_ids, k, rows))
        assert ids.best_documents(scores, k) == expected
        assert ids.best_documents(scores[rows], k, rows) == expected_of_rows
    assert ids.best_documents(np.zeros(300, np.float32), 3) == []


def test_few_matches_do_not_slow_a_search_down() -> None:
    ids = IdMap([f"d{number}" for number in range(50_000)])
    many_matches = np.random.default_rng(0).random(50_000, np.float32)
    few_matches = np.where(np.arange(50_000) < 20, many_matches, np.float32(0))

    def measure_seconds(scores: np.ndarray) -> float:
        start = process_time()
        for _ in range(10):
            ids.best_documents(scores, 100)
            select_best_rows(scores, 100)
        return process_time() - start

    measure_seconds(many_matches)
    assert measure_seconds(few_matches) < 10 * measure_seconds(many_matches)


def test_nothing_to_rank_gives_no_results() -> None:
    assert top_k(np.zeros(0), [], 3) == []
    assert IdMap([]).best_documents(np.zeros(0, np.float32), 3) == []


def make_whole_numbers(seed: int, rows: int) -> np.ndarray:
    """Make vectors (rows, 6) whose inner products are exact in float32, and often equal."""
    return np.random.default_rng(seed).integers(-2, 3, size=(rows, 6)).astype(np.float32)


class ExactSearch(NamedTuple):
    """Queries, vectors and what a full sort of all products gives."""

    queries: np.ndarray
    vectors: np.ndarray
    products: np.ndarray
    # Rows of the vectors for each query, nearest first.
    order: np.ndarray


def make_exact_search(queries: int, passages: int) -> ExactSearch:
    """Make vectors of whole numbers, and sort all their products."""
    query_vectors = make_whole_numbers(1, queries)
    vectors = make_whole_numbers(0, passages)
    products = query_vectors.astype(int) @ vectors.astype(int).T
    order = np.argsort(-products, axis=1, kind="stable")
    return ExactSearch(query_vectors, vectors, products, order)


@pytest.fixture(params=[1, 700, selection.MAX_SCORES_IN_MEMORY])
def _max_scores_in_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep few or many scores in memory at a time."""
    monkeypatch.setattr(selection, "MAX_SCORES_IN_MEMORY", request.param)


query_counts = pytest.mark.parametrize("queries", [0, 1, 5, selection.MIN_QUERIES_FOR_MATMUL, 40])
passage_counts = pytest.mark.parametrize("passages", [0, 1, 30, 600])


@pytest.mark.usefixtures("_max_scores_in_memory")
@query_counts
@passage_counts
def test_nearest_rows_are_those_of_a_full_sort(queries: int, passages: int) -> None:
    search = make_exact_search(queries, passages)

    for count in (1, 10, 100, 1000):
        blocks = np.array_split(search.vectors, 3)
        scores, rows = nearest_rows(search.queries, blocks, count)
        assert scores.dtype == np.float32
        assert rows.dtype == np.int64
        np.testing.assert_array_equal(rows, search.order[:, :count])
        expected_scores = np.take_along_axis(search.products, rows, axis=1)
        np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.usefixtures("_max_scores_in_memory")
@query_counts
@passage_counts
def test_excluded_rows_are_not_found(queries: int, passages: int) -> None:
    search = make_exact_search(queries, passages)
    excluded_rows = np.arange(0, passages, 5)
    remaining = passages - len(excluded_rows)
    remaining_order = search.order[search.order % 5 > 0].reshape(queries, remaining)

    for count in (1, 10, 100, 1000):
        scores, rows = nearest_rows(
            search.queries, [search.vectors], count, excluded_rows=excluded_rows
        )
        np.testing.assert_array_equal(rows[:, :remaining], remaining_order[:, :count])
        assert (scores[:, remaining:] == -np.inf).all()


@pytest.mark.parametrize(
    ("passages", "queries", "blocks"),
    [
        # The scores of MIN_QUERIES_FOR_MATMUL queries exceed the limit.
        (
            1_000,
            2 * selection.MIN_QUERIES_FOR_MATMUL + 5,
            [selection.MIN_QUERIES_FOR_MATMUL, selection.MIN_QUERIES_FOR_MATMUL, 5],
        ),
        # Each block has as many queries as the limit allows.
        (60, 41, [16, 16, 9]),
        (60, 16, [16]),
    ],
)
def test_large_searches_use_blocks_of_queries(passages, queries, blocks, monkeypatch):
    """A smaller block would go through all vectors once for each query."""
    monkeypatch.setattr(selection, "MAX_SCORES_IN_MEMORY", 16 * 60)
    chance = np.random.default_rng(0)
    query_vectors = chance.standard_normal((queries, 48), np.float32)
    vectors = chance.standard_normal((passages, 48), np.float32)
    compute_products = selection._inner_products
    block_sizes = []

    def count_and_compute(block: np.ndarray, block_vectors: np.ndarray) -> np.ndarray:
        block_sizes.append(len(block))
        return compute_products(block, block_vectors)

    monkeypatch.setattr(selection, "_inner_products", count_and_compute)
    scores, rows = nearest_rows(query_vectors, [vectors], 20)

    products = query_vectors.astype(np.float64) @ vectors.astype(np.float64).T
    expected_rows = np.argsort(-products, axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, np.take_along_axis(products, rows, axis=1), rtol=1e-5)
    assert block_sizes == blocks
