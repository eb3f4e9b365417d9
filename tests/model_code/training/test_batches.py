"""Guards the order of training pairs: it yields what its length says, nothing is seen twice in an
epoch, no document twice in a batch, and batch n is the same wherever one starts; and a batch's
masks and paths against what the documents of each query say, written out pair by pair.
"""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest
import torch

from model_code.encoding.base_models import Prompts
from model_code.encoding.encoder import LengthBuckets
from model_code.training.batches import (
    BatchSchedule,
    Collator,
    PairStream,
    TrainingBatch,
    distinct_batches,
    pair_by_leaf,
)
from model_code.training.data import Pairs, Passages, TrainingData
from tests.model_code.training.example import LEAVES, NO_PAIRS, make_data, make_settings, make_tree


def one_kind(pairs: int, documents: int = 50) -> TrainingData:
    passages = Passages(["text"] * documents, np.arange(documents))
    numbers = np.arange(pairs) % documents
    made = Pairs(["query"] * pairs, numbers, [frozenset([int(n)]) for n in numbers])
    return TrainingData(passages, made, NO_PAIRS)


@pytest.mark.parametrize(
    ("pairs", "size", "epochs", "accumulation"),
    [(50, 8, 1.0, 1), (50, 8, 2.5, 2), (7, 8, 3.0, 1), (64, 8, 1.0, 3)],
)
def test_length_is_what_it_yields(pairs: int, size: int, epochs: float, accumulation: int):
    changes = {"batch_size": size, "epochs": epochs, "steps": None, "accumulation": accumulation}
    schedule = BatchSchedule(
        one_kind(pairs), make_settings(supervision="supervised", **changes), seed=0
    )
    batches = list(schedule)
    assert len(batches) == len(schedule) == schedule.steps * accumulation
    assert {len(batch) for batch in batches} == {min(size, pairs)}
    with pytest.raises(IndexError):
        schedule[len(schedule)]
    settings = make_settings(supervision="supervised", **changes | {"steps": 3})
    assert BatchSchedule(one_kind(pairs), settings, seed=0).steps == 3, "steps override epochs"


def test_short_epochs_are_warned_about():
    """They alone set the number of steps, and a run of one step looks like any other."""
    documents, others = 400, 380
    passages = Passages([str(i) for i in range(documents)], np.arange(documents))
    queries = [f"q{i}" for i in range(others + 10)]
    few, many = (
        Pairs(queries[a:b], np.arange(a, b), [frozenset([i]) for i in range(a, b)])
        for a, b in ((380, 390), (0, 380))
    )
    data, settings = (
        TrainingData(passages, few, many),
        make_settings(supervision="joint", steps=None, batch_size=8),
    )
    with pytest.warns(
        UserWarning,
        match="the 10 supervised pairs. The 380 pseudo-queries alone would take",
    ):
        assert BatchSchedule(data, settings, seed=0).steps < 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BatchSchedule(data, make_settings(supervision="joint", steps=5, batch_size=8), seed=0)
        BatchSchedule(TrainingData(passages, many, few), settings, seed=0)


def test_epoch_sees_every_pair_at_most_once():
    stream = PairStream(np.arange(50), size=8, seed=0)
    for epoch in range(3):
        seen = np.concatenate(
            [stream.batch(epoch * stream.per_epoch + i) for i in range(stream.per_epoch)]
        )
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
    assert [again[number].tolist() for number in (37, 2, 20)] == [
        whole[number] for number in (37, 2, 20)
    ]


def test_documents_repeat_in_a_batch_only_if_needed():
    documents = np.repeat(np.arange(20), 5)  # five queries each
    for batch in distinct_batches(np.random.default_rng(0).permutation(100), documents, 10)[:-1]:
        assert len(set(documents[batch])) == 10
    batches = distinct_batches(np.arange(6), np.array([0, 0, 0, 0, 0, 1]), size=3)
    assert sorted(np.concatenate(batches).tolist()) == list(range(6))


def test_couples_share_a_leaf_and_nothing_is_lost():
    leaves = np.random.default_rng(1).integers(0, 5, 41)
    order = np.random.default_rng(2).permutation(41)
    coupled = pair_by_leaf(order, leaves)
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
        data = TrainingData(make_data().passages, make_data().supervised, NO_PAIRS)
        drawn = [LEAVES[batch] for batch in BatchSchedule(data, settings, seed=0, leaves=LEAVES)]
        return float(
            np.mean([np.mean([(leaves == leaf).sum() > 1 for leaf in leaves]) for leaves in drawn])
        )

    assert share("siblings") > 0.85 > 0.6 > share("random")


def test_joint_batches_have_both_kinds_in_their_shares():
    data = make_data()
    schedule = BatchSchedule(data, make_settings(batch_size=6, unsupervised_share=1 / 3), seed=0)
    for batch in schedule:
        assert (batch >= len(data.supervised)).tolist() == [False] * 4 + [True] * 2


def test_joint_training_without_qrels_is_unsupervised():
    data = make_data()
    only = TrainingData(data.passages, NO_PAIRS, data.unsupervised)
    schedule = BatchSchedule(only, make_settings(batch_size=6, steps=None, epochs=2.0), seed=0)
    assert schedule.steps == 8
    assert {len(batch) for batch in schedule} == {6}


TREE = make_tree(np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32))
NAMES: dict[str, int] = {}


def tokenize(texts, most):
    """One token per text, its number in NAMES, and a second one for every other text."""
    ids = torch.tensor([[NAMES.setdefault(text, len(NAMES)), 1] for text in texts])
    mask = torch.tensor([[1, i % 2] for i in range(len(texts))])
    return {"input_ids": ids, "attention_mask": mask}


def texts_of(buckets: LengthBuckets) -> list[str]:
    numbers = torch.cat([part["input_ids"][:, 0] for part in buckets.batches])[
        buckets.rows
    ].tolist()
    return [list(NAMES)[number] for number in numbers]


def two_passages_each() -> TrainingData:
    """12 documents: document d has passages d and d + 12; query i is answered by documents i and (i
    + 1) % 12.
    """
    passages = Passages([f"text {i}" for i in range(24)], np.arange(24) % 12)
    relevant = [frozenset({i, (i + 1) % 12}) for i in range(12)]
    pairs = Pairs([f"query {i}" for i in range(12)], np.arange(12), relevant)
    return TrainingData(passages, pairs, NO_PAIRS)


def make_batch(
    number: int = 0, data: TrainingData | None = None, **settings
) -> tuple[TrainingBatch, np.ndarray]:
    data, chosen = (
        data or two_passages_each(),
        make_settings(**({"supervision": "supervised"} | settings)),
    )
    pairs = BatchSchedule(data, chosen, seed=1)[number]
    return Collator(data, chosen, tokenize, 1, TREE)(number, pairs), pairs


@pytest.mark.parametrize("number", range(4))
def test_relevant_marks_every_known_pair(number: int):
    batch, pairs = make_batch(number)
    expected = [[j in {i, (i + 1) % 12} for j in pairs] for i in pairs]
    assert batch.relevant.tolist() == expected


def test_documents_are_positives_then_extra_negatives():
    batch, pairs = make_batch()
    assert batch.allowed.sum(dim=1).max() <= 2
    assert batch.allowed.sum(dim=0).min() >= 1  # no document is encoded for nothing
    texts = texts_of(batch.documents)
    assert len(texts) == len(pairs) + batch.allowed.shape[1]
    assert texts[: len(pairs)] == [f"text {i}" for i in pairs]
    assert texts_of(batch.queries) == [f"query {i}" for i in pairs]
    assert not set(texts[: len(pairs)]) & set(texts[len(pairs) :])


def test_shared_negatives_are_those_of_every_query():
    batch, pairs = make_batch(shared_negatives=True)
    extra = [int(text.split()[1]) for text in texts_of(batch.documents)[len(pairs) :]]
    expected = [
        [passage % 12 not in {i, (i + 1) % 12} for passage in extra] for i in pairs.tolist()
    ]
    assert batch.allowed.tolist() == expected
    assert batch.allowed.sum() > make_batch()[0].allowed.sum()


def test_prompts_stand_before_queries_and_documents():
    data, chosen = two_passages_each(), make_settings(supervision="supervised")
    pairs = BatchSchedule(data, chosen, seed=1)[0]
    bare, prompted = (
        Collator(data, chosen, tokenize, 1, TREE, prompts=prompts)(0, pairs)
        for prompts in (Prompts(), Prompts("q ", "d "))
    )
    assert texts_of(prompted.queries) == [f"q {text}" for text in texts_of(bare.queries)]
    assert texts_of(prompted.documents) == [f"d {text}" for text in texts_of(bare.documents)]


def test_paths_are_ancestors_of_the_passages():
    batch, pairs = make_batch(hierarchy_levels=1)
    assert batch.paths.tolist() == [[TREE.path(i)[0]] for i in pairs]
    batch, pairs = make_batch()
    assert batch.paths.tolist() == [list(TREE.path(i)) for i in pairs]
    batch, _ = make_batch(hierarchy_weight=0.0)
    assert batch.paths is batch.excluded is None


def test_nodes_above_other_relevant_passages_are_no_negatives():
    batch, pairs = make_batch()
    for level, nodes in enumerate((2, 6)):
        for row, i in enumerate(pairs):
            above = {
                TREE.path(passage)[level] for d in (i, (i + 1) % 12) for passage in (d, d + 12)
            }
            assert set(batch.excluded[level][row].nonzero().flatten().tolist()) == above
            assert batch.excluded[level].shape == (len(pairs), nodes)


def test_queries_with_one_passage_exclude_nothing():
    batch, _ = make_batch(data=make_data(), supervision="joint")
    assert batch.excluded == [None, None]
    assert batch.unsupervised.tolist() == [False] * 3 + [True] * 3


def test_a_batch_depends_on_its_number_only():
    data, settings = make_data(), make_settings()
    schedule = BatchSchedule(data, settings, seed=1)
    one, other = (Collator(data, settings, tokenize, 1, TREE) for _ in range(2))
    for number in (0, 1, 2):
        other(number, schedule[number])
    first, again = one(2, schedule[2]), other(2, schedule[2])
    assert texts_of(first.documents) == texts_of(again.documents)
    assert texts_of(first.documents) != texts_of(one(3, schedule[2]).documents)
