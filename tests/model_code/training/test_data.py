"""Guards how judgements become pairs: one per relevant document, its best passage, and all that is known relevant."""

from __future__ import annotations

import numpy as np

from model_code.training.data import Pairs, Passages, TrainingData, make_pairs


def long_documents() -> Passages:
    return Passages(["alpha beta", "gamma delta", "gamma gamma beta", "delta"], np.array([0, 1, 0, 2]))


def test_passages_of_a_document_need_not_be_neighbours():
    assert [long_documents().of(document).tolist() for document in range(3)] == [[0, 2], [1], [3]]


def test_a_pair_takes_the_passage_that_shares_most_words_and_the_first_of_equals():
    passages = long_documents()
    assert passages.best(0, "Gamma, beta!") == 2
    assert passages.best(0, "beta") == 0
    assert passages.best(0, "nothing in common") == 0


def test_every_relevant_document_makes_a_pair_and_is_known():
    pairs = make_pairs(long_documents(), [("beta gamma", [0, 2]), ("delta", [1])])
    assert list(pairs.queries) == ["beta gamma", "beta gamma", "delta"]
    assert pairs.passages.tolist() == [2, 3, 1]
    assert list(pairs.relevant) == [frozenset({0, 2}), frozenset({0, 2}), frozenset({1})]


def test_equal_queries_know_of_each_other_across_both_kinds():
    passages = long_documents()
    data = TrainingData(
        passages, make_pairs(passages, [("delta", [1])]), make_pairs(passages, [("delta", [2]), ("beta", [0])])
    )
    assert list(data.pairs.relevant) == [frozenset({1, 2}), frozenset({1, 2}), frozenset({0})]
    assert data.pairs.passages.tolist() == [1, 3, 0]


def test_no_judgements_make_no_pairs():
    pairs = make_pairs(long_documents(), [])
    assert isinstance(pairs, Pairs)
    assert len(pairs) == 0
    assert pairs.passages.dtype == np.int64
