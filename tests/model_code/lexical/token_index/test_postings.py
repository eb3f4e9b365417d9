"""Tests of the compressed postings.

Every form of list gives back its passages, at all sizes where forms change. The sums of a batch are
those of a dense product.
"""

from __future__ import annotations

import numpy as np
import pytest

from model_code.lexical.token_index.bags import Bags
from model_code.lexical.token_index.postings import (
    BITMAP,
    MAX_BLOCK_PASSAGES,
    PARTS,
    RAW,
    SPLIT,
    Postings,
    QueryBatch,
    array_lengths,
    choose_forms,
)


def draw_token_matrix(passages: int, tokens: np.ndarray, seed: int = 0) -> np.ndarray:
    """Draw which passage holds which token, (N, t) bool, from rare to ubiquitous tokens."""
    chance = np.random.default_rng(seed)
    shares = np.geomspace(1 / passages, 1, len(tokens))
    matrix = chance.random((passages, len(tokens))) < shares
    matrix[chance.integers(passages), 0] = True
    matrix[:, -1] = True
    return matrix


def build_postings(matrix: np.ndarray, tokens: np.ndarray) -> Postings:
    """Build the postings of a token matrix."""
    return Postings.build(Bags.of([tokens[row] for row in matrix]))


@pytest.mark.parametrize("passages", [1, 7, 8, 9, 255, 256, 257, 1000, 5000])
@pytest.mark.parametrize("last_token", [60, 2**16 - 1, 2**16, 250_000])
def test_every_list_comes_back(passages: int, last_token: int) -> None:
    tokens = np.append(3 * np.arange(15), last_token)
    matrix = draw_token_matrix(passages, tokens)

    postings = build_postings(matrix, tokens)

    posted_tokens, posted_passages = postings.pairs()
    restored = np.zeros_like(matrix)
    restored[posted_passages, np.searchsorted(tokens, posted_tokens)] = True
    assert (restored == matrix).all()
    assert len(posted_tokens) == matrix.sum()
    assert len(postings) == matrix.sum()


# Passages of three tokens in a full block: two, some and all.
FULL_BLOCK = [
    np.array([0, 65535]),
    np.arange(0, MAX_BLOCK_PASSAGES, 100),
    np.arange(MAX_BLOCK_PASSAGES),
]


def test_full_block_has_every_form() -> None:
    counts = np.array([len(passages) for passages in FULL_BLOCK])

    assert choose_forms(counts, MAX_BLOCK_PASSAGES).tolist() == [RAW, SPLIT, BITMAP]


def test_lists_of_a_full_block_come_back() -> None:
    passages = np.concatenate(FULL_BLOCK)
    tokens = np.repeat(np.arange(3), [len(passages) for passages in FULL_BLOCK])
    by_passage = np.argsort(passages, kind="stable")

    postings = Postings.build(Bags(tokens[by_passage], np.bincount(passages)))

    posted_tokens, posted_passages = postings.pairs()
    for token, expected in enumerate(FULL_BLOCK):
        assert (np.sort(posted_passages[posted_tokens == token]) == expected).all()


def test_lists_have_their_shortest_form() -> None:
    tokens = np.arange(40)
    matrix = draw_token_matrix(3000, tokens)
    counts = matrix.sum(axis=0)

    packed = build_postings(matrix, tokens).packed

    shortest = 0
    for count in counts.tolist():
        raw_bytes = 2 * count
        split_bytes = count + (count + 12 + 7) // 8
        bitmap_bytes = 375
        shortest += min(raw_bytes, split_bytes, bitmap_bytes)
    assert set(choose_forms(counts, 3000).tolist()) == {RAW, SPLIT, BITMAP}
    assert sum(getattr(packed, part).nbytes for part in PARTS[2:]) == shortest


def test_array_lengths_tell_where_a_block_ends() -> None:
    tokens = np.arange(40)
    matrix = draw_token_matrix(3000, tokens)

    packed = build_postings(matrix, tokens).packed

    lengths = {part: len(getattr(packed, part)) for part in PARTS}
    assert array_lengths(matrix.sum(axis=0), 3000) == lengths


@pytest.mark.parametrize("passages", [1, 9, 700])
def test_sums_are_a_dense_product(passages: int) -> None:
    chance = np.random.default_rng(3)
    tokens = np.arange(0, 80, 2)
    matrix = draw_token_matrix(passages, tokens)
    postings = build_postings(matrix, tokens)
    queries = [np.sort(chance.choice(90, size, replace=False)) for size in (0, 1, 40, 90)]
    weights = [chance.integers(1, 1000, len(query)).astype(np.float64) for query in queries]
    query_rows = np.repeat(np.arange(4), [len(query) for query in queries])
    batch = QueryBatch(np.concatenate(queries), np.concatenate(weights), query_rows, 4)

    sums = postings.sums(batch)
    some_passages = chance.permutation(passages)[:50]
    sums_of_some = postings.sums_at(batch, some_passages)

    query_matrix = np.zeros((4, 90))
    for row, (query, query_weights) in enumerate(zip(queries, weights, strict=True)):
        query_matrix[row, query] = query_weights
    expected = query_matrix[:, tokens] @ matrix.T.astype(np.float64)
    assert (sums == expected).all()
    assert (sums_of_some == expected[:, some_passages]).all()


def test_passages_without_tokens_have_no_postings() -> None:
    postings = Postings.build(Bags.of([[], [], []]))

    posted_tokens, _ = postings.pairs()

    assert len(postings) == 0
    assert len(posted_tokens) == 0


def test_sums_of_passages_without_tokens_are_zero() -> None:
    postings = Postings.build(Bags.of([[], [], []]))
    batch = QueryBatch(np.array([4]), np.array([1.0]), np.array([0]), 1)

    assert postings.sums(batch).tolist() == [[0.0, 0.0, 0.0]]
