"""Tests of the division of texts into batches of tokens."""

from __future__ import annotations

import random

import numpy as np
import pytest

from model_code.encoding.tokens import token_batches


def draw_lengths(count: int, longest: int) -> list[int]:
    rng = random.Random(0)
    return [rng.randint(2, longest) for _ in range(count)]


def padded_tokens(rows: list[int], lengths: list[int]) -> int:
    return len(rows) * max(lengths[row] for row in rows)


@pytest.mark.parametrize("budget", [1, 64, 500])
def test_batches_hold_every_row_within_the_budget(budget: int) -> None:
    lengths = draw_lengths(200, longest=128)

    batches = list(token_batches(lengths, budget))

    assert sorted(np.concatenate(batches).tolist()) == list(range(200))
    for rows in batches:
        assert len(rows) == 1 or padded_tokens(rows, lengths) <= budget


def test_batches_have_little_padding() -> None:
    lengths = draw_lengths(500, longest=128)

    batches = token_batches(lengths, 1024)

    assert sum(padded_tokens(rows, lengths) for rows in batches) <= 1.05 * sum(lengths)


def test_even_batches_are_not_padded() -> None:
    lengths = draw_lengths(200, longest=12)

    batches = list(token_batches(lengths, 64, even=True))

    assert sorted(np.concatenate(batches).tolist()) == list(range(200))
    for rows in batches:
        assert len({lengths[row] for row in rows}) == 1
        assert padded_tokens(rows, lengths) <= 64
    assert len(batches) < 60
