"""Guards extra negatives: siblings (where in the tree they come from, how many, that none answers
the query); the ranks of BM25 against a loop over passages, and every filter; and that a run that
resumes draws as an uninterrupted one.
"""

from __future__ import annotations

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
    make_dev,
    make_encoder,
    make_passages,
    make_settings,
    make_tree,
    weights,
)
from tests.model_code.training.example import make_data as example_data
from tests.model_code.training.killing import kill_at

TREE = make_tree(np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32))


def make_data() -> TrainingData:
    """24 passages of 20 documents, the last 4 of which have two; some queries have two answers or
    come twice.
    """
    random = np.random.default_rng(1)
    texts = [" ".join(random.choice(WORDS[:15], 5)) for _ in LEAVES]
    passages = Passages(texts, np.array([*range(20), *range(16, 20)]))
    judged = [
        (" ".join(text.split()[:2]), [i] if i % 3 else [i, (i + 7) % 20])
        for i, text in enumerate(texts[:20])
    ]
    supervised = make_pairs(passages, judged)
    unsupervised = make_pairs(
        passages, [(judged[3][0], [5]), (" ".join(texts[2].split()[3:]), [2])]
    )
    return TrainingData(passages, supervised, unsupervised)


DATA = make_data()


def known(pair: int) -> np.ndarray:
    return np.concatenate(
        [DATA.passages.of(document) for document in sorted(DATA.pairs.relevant[pair])]
    )


def make(kind: str, **settings) -> NegativeSampler:
    return make_negative_sampler(DATA, make_settings(negatives=kind, **settings), TREE)


def pool(pair: int, depth: int = 50) -> list:
    """What `bm25` may draw for a pair, best first: a loop over all passages, as the settings'
    documentation says it.
    """
    texts = DATA.passages.texts
    index = Bm25Index.build(texts, [str(i) for i in range(len(texts))])
    scores = {int(i): score for i, score in index.search([DATA.pairs.queries[pair]], len(texts))[0]}
    ranked = sorted(
        (i for i in scores if i not in known(pair)), key=lambda i: (-round(scores[i], 5), i)
    )
    return [i for i in ranked if scores[i] > 0][:depth]


def drawn(negatives: NegativeSampler, pair: int, draws: int = 40) -> set[int]:
    rows = [
        negatives.draw(np.array([pair]), [known(pair)], np.random.default_rng(seed))[0]
        for seed in range(draws)
    ]
    assert all(len(row) == len(set(row)) <= 2 for row in rows)
    return {passage for row in rows for passage in row}


@pytest.mark.parametrize("depth", [50, 4])
def test_draws_come_from_the_ranks_asked_for(depth: int):
    negatives = make("bm25", negatives_depth=depth)
    assert any(pool(pair, depth) for pair in range(len(DATA.pairs)))
    for pair in range(0, len(DATA.pairs), 3):
        assert drawn(negatives, pair, draws=60) == set(pool(pair, depth)), pair


@pytest.mark.parametrize("kind", ["bm25", "siblings"])
def test_passages_with_an_answer_are_never_drawn(kind: str):
    wanted = dict(zip(DATA.pairs.queries[:12], WORDS, strict=False))
    answers = {query: [f"The {word}!"] for query, word in wanted.items()}
    data = replace(DATA, supervised=replace(DATA.supervised, answers=answers))
    settings = make_settings(negatives=kind, negatives_per_query=2)
    filtered, before = make_negative_sampler(data, settings, TREE), make(kind)
    dropped = 0
    for pair, query in enumerate(DATA.pairs.queries):
        lost = {
            passage
            for passage, text in enumerate(DATA.passages.texts)
            if wanted.get(query) in text.split()
        }
        allowed = drawn(before, pair, 80)
        assert drawn(filtered, pair, 80) == allowed - lost
        dropped += len(allowed & lost)
        if query not in wanted:
            rows = [
                n.draw(np.array([pair]), [known(pair)], np.random.default_rng(7))
                for n in (filtered, before)
            ]
            assert rows[0] == rows[1]
    assert dropped > 5


def test_passages_with_an_answer_are_no_shared_negatives():
    texts = ["the answer", "an answer", "nothing", "more of the first document"]
    passages = Passages(texts, np.array([0, 1, 2, 0]))
    pairs = replace(make_pairs(passages, [("query", [0])]), answers={"query": ["answer"]})
    data = TrainingData(passages, pairs, NO_PAIRS)
    negatives = make_negative_sampler(data, make_settings(negatives="bm25"))

    are_negatives = negatives.are_negatives(0, np.arange(4), relevant=passages.of(0))

    assert are_negatives.tolist() == [False, False, True, False]


def test_enough_negatives_are_drawn_beside_answers():
    texts = ["query the answer", *["query an answer"] * 200, "query nothing", "query naught"]
    passages = Passages(texts, np.arange(len(texts)))
    pairs = replace(make_pairs(passages, [("query", [0])]), answers={"query": ["answer"]})
    data = TrainingData(passages, pairs, make_pairs(passages, []))
    negatives = make_negative_sampler(
        data, make_settings(negatives="bm25", negatives_per_query=2, negatives_depth=300)
    )
    for seed in range(5):
        row = negatives.draw(np.array([0]), [np.array([0])], np.random.default_rng(seed))[0]
        assert sorted(row) == [201, 202]


def test_each_candidate_is_as_likely_as_another():
    negatives = make("bm25", negatives_depth=4, negatives_per_query=1)
    counts: dict[int, int] = {}
    for seed in range(2000):
        (passage,) = negatives.draw(np.array([1]), [known(1)], np.random.default_rng(seed))[0]
        counts[passage] = counts.get(passage, 0) + 1
    assert sorted(counts) == sorted(pool(1, depth=4))
    assert all(abs(count - 500) < 75 for count in counts.values())  # 3.9 standard errors


def test_passages_of_the_batch_are_negatives_already():
    best = pool(1, depth=2)
    other = int(np.flatnonzero(DATA.pairs.passages == best[0])[0])
    negatives = make("bm25", negatives_depth=2)
    row = negatives.draw(np.array([1, other]), [known(1), known(other)], np.random.default_rng(0))[
        0
    ]
    assert row == best[1:]


def test_equal_seeds_draw_alike_whatever_was_drawn_before():
    one, other = make("bm25"), make("bm25")
    pairs = np.array([0, 4, 9])
    for pair in range(6):
        other.draw(np.array([pair]), [known(pair)], np.random.default_rng(8))
    rows = [
        n.draw(pairs, [known(p) for p in pairs], np.random.default_rng(3)) for n in (one, other)
    ]
    assert rows[0] == rows[1]


def one_pair_per_passage(passages: Passages) -> TrainingData:
    pairs = make_pairs(passages, [(f"query {i}", [i]) for i in range(len(passages.texts))])
    return TrainingData(passages, pairs, NO_PAIRS)


def draw(
    passage: int,
    seed: int = 0,
    known: list[int] | None = None,
    batch: list[int] | None = None,
    **settings,
) -> list[int]:
    sampler = make_negative_sampler(
        one_pair_per_passage(make_passages()), make_settings(**settings), TREE
    )
    rows = [passage, *(batch or [])]
    own = [np.array(known or [passage]), *(np.array([other]) for other in batch or [])]
    return sampler.draw(np.array(rows), own, np.random.default_rng(seed))[0]


@pytest.mark.parametrize("passage", range(24))
def test_siblings_come_from_the_same_leaf(passage: int):
    drawn = draw(passage, negatives_per_query=3)
    assert all(LEAVES[other] == LEAVES[passage] and other != passage for other in drawn)
    assert len(set(drawn)) == len(drawn) == min(3, (LEAVES[passage] == LEAVES).sum() - 1)


def test_every_sibling_but_answers_is_drawn():
    assert {other for seed in range(40) for other in draw(0, seed)} == {1, 2, 3, 4, 5}
    assert {other for seed in range(20) for other in draw(0, seed, known=[0, 2, 3])} == {1, 4, 5}


def test_negatives_are_dealt_over_lower_levels():
    """With M = 1 of two levels, equation 6 samples below the leaf and below its parent: the deepest
    comes first.
    """
    drawn = [draw(22, seed, negatives_per_query=2, hierarchy_levels=1) for seed in range(30)]
    assert {row[0] for row in drawn} == {23}  # leaf 5 holds passages 22 and 23
    assert {row[1] for row in drawn} == {19, 20, 21}  # and its parent leaf 4's


def test_siblings_in_the_batch_are_not_drawn():
    assert draw(19, batch=[20], negatives_per_query=2) == [21]
    assert draw(19, batch=[20, 21], negatives_per_query=2) == []
    assert draw(0, negatives_per_query=0) == []


def test_siblings_without_a_tree_are_refused():
    sampler = make_negative_sampler(one_pair_per_passage(make_passages()), make_settings())
    with pytest.raises(FreshetError, match="none was given; build one"):
        sampler.draw(np.array([0]), [np.array([0])], np.random.default_rng(0))


def test_a_new_tree_gives_new_siblings():
    sampler = make_negative_sampler(
        one_pair_per_passage(make_passages()), make_settings(negatives_per_query=6), TREE
    )
    other = replace(TREE, leaves=LEAVES[::-1].copy())
    sampler.recluster(other)
    drawn = sampler.draw(np.array([23]), [np.array([23])], np.random.default_rng(0))[0]
    assert set(drawn) == set(np.flatnonzero(other.leaves == other.leaves[23]).tolist()) - {23}


def trainer_of(tmp_path: Path, checkpoints: Path, kind: str) -> Trainer:
    encoder, data = make_encoder(tmp_path / "tiny"), example_data()
    if kind == "bm25":  # which finds nothing in common between "ask7" and "word7"
        asked = [text.replace("word", "ask") for text in data.passages.texts]
        data = replace(data, passages=replace(data.passages, texts=asked))
    settings = make_settings(negatives=kind, negatives_depth=4)
    tree = make_tree(encoder.encode(data.passages.texts)) if settings.needs_hierarchy else None
    return Trainer(
        encoder, data, settings, 0, tree, make_dev(data.passages), checkpoints=checkpoints
    )


# checkpoints: 4, 8 and 12
@pytest.mark.parametrize(("kind", "kill"), [("siblings", 7), ("siblings", 10), ("bm25", 7)])
def test_a_resumed_run_is_as_if_never_stopped(tmp_path: Path, kind: str, kill: int):
    whole = trainer_of(tmp_path, tmp_path / "others", kind)
    expected = whole.fit().to_json()
    kill_at(trainer_of(tmp_path, tmp_path / "checkpoints", kind), kill)
    resumed = trainer_of(tmp_path, tmp_path / "checkpoints", kind)
    assert resumed.state.step == kill // 4 * 4
    assert resumed.fit().to_json() == expected
    assert torch.equal(weights(resumed), weights(whole))
