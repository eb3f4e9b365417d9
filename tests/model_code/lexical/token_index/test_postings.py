"""Guards the compressed postings: every form of list gives back its passages, at all sizes where
forms change, and the sums of a batch are those of a dense product.
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


def held(passages: int, tokens: np.ndarray, seed: int = 0) -> np.ndarray:
    """Draw which passage holds which token, (N, t) bool, from rare to ubiquitous tokens."""
    chance = np.random.default_rng(seed)
    shares = np.geomspace(1 / passages, 1, len(tokens))
    matrix = chance.random((passages, len(tokens))) < shares
    matrix[chance.integers(passages), 0] = True
    matrix[:, -1] = True
    return matrix


def bags_of(matrix: np.ndarray, tokens: np.ndarray) -> Bags:
    return Bags.of([tokens[row] for row in matrix])


@pytest.mark.parametrize("passages", [1, 7, 8, 9, 255, 256, 257, 1000, 5000])
@pytest.mark.parametrize("widest", [60, 2**16 - 1, 2**16, 250_000])
def test_every_list_comes_back(passages: int, widest: int) -> None:
    tokens = np.append(3 * np.arange(15), widest)
    matrix = held(passages, tokens)
    postings = Postings.build(bags_of(matrix, tokens))
    found, where = postings.pairs()
    back = np.zeros_like(matrix)
    back[where, np.searchsorted(tokens, found)] = True
    assert (back == matrix).all()
    assert len(found) == len(postings) == matrix.sum()


def test_a_full_block() -> None:
    tokens = np.arange(3)
    passages = [
        np.array([0, 65535]),
        np.arange(0, MAX_BLOCK_PASSAGES, 100),
        np.arange(MAX_BLOCK_PASSAGES),
    ]
    owners, held_by = np.concatenate(passages), np.repeat(tokens, [len(p) for p in passages])
    postings = Postings.build(Bags(held_by[np.argsort(owners, kind="stable")], np.bincount(owners)))
    found, where = postings.pairs()
    assert choose_forms(np.bincount(held_by), MAX_BLOCK_PASSAGES).tolist() == [RAW, SPLIT, BITMAP]
    for token in tokens:
        assert (np.sort(where[found == token]) == passages[token]).all()


def test_each_list_has_its_shortest_form() -> None:
    tokens = np.arange(40)
    matrix = held(3000, tokens)
    counts, packed = matrix.sum(axis=0), Postings.build(bags_of(matrix, tokens)).packed
    assert set(choose_forms(counts, 3000).tolist()) == {RAW, SPLIT, BITMAP}
    lists = sum(getattr(packed, part).nbytes for part in PARTS[2:])
    assert lists == sum(min(2 * n, n + (n + 12 + 7) // 8, 375) for n in counts.tolist())
    assert array_lengths(counts, 3000) == {part: len(getattr(packed, part)) for part in PARTS}, (
        "where blocks end in a file"
    )


@pytest.mark.parametrize("passages", [1, 9, 700])
def test_sums_are_a_dense_product(passages: int) -> None:
    chance = np.random.default_rng(3)
    tokens = np.arange(0, 80, 2)
    matrix = held(passages, tokens)
    postings = Postings.build(bags_of(matrix, tokens))
    asked = [np.sort(chance.choice(90, size, replace=False)) for size in (0, 1, 40, 90)]
    weights = [chance.integers(1, 1000, len(query)).astype(np.float64) for query in asked]
    dense = np.zeros((4, 90))
    for row, (query, weight) in enumerate(zip(asked, weights, strict=True)):
        dense[row, query] = weight
    owners = np.repeat(np.arange(4), [len(query) for query in asked])
    batch = QueryBatch(np.concatenate(asked), np.concatenate(weights), owners, 4)
    wanted = dense[:, tokens] @ matrix.T.astype(np.float64)
    assert (postings.sums(batch) == wanted).all()
    some = chance.permutation(passages)[:50]
    assert (postings.sums_at(batch, some) == wanted[:, some]).all()


def test_passages_without_tokens() -> None:
    postings = Postings.build(Bags.of([[], [], []]))
    batch = QueryBatch(np.array([4]), np.array([1.0]), np.array([0]), 1)
    assert postings.sums(batch).tolist() == [[0.0, 0.0, 0.0]]
    assert len(postings) == len(postings.pairs()[0]) == 0
