"""Guards the order of training pairs: it yields what its length says, nothing is seen twice in an epoch, no document
twice in a batch, and batch n is the same wherever one starts."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest

from model_code.training.batches import BatchSchedule, PairStream, couples, distinct_batches
from model_code.training.data import Pairs, Passages, TrainingData
from tests.model_code.training.example import LEAVES, make_data, make_settings


def one_kind(pairs: int, documents: int = 50) -> TrainingData:
    passages = Passages(["text"] * documents, np.arange(documents))
    numbers = np.arange(pairs) % documents
    made = Pairs(["query"] * pairs, numbers, [frozenset([int(n)]) for n in numbers])
    return TrainingData(passages, made, Pairs([], np.empty(0, np.int64), []))


@pytest.mark.parametrize(
    ("pairs", "size", "epochs", "accumulation"), [(50, 8, 1.0, 1), (50, 8, 2.5, 2), (7, 8, 3.0, 1), (64, 8, 1.0, 3)]
)
def test_length_is_what_it_yields(pairs: int, size: int, epochs: float, accumulation: int):
    settings = make_settings(
        supervision="supervised", batch_size=size, epochs=epochs, steps=None, accumulation=accumulation
    )
    schedule = BatchSchedule(one_kind(pairs), settings, seed=0)
    batches = list(schedule)
    assert len(batches) == len(schedule) == schedule.steps * accumulation
    assert {len(batch) for batch in batches} == {min(size, pairs)}
    with pytest.raises(IndexError):
        schedule[len(schedule)]


def test_steps_override_epochs():
    assert BatchSchedule(one_kind(50), make_settings(supervision="supervised", steps=3, epochs=9.0), seed=0).steps == 3


def test_a_handful_of_supervised_pairs_beside_many_others_is_told():
    """They alone set the number of steps, and a run of one step looks like any other."""
    documents, others = 400, 380
    passages = Passages([str(i) for i in range(documents)], np.arange(documents))
    queries = [f"q{i}" for i in range(others + 10)]
    few, many = (
        Pairs(queries[a:b], np.arange(a, b), [frozenset([i]) for i in range(a, b)]) for a, b in ((380, 390), (0, 380))
    )
    data, settings = TrainingData(passages, few, many), make_settings(supervision="joint", steps=None, batch_size=8)
    with pytest.warns(UserWarning, match="an epoch is one of the 10 supervised pairs; the 380 pseudo-queries alone"):
        assert BatchSchedule(data, settings, seed=0).steps < 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BatchSchedule(data, make_settings(supervision="joint", steps=5, batch_size=8), seed=0)
        BatchSchedule(TrainingData(passages, many, few), settings, seed=0)


def test_an_epoch_sees_every_pair_at_most_once_and_leaves_out_less_than_a_batch():
    stream = PairStream(np.arange(50), size=8, seed=0)
    for epoch in range(3):
        seen = np.concatenate([stream.batch(epoch * stream.per_epoch + i) for i in range(stream.per_epoch)])
        assert len(set(seen.tolist())) == len(seen) == 48


def test_epochs_and_seeds_differ_and_repeat():
    def first(seed: int, number: int) -> list[int]:
        return PairStream(np.arange(50), size=8, seed=seed).batch(number).tolist()

    assert first(0, 0) == first(0, 0)
    assert len({tuple(first(seed, number)) for seed in (0, 1) for number in (0, 6)}) == 4


def test_any_batch_can_be_had_without_those_before():
    settings = make_settings(steps=40)
    whole = [batch.tolist() for batch in BatchSchedule(make_data(), settings, seed=3)]
    again = BatchSchedule(make_data(), settings, seed=3)
    assert [again[number].tolist() for number in (37, 2, 20)] == [whole[number] for number in (37, 2, 20)]


def test_no_document_twice_in_a_batch_where_avoidable():
    documents = np.repeat(np.arange(20), 5)  # five queries each
    for batch in distinct_batches(np.random.default_rng(0).permutation(100), documents, 10)[:-1]:
        assert len(set(documents[batch])) == 10


def test_unavoidable_duplicates_fill_the_batch():
    batches = distinct_batches(np.arange(6), np.array([0, 0, 0, 0, 0, 1]), size=3)
    assert sorted(np.concatenate(batches).tolist()) == list(range(6))


def test_couples_share_a_leaf_and_nothing_is_lost():
    leaves = np.random.default_rng(1).integers(0, 5, 41)
    order = np.random.default_rng(2).permutation(41)
    coupled = couples(order, leaves)
    assert sorted(coupled.tolist()) == list(range(41))
    singles = [leaf for leaf, count in Counter(leaves.tolist()).items() if count % 2]
    neighbours, alone, i = 0, [], 0
    while i < 41:
        if i + 1 < 41 and leaves[coupled[i]] == leaves[coupled[i + 1]]:
            neighbours, i = neighbours + 1, i + 2
        else:
            alone.append(int(leaves[coupled[i]]))
            i += 1
    assert neighbours == (41 - len(singles)) // 2
    assert sorted(alone) == sorted(singles)


def test_sibling_batches_consist_of_couples():
    def share(batches: str) -> float:
        """How many pairs of a batch have a sibling in it."""
        settings = make_settings(supervision="supervised", batch_size=4, batches=batches, steps=60)
        data = TrainingData(make_data().passages, make_data().supervised, Pairs([], np.empty(0, np.int64), []))
        drawn = [LEAVES[batch] for batch in BatchSchedule(data, settings, seed=0, leaves=LEAVES)]
        return float(np.mean([np.mean([(leaves == leaf).sum() > 1 for leaf in leaves]) for leaves in drawn]))

    assert share("siblings") > 0.85 > 0.6 > share("random")


def test_joint_batches_have_both_kinds_in_their_shares():
    data = make_data()
    schedule = BatchSchedule(data, make_settings(batch_size=6, unsupervised_share=1 / 3), seed=0)
    for batch in schedule:
        assert (batch >= len(data.supervised)).tolist() == [False] * 4 + [True] * 2


def test_joint_training_without_qrels_is_unsupervised():
    data = make_data()
    only = TrainingData(data.passages, Pairs([], np.empty(0, np.int64), []), data.unsupervised)
    schedule = BatchSchedule(only, make_settings(batch_size=6, steps=None, epochs=2.0), seed=0)
    assert schedule.steps == 8
    assert {len(batch) for batch in schedule} == {6}
