"""Measures of agreement: their bounds, their weights, and values by hand."""

from __future__ import annotations

import random

import pytest

from model_code.evaluation.agreement import overlap_at, rank_biased_overlap

TEN = [str(number) for number in range(10)]


def test_overlap_counts_common_documents_in_any_order():
    assert overlap_at(TEN, list(reversed(TEN))) == 1.0
    assert overlap_at(TEN, [*TEN[:7], "x", "y", "z"]) == pytest.approx(0.7)


def test_documents_below_the_depth_do_not_count():
    assert overlap_at(["a", "b"], ["b", "a"], depth=1) == 0.0


def test_empty_rankings_agree():
    assert overlap_at([], []) == 1.0
    assert rank_biased_overlap([], []) == 1.0


def test_missing_ranking_disagrees():
    assert overlap_at(["a"], []) == 0.0
    assert rank_biased_overlap(["a"], []) == 0.0


def test_value_by_hand():
    # Overlaps are 0 at depth 1 and 1 at depth 2: 0.25 + (0.5 / 0.5) * (0 * 0.5 + 1 * 0.25).
    assert rank_biased_overlap(["a", "b"], ["b", "a"], persistence=0.5) == pytest.approx(0.5)


def test_difference_at_the_top_counts_more():
    top = ["x", *TEN[1:]]
    bottom = [*TEN[:9], "x"]

    assert rank_biased_overlap(TEN, top) < rank_biased_overlap(TEN, bottom)
    assert overlap_at(TEN, top) == overlap_at(TEN, bottom)


def test_agreement_is_symmetric_and_bounded():
    generator = random.Random(3)
    for _ in range(50):
        first = generator.sample(TEN, generator.randrange(1, 10))
        second = generator.sample(TEN, generator.randrange(1, 10))
        value = rank_biased_overlap(first, second)
        assert value == rank_biased_overlap(second, first)
        assert 0 <= value <= 1
