"""Guards a batch's masks and paths against what the documents of each query say, written out pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_code.encoding.batching import Buckets
from model_code.encoding.layout import Prompts
from model_code.training.batches import BatchSchedule
from model_code.training.collator import Collator, TrainingBatch
from model_code.training.data import Pairs, Passages, TrainingData
from tests.model_code.training.example import make_data, make_settings, make_tree

TREE = make_tree(np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32))
NAMES: dict[str, int] = {}


def tokenize(texts, most):
    """One token per text, its number in NAMES, and a second one for every other text."""
    ids = torch.tensor([[NAMES.setdefault(text, len(NAMES)), 1] for text in texts])
    mask = torch.tensor([[1, i % 2] for i in range(len(texts))])
    return {"input_ids": ids, "attention_mask": mask}


def texts_of(buckets: Buckets) -> list[str]:
    numbers = torch.cat([part["input_ids"][:, 0] for part in buckets.parts])[buckets.rows].tolist()
    return [list(NAMES)[number] for number in numbers]


def two_passages_each() -> TrainingData:
    """12 documents: document d has passages d and d + 12; query i is answered by documents i and (i + 1) % 12."""
    passages = Passages([f"text {i}" for i in range(24)], np.arange(24) % 12)
    relevant = [frozenset({i, (i + 1) % 12}) for i in range(12)]
    pairs = Pairs([f"query {i}" for i in range(12)], np.arange(12), relevant)
    return TrainingData(passages, pairs, Pairs([], np.empty(0, np.int64), []))


def make_batch(number: int = 0, data: TrainingData | None = None, **settings) -> tuple[TrainingBatch, np.ndarray]:
    data, chosen = data or two_passages_each(), make_settings(**({"supervision": "supervised"} | settings))
    pairs = BatchSchedule(data, chosen, seed=1)[number]
    return Collator(data, chosen, tokenize, 1, TREE)(number, pairs), pairs


@pytest.mark.parametrize("number", range(4))
def test_relevant_marks_every_known_pair(number: int):
    batch, pairs = make_batch(number)
    expected = [[j in {i, (i + 1) % 12} for j in pairs] for i in pairs]
    assert batch.relevant.tolist() == expected


@pytest.mark.parametrize("negatives", ["siblings", "random"])
def test_own_negatives_are_the_querys_only(negatives: str):
    batch, pairs = make_batch(negatives=negatives)
    assert batch.allowed.sum(dim=1).max() <= 2
    assert batch.allowed.sum(dim=0).min() >= 1  # no document is encoded for nothing
    assert len(texts_of(batch.documents)) == len(pairs) + batch.allowed.shape[1]


def test_documents_are_the_positives_and_then_the_extra_ones():
    batch, pairs = make_batch()
    texts = texts_of(batch.documents)
    assert texts[: len(pairs)] == [f"text {i}" for i in pairs]
    assert texts_of(batch.queries) == [f"query {i}" for i in pairs]
    assert not set(texts[: len(pairs)]) & set(texts[len(pairs) :])


def test_prompts_stand_before_queries_and_documents():
    data, chosen = two_passages_each(), make_settings(supervision="supervised")
    pairs = BatchSchedule(data, chosen, seed=1)[0]
    bare, prompted = (
        Collator(data, chosen, tokenize, 1, TREE, prompts=prompts)(0, pairs)
        for prompts in (Prompts(), Prompts("q ", "d "))
    )
    assert texts_of(prompted.queries) == [f"q {text}" for text in texts_of(bare.queries)]
    assert texts_of(prompted.documents) == [f"d {text}" for text in texts_of(bare.documents)]


def test_paths_are_the_passages_ancestors_at_the_first_m_levels():
    batch, pairs = make_batch(hierarchy_levels=1)
    assert batch.paths.tolist() == [[TREE.path(i)[0]] for i in pairs]
    batch, pairs = make_batch()
    assert batch.paths.tolist() == [list(TREE.path(i)) for i in pairs]


def test_nodes_above_other_relevant_passages_are_no_negatives():
    batch, pairs = make_batch()
    for level, nodes in enumerate((2, 6)):
        for row, i in enumerate(pairs):
            above = {TREE.path(passage)[level] for d in (i, (i + 1) % 12) for passage in (d, d + 12)}
            assert set(batch.excluded[level][row].nonzero().flatten().tolist()) == above
            assert batch.excluded[level].shape == (len(pairs), nodes)


def test_nothing_is_excluded_where_a_query_has_one_passage():
    batch, _ = make_batch(data=make_data(), supervision="joint")
    assert batch.excluded == [None, None]


def test_without_weight_there_are_no_paths():
    batch, _ = make_batch(hierarchy_weight=0.0)
    assert batch.paths is None
    assert batch.excluded is None


def test_kinds_are_marked():
    batch, _ = make_batch(data=make_data(), supervision="joint")
    assert batch.unsupervised.tolist() == [False] * 3 + [True] * 3


def test_a_batch_depends_on_its_number_only():
    data, settings = make_data(), make_settings(negatives="random")
    schedule = BatchSchedule(data, settings, seed=1)
    one, other = (Collator(data, settings, tokenize, 1, TREE) for _ in range(2))
    for number in (0, 1, 2):
        other(number, schedule[number])
    first, again = one(2, schedule[2]), other(2, schedule[2])
    assert texts_of(first.documents) == texts_of(again.documents)
    assert texts_of(first.documents) != texts_of(one(3, schedule[2]).documents)
