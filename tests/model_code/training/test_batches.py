"""Tests of the order of training pairs and of the content of a batch.

A schedule yields the number of batches that its length says, no pair twice in an epoch, and no
document twice in a batch. Batch n is the same wherever a run starts. The masks and paths of a batch
are compared with the documents of each query, pair by pair.
"""

from __future__ import annotations

import warnings
from collections import Counter
from time import process_time

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


def make_supervised_data(pairs: int, documents: int = 50) -> TrainingData:
    """Make supervised pairs that go through the documents in turn, and no pseudo-queries."""
    passages = Passages(["text"] * documents, np.arange(documents))
    numbers = np.arange(pairs) % documents
    relevant = [frozenset([int(number)]) for number in numbers]
    return TrainingData(passages, Pairs(["query"] * pairs, numbers, relevant), NO_PAIRS)


@pytest.mark.parametrize(
    ("pairs", "size", "epochs", "accumulation"),
    [(50, 8, 1.0, 1), (50, 8, 2.5, 2), (7, 8, 3.0, 1), (64, 8, 1.0, 3)],
)
def test_schedule_yields_as_many_batches_as_its_length(
    pairs: int, size: int, epochs: float, accumulation: int
):
    settings = make_settings(
        supervision="supervised",
        batch_size=size,
        epochs=epochs,
        steps=None,
        accumulation=accumulation,
    )
    schedule = BatchSchedule(make_supervised_data(pairs), settings, seed=0)

    batches = list(schedule)

    assert len(batches) == len(schedule)
    assert len(batches) == schedule.steps * accumulation
    assert {len(batch) for batch in batches} == {min(size, pairs)}
    with pytest.raises(IndexError):
        schedule[len(schedule)]


def test_steps_override_epochs():
    settings = make_settings(supervision="supervised", batch_size=8, epochs=2.5, steps=3)

    assert BatchSchedule(make_supervised_data(50), settings, seed=0).steps == 3


def make_one_pair_per_document(first: int, last: int) -> Pairs:
    """Make one pair for each document from `first` up to, but not including, `last`."""
    documents = range(first, last)
    queries = [f"q{document}" for document in documents]
    relevant = [frozenset([document]) for document in documents]
    return Pairs(queries, np.arange(first, last), relevant)


def make_uneven_data(supervised: Pairs, unsupervised: Pairs) -> TrainingData:
    """Make data of 400 documents from pairs of very different numbers."""
    passages = Passages([str(i) for i in range(400)], np.arange(400))
    return TrainingData(passages, supervised, unsupervised)


def test_few_supervised_pairs_are_warned_about():
    """They alone set the number of steps, and a run of one step looks like any other."""
    data = make_uneven_data(
        supervised=make_one_pair_per_document(380, 390),
        unsupervised=make_one_pair_per_document(0, 380),
    )
    settings = make_settings(supervision="joint", steps=None, batch_size=8)

    with pytest.warns(
        UserWarning,
        match="the 10 supervised pairs. The 380 pseudo-queries alone would take",
    ):
        schedule = BatchSchedule(data, settings, seed=0)

    assert schedule.steps < 20


def test_chosen_steps_are_not_warned_about():
    data = make_uneven_data(
        supervised=make_one_pair_per_document(380, 390),
        unsupervised=make_one_pair_per_document(0, 380),
    )
    settings = make_settings(supervision="joint", steps=5, batch_size=8)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BatchSchedule(data, settings, seed=0)


def test_many_supervised_pairs_are_not_warned_about():
    data = make_uneven_data(
        supervised=make_one_pair_per_document(0, 380),
        unsupervised=make_one_pair_per_document(380, 390),
    )
    settings = make_settings(supervision="joint", steps=None, batch_size=8)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BatchSchedule(data, settings, seed=0)


def test_epoch_sees_every_pair_at_most_once():
    stream = PairStream(np.arange(50), size=8, seed=0)

    for epoch in range(3):
        first = epoch * stream.per_epoch
        batches = [stream.batch(first + number) for number in range(stream.per_epoch)]
        pairs = np.concatenate(batches).tolist()
        assert len(pairs) == 48
        assert len(set(pairs)) == 48


def draw_pairs(seed: int, number: int) -> list[int]:
    """Return one batch of a stream of 50 pairs, whose epochs have six batches."""
    return PairStream(np.arange(50), size=8, seed=seed).batch(number).tolist()


def test_equal_seeds_repeat_a_batch():
    assert draw_pairs(seed=0, number=0) == draw_pairs(seed=0, number=0)


def test_epochs_and_seeds_differ():
    first_batches = [
        draw_pairs(seed=0, number=0),
        draw_pairs(seed=0, number=6),
        draw_pairs(seed=1, number=0),
        draw_pairs(seed=1, number=6),
    ]

    assert len({tuple(batch) for batch in first_batches}) == 4


def test_any_batch_can_be_had_without_those_before():
    settings = make_settings(steps=40)
    whole = [batch.tolist() for batch in BatchSchedule(make_data(), settings, seed=3)]

    again = BatchSchedule(make_data(), settings, seed=3)

    for number in (37, 2, 20):
        assert again[number].tolist() == whole[number]


def test_documents_of_a_batch_are_distinct():
    queries_per_document = 5
    documents = np.repeat(np.arange(20), queries_per_document)
    order = np.random.default_rng(0).permutation(100)

    batches = distinct_batches(order, documents, 10)

    for batch in batches[:-1]:
        assert len(set(documents[batch])) == 10


def test_repeated_documents_fill_the_last_batches():
    documents = np.array([0, 0, 0, 0, 0, 1])

    batches = distinct_batches(np.arange(6), documents, size=3)

    assert sorted(np.concatenate(batches).tolist()) == list(range(6))


def test_document_with_most_pairs_does_not_slow_batches_down():
    documents = np.arange(40_000)
    documents[:20_000] = 0
    order = np.random.default_rng(0).permutation(40_000)

    def measure_seconds(of_pair: np.ndarray) -> float:
        start = process_time()
        distinct_batches(order, of_pair, size=8)
        return process_time() - start

    assert measure_seconds(documents) < 10 * measure_seconds(np.arange(40_000))


def test_pairing_by_leaf_loses_nothing():
    leaves = np.random.default_rng(1).integers(0, 5, 41)
    order = np.random.default_rng(2).permutation(41)

    paired = pair_by_leaf(order, leaves)

    assert sorted(paired.tolist()) == list(range(41))


def test_pairs_of_a_leaf_are_put_together():
    leaves = np.random.default_rng(1).integers(0, 5, 41)
    order = np.random.default_rng(2).permutation(41)
    leaf_counts = Counter(leaves.tolist())
    odd_leaves = [leaf for leaf, count in leaf_counts.items() if count % 2]

    paired_leaves = leaves[pair_by_leaf(order, leaves)].tolist()

    couples = 0
    single_leaves = []
    position = 0
    while position < 41:
        if paired_leaves[position : position + 2] == [paired_leaves[position]] * 2:
            couples += 1
            position += 2
        else:
            single_leaves.append(paired_leaves[position])
            position += 1
    assert couples == (41 - len(odd_leaves)) // 2
    assert sorted(single_leaves) == sorted(odd_leaves)


def share_with_sibling(batches: str) -> float:
    """Return the share of pairs that have a sibling in their batch."""
    settings = make_settings(supervision="supervised", batch_size=4, batches=batches, steps=60)
    data = TrainingData(make_data().passages, make_data().supervised, NO_PAIRS)

    batch_shares = []
    for batch in BatchSchedule(data, settings, seed=0, leaves=LEAVES):
        leaves = LEAVES[batch]
        have_sibling = [(leaves == leaf).sum() > 1 for leaf in leaves]
        batch_shares.append(np.mean(have_sibling))
    return float(np.mean(batch_shares))


def test_sibling_batches_consist_of_couples():
    assert share_with_sibling("siblings") > 0.85
    assert share_with_sibling("random") < 0.6


def test_joint_batches_have_both_kinds_in_their_shares():
    data = make_data()
    schedule = BatchSchedule(data, make_settings(batch_size=6, unsupervised_share=1 / 3), seed=0)

    for batch in schedule:
        is_unsupervised = batch >= len(data.supervised)
        assert is_unsupervised.tolist() == [False] * 4 + [True] * 2


def test_joint_training_without_qrels_is_unsupervised():
    data = make_data()
    unsupervised = TrainingData(data.passages, NO_PAIRS, data.unsupervised)

    settings = make_settings(batch_size=6, steps=None, epochs=2.0)
    schedule = BatchSchedule(unsupervised, settings, seed=0)

    assert schedule.steps == 8
    assert {len(batch) for batch in schedule} == {6}


TREE = make_tree(np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32))
TEXT_NUMBERS: dict[str, int] = {}


def tokenize(texts, max_tokens):
    """Return one token per text, its number in TEXT_NUMBERS, and a second for every other text."""
    ids = []
    mask = []
    for position, text in enumerate(texts):
        number = TEXT_NUMBERS.setdefault(text, len(TEXT_NUMBERS))
        ids.append([number, 1])
        mask.append([1, position % 2])
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def texts_of(buckets: LengthBuckets) -> list[str]:
    """Return the texts that `tokenize` encoded, in their order before bucketing."""
    first_tokens = torch.cat([bucket["input_ids"][:, 0] for bucket in buckets.batches])
    texts = list(TEXT_NUMBERS)
    return [texts[number] for number in first_tokens[buckets.rows].tolist()]


def answering_documents(query: int) -> set[int]:
    """Return the documents that answer a query of `make_two_passage_data`."""
    return {query, (query + 1) % 12}


def make_two_passage_data() -> TrainingData:
    """Make 12 documents and 12 queries: document d has the passages d and d + 12."""
    passages = Passages([f"text {i}" for i in range(24)], np.arange(24) % 12)
    relevant = [frozenset(answering_documents(query)) for query in range(12)]
    pairs = Pairs([f"query {i}" for i in range(12)], np.arange(12), relevant)
    return TrainingData(passages, pairs, NO_PAIRS)


def make_batch(
    number: int = 0, data: TrainingData | None = None, **settings
) -> tuple[TrainingBatch, np.ndarray]:
    """Return a batch and its pairs, supervised unless told otherwise."""
    if data is None:
        data = make_two_passage_data()
    settings.setdefault("supervision", "supervised")
    training_settings = make_settings(**settings)

    pairs = BatchSchedule(data, training_settings, seed=1)[number]
    batch = Collator(data, training_settings, tokenize, 1, TREE)(number, pairs)
    return batch, pairs


@pytest.mark.parametrize("number", range(4))
def test_relevant_marks_every_known_pair(number: int):
    batch, pairs = make_batch(number)

    for row, query in enumerate(pairs.tolist()):
        expected = [document in answering_documents(query) for document in pairs.tolist()]
        assert batch.relevant[row].tolist() == expected


def test_documents_are_positives_then_extra_negatives():
    batch, pairs = make_batch()
    extra_negatives = batch.allowed.shape[1]

    documents = texts_of(batch.documents)
    positives = documents[: len(pairs)]
    negatives = documents[len(pairs) :]

    assert texts_of(batch.queries) == [f"query {i}" for i in pairs]
    assert positives == [f"text {i}" for i in pairs]
    assert len(negatives) == extra_negatives
    assert not set(positives) & set(negatives)


def test_every_extra_negative_is_used():
    batch, _ = make_batch()
    negatives_per_query = batch.allowed.sum(dim=1)
    queries_per_negative = batch.allowed.sum(dim=0)

    assert negatives_per_query.max() <= 2
    assert queries_per_negative.min() >= 1


def test_shared_negatives_are_those_of_every_query():
    batch, pairs = make_batch(shared_negatives=True)
    extra_texts = texts_of(batch.documents)[len(pairs) :]
    extra_documents = [int(text.split()[1]) % 12 for text in extra_texts]

    for row, query in enumerate(pairs.tolist()):
        expected = [document not in answering_documents(query) for document in extra_documents]
        assert batch.allowed[row].tolist() == expected


def test_shared_negatives_are_more_than_own_negatives():
    shared, _ = make_batch(shared_negatives=True)
    separate, _ = make_batch()

    assert shared.allowed.sum() > separate.allowed.sum()


def test_prompts_precede_queries_and_documents():
    data = make_two_passage_data()
    settings = make_settings(supervision="supervised")
    pairs = BatchSchedule(data, settings, seed=1)[0]

    bare = Collator(data, settings, tokenize, 1, TREE, prompts=Prompts())(0, pairs)
    prompted = Collator(data, settings, tokenize, 1, TREE, prompts=Prompts("q ", "d "))(0, pairs)

    assert texts_of(prompted.queries) == [f"q {text}" for text in texts_of(bare.queries)]
    assert texts_of(prompted.documents) == [f"d {text}" for text in texts_of(bare.documents)]


def test_paths_are_ancestors_of_the_passages():
    batch, pairs = make_batch()

    assert batch.paths.tolist() == [list(TREE.path(passage)) for passage in pairs]


def test_paths_end_at_the_lowest_level_with_a_loss():
    batch, pairs = make_batch(hierarchy_levels=1)

    assert batch.paths.tolist() == [[TREE.path(passage)[0]] for passage in pairs]


def test_without_hierarchy_loss_there_are_no_paths():
    batch, _ = make_batch(hierarchy_weight=0.0)

    assert batch.paths is None
    assert batch.excluded is None


@pytest.mark.parametrize(("level", "nodes"), [(0, 2), (1, 6)])
def test_ancestors_of_relevant_passages_are_no_negatives(level: int, nodes: int):
    batch, pairs = make_batch()
    excluded = batch.excluded[level]

    assert excluded.shape == (len(pairs), nodes)
    for row, query in enumerate(pairs.tolist()):
        ancestors = set()
        for document in answering_documents(query):
            ancestors.add(TREE.path(document)[level])
            ancestors.add(TREE.path(document + 12)[level])
        assert set(excluded[row].nonzero().flatten().tolist()) == ancestors


def test_queries_with_one_passage_exclude_nothing():
    batch, _ = make_batch(data=make_data(), supervision="joint")

    assert batch.excluded == [None, None]
    assert batch.unsupervised.tolist() == [False] * 3 + [True] * 3


def test_batch_depends_on_its_number_only():
    data = make_data()
    settings = make_settings()
    schedule = BatchSchedule(data, settings, seed=1)
    collator = Collator(data, settings, tokenize, 1, TREE)
    used_collator = Collator(data, settings, tokenize, 1, TREE)
    for number in (0, 1, 2):
        used_collator(number, schedule[number])

    batch = collator(2, schedule[2])
    repeated = used_collator(2, schedule[2])
    other_number = collator(3, schedule[2])

    assert texts_of(repeated.documents) == texts_of(batch.documents)
    assert texts_of(other_number.documents) != texts_of(batch.documents)
