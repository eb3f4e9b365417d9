"""Test batches that other processes prepare.

Run: python -m pytest tests/model_code/training/test_prefetch.py
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from model_code.training.prefetch import PrefetchedBatches

SCHEDULE = [np.array([0, 1]), np.array([2, 3]), np.array([4, 5])]


def number_and_pairs(number: int, pairs: np.ndarray) -> tuple[int, list[int]]:
    """Return the arguments, as a batch."""
    return number, pairs.tolist()


def environment(number: int, pairs: np.ndarray) -> tuple[int, str]:
    """Return the process and its setting of the tokenizer."""
    return os.getpid(), os.environ["TOKENIZERS_PARALLELISM"]


def test_batches_come_in_order():
    batches = PrefetchedBatches(number_and_pairs, SCHEDULE, [2, 0, 1], workers=2)
    made = [batches(number, SCHEDULE[number]) for number in (2, 0, 1)]
    assert made == [(2, [4, 5]), (0, [0, 1]), (1, [2, 3])]


def test_another_order_is_refused():
    batches = PrefetchedBatches(number_and_pairs, SCHEDULE, [0, 1], workers=1)
    with pytest.raises(ValueError, match="batch 0 is prepared"):
        batches(1, SCHEDULE[1])


# A fork does not copy the tokenizer's threads, so waiting for them would never end.
def test_workers_tokenize_in_one_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    batches = PrefetchedBatches(environment, SCHEDULE, [0], workers=1)

    process, parallelism = batches(0, SCHEDULE[0])

    assert parallelism == "false"
    assert process != os.getpid()
