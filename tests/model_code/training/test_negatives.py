"""Guards siblings and random negatives: where in the tree they come from, how many, and that none answers the query."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.training.data import Pairs, Passages, TrainingData, make_pairs
from model_code.training.negatives import make_negatives
from tests.model_code.training.example import LEAVES, make_passages, make_settings, make_tree

TREE = make_tree(np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32))


def one_pair_per_passage(passages: Passages) -> TrainingData:
    pairs = make_pairs(passages, [(f"query {i}", [i]) for i in range(len(passages.texts))])
    return TrainingData(passages, pairs, Pairs([], np.empty(0, np.int64), []))


def draw(
    passage: int, seed: int = 0, known: list[int] | None = None, batch: list[int] | None = None, **settings
) -> list[int]:
    sampler = make_negatives(one_pair_per_passage(make_passages()), make_settings(**settings), TREE)
    rows = [passage, *(batch or [])]
    own = [np.array(known or [passage]), *(np.array([other]) for other in batch or [])]
    return sampler.draw(np.array(rows), own, np.random.default_rng(seed))[0]


@pytest.mark.parametrize("passage", range(24))
def test_siblings_come_from_the_same_leaf(passage: int):
    drawn = draw(passage, negatives_per_query=3)
    assert all(LEAVES[other] == LEAVES[passage] and other != passage for other in drawn)
    assert len(set(drawn)) == len(drawn) == min(3, (LEAVES[passage] == LEAVES).sum() - 1)


def test_every_sibling_is_drawn_sooner_or_later():
    assert {other for seed in range(40) for other in draw(0, seed)} == {1, 2, 3, 4, 5}


def test_a_lower_m_deals_negatives_over_the_levels_below():
    """With M = 1 of two levels, equation 6 samples below the leaf and below its parent: the deepest comes first."""
    drawn = [draw(22, seed, negatives_per_query=2, hierarchy_levels=1) for seed in range(30)]
    assert {row[0] for row in drawn} == {23}  # leaf 5 holds passages 22 and 23
    assert {row[1] for row in drawn} == {19, 20, 21}  # and its parent leaf 4's


def test_documents_that_answer_the_query_are_never_drawn():
    assert {other for seed in range(20) for other in draw(0, seed, known=[0, 2, 3])} == {1, 4, 5}


def test_passages_of_the_batch_are_negatives_already():
    assert draw(19, batch=[20], negatives_per_query=2) == [21]
    assert draw(19, batch=[20, 21], negatives_per_query=2) == []


def test_random_negatives_come_from_everywhere():
    drawn = [draw(0, seed, negatives="random", negatives_per_query=4) for seed in range(60)]
    assert {len(row) for row in drawn} == {4}
    assert {other for row in drawn for other in row} == set(range(1, 24))


def test_a_corpus_smaller_than_the_wish_gives_what_it_has():
    data = one_pair_per_passage(Passages(["a", "b"], np.array([0, 1])))
    sampler = make_negatives(data, make_settings(negatives="random", negatives_per_query=9))
    assert sampler.draw(np.array([0]), [np.array([0])], np.random.default_rng(0)) == [[1]]


def test_none_wanted_none_drawn():
    assert draw(0, negatives_per_query=0) == []


def test_siblings_without_a_tree_are_refused():
    sampler = make_negatives(one_pair_per_passage(make_passages()), make_settings())
    with pytest.raises(FreshetError, match="there is none; set negatives"):
        sampler.draw(np.array([0]), [np.array([0])], np.random.default_rng(0))


def test_a_new_tree_gives_new_siblings():
    sampler = make_negatives(one_pair_per_passage(make_passages()), make_settings(negatives_per_query=6), TREE)
    other = replace(TREE, leaves=LEAVES[::-1].copy())
    sampler.recluster(other)
    drawn = sampler.draw(np.array([23]), [np.array([23])], np.random.default_rng(0))[0]
    assert set(drawn) == set(np.flatnonzero(other.leaves == other.leaves[23]).tolist()) - {23}
