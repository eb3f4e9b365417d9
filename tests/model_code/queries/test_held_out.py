"""Guards the held-out split of pseudo-queries: shares, stability when documents come and go, dependence on the seed."""

from __future__ import annotations

from collections import Counter

from model_code.queries.held_out import split_of

IDS = [f"document-{i}" for i in range(5000)]


def test_shares_are_met():
    counts = Counter(split_of(i, 0.1, 0.2, seed=1) for i in IDS)
    assert abs(counts["dev"] / 5000 - 0.1) < 0.015  # 3.5 standard errors
    assert abs(counts["test"] / 5000 - 0.2) < 0.02


def test_no_share_holds_nothing_out():
    assert {split_of(i, 0.0, 0.0, seed=1) for i in IDS} == {"train"}


def test_more_test_queries_take_none_from_dev():
    dev = [i for i in IDS if split_of(i, 0.1, 0.2, seed=1) == "dev"]
    assert dev == [i for i in IDS if split_of(i, 0.1, 0.5, seed=1) == "dev"]


def test_the_seed_draws_other_documents():
    assert [split_of(i, 0.3, 0.3, seed=1) for i in IDS] != [split_of(i, 0.3, 0.3, seed=2) for i in IDS]
