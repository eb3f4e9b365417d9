"""Guards the token batches: every row once, the budget kept, hardly any padding."""

from __future__ import annotations

import random

from model_code.encoding.batching import pad, token_batches


def test_every_row_once_and_within_the_budget() -> None:
    chance = random.Random(0)
    for budget in (1, 64, 500):
        lengths = [chance.randint(2, 128) for _ in range(200)]
        batches = list(token_batches(lengths, budget))
        assert sorted(row for rows in batches for row in rows) == list(range(200))
        for rows in batches:
            assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= budget


def test_sorting_leaves_hardly_any_padding() -> None:
    chance = random.Random(0)
    lengths = [chance.randint(2, 128) for _ in range(500)]
    padded = sum(len(rows) * max(lengths[row] for row in rows) for rows in token_batches(lengths, 1024))
    assert padded <= 1.05 * sum(lengths)


def test_padding_is_masked() -> None:
    features = pad([[3, 4, 5], [], [6]], padding=9)
    assert features["input_ids"].tolist() == [[3, 4, 5], [9, 9, 9], [6, 9, 9]]
    assert features["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0]]
