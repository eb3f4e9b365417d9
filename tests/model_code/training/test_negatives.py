"""Tests of extra negatives.

Siblings: from where in the tree they come, how many they are, and that none answers the query.
BM25: the ranks, against a loop over all passages, and every filter. A run that resumes draws the
same negatives as an uninterrupted one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.errors import FreshetError
from model_code.retrieval.bm25_index import Bm25Index
from model_code.training.data import Passages, TrainingData, make_pairs
from model_code.training.negatives import NegativeSampler, make_negative_sampler
from model_code.training.trainer import Trainer
from tests.model_code.training.example import (
    LEAVES,
    NO_PAIRS,
    WORDS,
    encoder_weights,
    make_dev,
    make_encoder,
    make_passages,
    make_settings,
    make_tree,
)
from tests.model_code.training.example import make_data as example_data
from tests.model_code.training.killing import kill_at

TREE = make_tree(np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32))


def make_data() -> TrainingData:
    """Make 24 passages of 20 documents, of which the last four have two.

    Every third query has two answers. One query comes twice, with different answers.
    """
    random = np.random.default_rng(1)
    texts = [" ".join(random.choice(WORDS[:15], 5)) for _ in LEAVES]
    passages = Passages(texts, np.array([*range(20), *range(16, 20)]))

    judged = []
    for document, text in enumerate(texts[:20]):
        query = " ".join(text.split()[:2])
        relevant = [document]
        if document % 3 == 0:
            relevant.append((document + 7) % 20)
        judged.append((query, relevant))
    repeated_query = judged[3][0]
    generated = [(repeated_query, [5]), (" ".join(texts[2].split()[3:]), [2])]

    supervised = make_pairs(passages, judged)
    return TrainingData(passages, supervised, make_pairs(passages, generated))


DATA = make_data()


def relevant_passages(pair: int) -> np.ndarray:
    """Return every passage of the documents that answer the query of a pair."""
    documents = sorted(DATA.pairs.relevant[pair])
    return np.concatenate([DATA.passages.of(document) for document in documents])


def make_sampler(negatives: str, **settings) -> NegativeSampler:
    """Make the sampler of DATA for a kind of negatives."""
    return make_negative_sampler(DATA, make_settings(negatives=negatives, **settings), TREE)


def bm25_candidates(pair: int, depth: int = 50) -> list[int]:
    """Return the passages that `bm25` may draw for a pair, best first.

    This is a loop over all passages that follows the documentation of the settings.
    """
    texts = DATA.passages.texts
    index = Bm25Index.build(texts, [str(i) for i in range(len(texts))])
    hits = index.search([DATA.pairs.queries[pair]], len(texts))[0]
    answering = set(relevant_passages(pair).tolist())

    rounded_scores = {}
    for passage_id, score in hits:
        if score > 0 and int(passage_id) not in answering:
            rounded_scores[int(passage_id)] = round(score, 5)

    def rank(passage: int) -> tuple[float, int]:
        return -rounded_scores[passage], passage

    return sorted(rounded_scores, key=rank)[:depth]


def draw_for_pair(sampler: NegativeSampler, pair: int, seed: int) -> list[int]:
    """Draw the negatives of a pair that is alone in its batch."""
    pairs = np.array([pair])
    return sampler.draw(pairs, [relevant_passages(pair)], np.random.default_rng(seed))[0]


def draw_often(sampler: NegativeSampler, pair: int, draws: int = 40) -> set[int]:
    """Return all negatives of a pair over many seeds; each draw has at most two, all different."""
    drawn = set()
    for seed in range(draws):
        row = draw_for_pair(sampler, pair, seed)
        assert len(row) <= 2
        assert len(row) == len(set(row))
        drawn.update(row)
    return drawn


@pytest.mark.parametrize("depth", [50, 4])
def test_draws_come_from_the_chosen_ranks(depth: int):
    sampler = make_sampler("bm25", negatives_depth=depth)
    assert any(bm25_candidates(pair, depth) for pair in range(len(DATA.pairs)))

    for pair in range(0, len(DATA.pairs), 3):
        assert draw_often(sampler, pair, draws=60) == set(bm25_candidates(pair, depth)), pair


ANSWER_WORDS = dict(zip(DATA.pairs.queries[:12], WORDS, strict=False))


def make_sampler_with_answers(negatives: str) -> NegativeSampler:
    """Make a sampler whose first twelve queries have one of WORDS as their answer."""
    answers = {query: [f"The {word}!"] for query, word in ANSWER_WORDS.items()}
    data = replace(DATA, supervised=replace(DATA.supervised, answers=answers))
    settings = make_settings(negatives=negatives, negatives_per_query=2)
    return make_negative_sampler(data, settings, TREE)


@pytest.mark.parametrize("kind", ["bm25", "siblings"])
def test_passages_with_an_answer_are_never_drawn(kind: str):
    filtered = make_sampler_with_answers(kind)
    unfiltered = make_sampler(kind)

    dropped = 0
    for pair, query in enumerate(DATA.pairs.queries):
        answer = ANSWER_WORDS.get(query)
        with_answer = set()
        for passage, text in enumerate(DATA.passages.texts):
            if answer in text.split():
                with_answer.add(passage)
        candidates = draw_often(unfiltered, pair, 80)

        assert draw_often(filtered, pair, 80) == candidates - with_answer
        dropped += len(candidates & with_answer)

    assert dropped > 5


@pytest.mark.parametrize("kind", ["bm25", "siblings"])
def test_queries_without_answers_draw_alike(kind: str):
    filtered = make_sampler_with_answers(kind)
    unfiltered = make_sampler(kind)
    pairs_without_answer = []
    for pair, query in enumerate(DATA.pairs.queries):
        if query not in ANSWER_WORDS:
            pairs_without_answer.append(pair)

    assert pairs_without_answer
    for pair in pairs_without_answer:
        assert draw_for_pair(filtered, pair, seed=7) == draw_for_pair(unfiltered, pair, seed=7)


def test_passages_with_an_answer_are_no_shared_negatives():
    texts = ["the answer", "an answer", "nothing", "more of the first document"]
    passages = Passages(texts, np.array([0, 1, 2, 0]))
    pairs = replace(make_pairs(passages, [("query", [0])]), answers={"query": ["answer"]})
    data = TrainingData(passages, pairs, NO_PAIRS)
    sampler = make_negative_sampler(data, make_settings(negatives="bm25"))

    are_negatives = sampler.are_negatives(0, np.arange(4), relevant=passages.of(0))

    assert are_negatives.tolist() == [False, False, True, False]


def test_enough_negatives_are_drawn_beside_answers():
    texts = ["query the answer", *["query an answer"] * 200, "query nothing", "query naught"]
    passages = Passages(texts, np.arange(len(texts)))
    pairs = replace(make_pairs(passages, [("query", [0])]), answers={"query": ["answer"]})
    data = TrainingData(passages, pairs, make_pairs(passages, []))
    settings = make_settings(negatives="bm25", negatives_per_query=2, negatives_depth=300)
    sampler = make_negative_sampler(data, settings)

    for seed in range(5):
        row = sampler.draw(np.array([0]), [np.array([0])], np.random.default_rng(seed))[0]
        assert sorted(row) == [201, 202]


def test_candidates_are_equally_likely():
    sampler = make_sampler("bm25", negatives_depth=4, negatives_per_query=1)

    counts: Counter[int] = Counter()
    for seed in range(2000):
        (passage,) = draw_for_pair(sampler, 1, seed)
        counts[passage] += 1

    assert sorted(counts) == sorted(bm25_candidates(1, depth=4))
    # 75 draws are 3.9 standard errors.
    assert all(abs(count - 500) < 75 for count in counts.values())


def test_passages_of_the_batch_are_not_drawn():
    best, second = bm25_candidates(1, depth=2)
    pair_of_best = int(np.flatnonzero(DATA.pairs.passages == best)[0])
    sampler = make_sampler("bm25", negatives_depth=2)

    pairs = np.array([1, pair_of_best])
    relevant = [relevant_passages(1), relevant_passages(pair_of_best)]
    row = sampler.draw(pairs, relevant, np.random.default_rng(0))[0]

    assert row == [second]


def test_equal_seeds_draw_alike_after_other_draws():
    unused = make_sampler("bm25")
    used = make_sampler("bm25")
    for pair in range(6):
        draw_for_pair(used, pair, seed=8)

    pairs = np.array([0, 4, 9])
    relevant = [relevant_passages(pair) for pair in pairs]
    expected = unused.draw(pairs, relevant, np.random.default_rng(3))

    assert used.draw(pairs, relevant, np.random.default_rng(3)) == expected


def make_one_pair_per_passage() -> TrainingData:
    """Make the example's passages with one query each."""
    passages = make_passages()
    pairs = make_pairs(passages, [(f"query {i}", [i]) for i in range(len(passages.texts))])
    return TrainingData(passages, pairs, NO_PAIRS)


def draw_siblings(
    passage: int,
    seed: int = 0,
    known: list[int] | None = None,
    batch: list[int] | None = None,
    **settings,
) -> list[int]:
    """Draw siblings of a passage.

    Args:
        passage: Passage whose siblings are drawn.
        seed: Seed of the draw.
        known: Passages that answer the query; only `passage` if None.
        batch: Further passages of the batch, each the only answer to its query.
        settings: Settings that differ from the example's.
    """
    data = make_one_pair_per_passage()
    sampler = make_negative_sampler(data, make_settings(**settings), TREE)
    others = batch or []

    pairs = np.array([passage, *others])
    relevant = [np.array(known or [passage])]
    for other in others:
        relevant.append(np.array([other]))
    return sampler.draw(pairs, relevant, np.random.default_rng(seed))[0]


@pytest.mark.parametrize("passage", range(24))
def test_siblings_come_from_the_same_leaf(passage: int):
    siblings_in_tree = (LEAVES[passage] == LEAVES).sum() - 1

    drawn = draw_siblings(passage, negatives_per_query=3)

    assert passage not in drawn
    assert all(LEAVES[other] == LEAVES[passage] for other in drawn)
    assert len(set(drawn)) == len(drawn)
    assert len(drawn) == min(3, siblings_in_tree)


def test_every_sibling_is_drawn():
    drawn = set()
    for seed in range(40):
        drawn.update(draw_siblings(0, seed))

    assert drawn == {1, 2, 3, 4, 5}


def test_siblings_that_answer_are_not_drawn():
    drawn = set()
    for seed in range(20):
        drawn.update(draw_siblings(0, seed, known=[0, 2, 3]))

    assert drawn == {1, 4, 5}


def test_negatives_are_drawn_from_both_lower_levels():
    """With M = 1 of two levels, equation 6 samples below the leaf and below its parent.

    The deepest level comes first.
    """
    drawn = [
        draw_siblings(22, seed, negatives_per_query=2, hierarchy_levels=1) for seed in range(30)
    ]

    # Leaf 5 holds passages 22 and 23. The other leaf below its parent holds 19, 20 and 21.
    assert {row[0] for row in drawn} == {23}
    assert {row[1] for row in drawn} == {19, 20, 21}


def test_siblings_in_the_batch_are_not_drawn():
    assert draw_siblings(19, batch=[20], negatives_per_query=2) == [21]
    assert draw_siblings(19, batch=[20, 21], negatives_per_query=2) == []


def test_zero_negatives_per_query_draw_nothing():
    assert draw_siblings(0, negatives_per_query=0) == []


def test_siblings_without_a_tree_are_refused():
    sampler = make_negative_sampler(make_one_pair_per_passage(), make_settings())

    with pytest.raises(FreshetError, match="none was given; build one"):
        sampler.draw(np.array([0]), [np.array([0])], np.random.default_rng(0))


def test_new_tree_gives_new_siblings():
    settings = make_settings(negatives_per_query=6)
    sampler = make_negative_sampler(make_one_pair_per_passage(), settings, TREE)
    new_tree = replace(TREE, leaves=LEAVES[::-1].copy())

    sampler.recluster(new_tree)
    drawn = sampler.draw(np.array([23]), [np.array([23])], np.random.default_rng(0))[0]

    passages_of_leaf = np.flatnonzero(new_tree.leaves == new_tree.leaves[23]).tolist()
    assert set(drawn) == set(passages_of_leaf) - {23}


def make_trainer(tmp_path: Path, checkpoints: Path, negatives: str) -> Trainer:
    """Make a trainer of the example that draws a kind of negatives."""
    encoder = make_encoder(tmp_path / "tiny")
    data = example_data()
    if negatives == "bm25":
        # BM25 finds nothing in common between "ask7" and "word7".
        query_words = [text.replace("word", "ask") for text in data.passages.texts]
        data = replace(data, passages=replace(data.passages, texts=query_words))
    settings = make_settings(negatives=negatives, negatives_depth=4)

    tree = None
    if settings.needs_hierarchy:
        tree = make_tree(encoder.encode_documents(data.passages.texts))
    return Trainer(
        encoder, data, settings, 0, tree, make_dev(data.passages), checkpoints=checkpoints
    )


@pytest.mark.parametrize(
    ("kind", "kill", "checkpoint"), [("siblings", 7, 4), ("siblings", 10, 8), ("bm25", 7, 4)]
)
def test_resumed_run_equals_an_uninterrupted_run(
    tmp_path: Path, kind: str, kill: int, checkpoint: int
):
    whole = make_trainer(tmp_path, tmp_path / "others", kind)
    expected = whole.fit().to_json()

    kill_at(make_trainer(tmp_path, tmp_path / "checkpoints", kind), kill)
    resumed = make_trainer(tmp_path, tmp_path / "checkpoints", kind)
    resumed_from = resumed.state.step
    result = resumed.fit().to_json()

    assert resumed_from == checkpoint
    assert result == expected
    assert torch.equal(encoder_weights(resumed), encoder_weights(whole))
