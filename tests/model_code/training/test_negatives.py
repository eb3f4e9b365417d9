"""Guards extra negatives: siblings and random ones (where in the tree they come from, how many, that none answers the
query); rankings by BM25 and by an encoder against a double loop over passages, and every filter; and that a run that
resumes draws as an uninterrupted one does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.errors import FreshetError
from model_code.index.bm25 import Bm25
from model_code.progress import Progress, silent
from model_code.training import negatives as sources
from model_code.training.data import Pairs, Passages, TrainingData, make_pairs
from model_code.training.negatives import Negatives, make_negatives
from model_code.training.trainer import Trainer
from tests.model_code.training.example import (
    LEAVES,
    WORDS,
    make_dev,
    make_encoder,
    make_passages,
    make_settings,
    make_tree,
)
from tests.model_code.training.example import make_data as example_data
from tests.model_code.training.killing import kill_at

TREE = make_tree(np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32))
RANKED = ("bm25", "mined")


class FakeEncoder:
    """Encodes a text as the mean of fixed random vectors of its words: float32, unit length."""

    def __init__(self, seed: int = 0) -> None:
        vectors = np.random.default_rng(seed).standard_normal((len(WORDS), 8))
        self.vectors = dict(zip(WORDS, vectors, strict=True))
        self.seen: list[int] = []

    def encode(self, texts: list[str], progress: Progress = silent) -> np.ndarray:
        self.seen.append(len(texts))
        sums = np.array([np.sum([self.vectors[word] for word in text.split()], axis=0) for text in texts])
        return (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)

    encode_passages = encode


def make_data() -> TrainingData:
    """24 passages of 20 documents, the last 4 of which have two; some queries have two answers or come twice."""
    random = np.random.default_rng(1)
    texts = [" ".join(random.choice(WORDS[:15], 5)) for _ in LEAVES]
    passages = Passages(texts, np.array([*range(20), *range(16, 20)]))
    judged = [(" ".join(text.split()[:2]), [i] if i % 3 else [i, (i + 7) % 20]) for i, text in enumerate(texts[:20])]
    supervised = make_pairs(passages, judged)
    unsupervised = make_pairs(passages, [(judged[3][0], [5]), (" ".join(texts[2].split()[3:]), [2])])
    return TrainingData(passages, supervised, unsupervised)


DATA = make_data()


def known(pair: int) -> np.ndarray:
    return np.concatenate([DATA.passages.of(document) for document in sorted(DATA.pairs.relevant[pair])])


def make(kind: str, **settings) -> Negatives:
    negatives = make_negatives(DATA, make_settings(negatives=kind, **settings), TREE)
    negatives.refresh(FakeEncoder())
    return negatives


def score_table(kind: str) -> np.ndarray:
    """Scores of all pairs' queries and all passages: (pairs, 24)."""
    queries, texts = DATA.pairs.queries, DATA.passages.texts
    if kind == "bm25":
        index = Bm25.build(texts, [str(i) for i in range(len(texts))])
        found = [dict(index.search([query], len(texts))[0]) for query in queries]
        return np.array([[row.get(str(i), 0.0) for i in range(len(texts))] for row in found])
    encoder = FakeEncoder()
    return encoder.encode(queries).astype(float) @ encoder.encode(texts).astype(float).T


def pool(kind: str, pair: int, depth: int = 50) -> list:
    """What may be drawn for a pair, best first: a loop over all passages, as the settings' documentation says it."""
    scores = score_table(kind)[pair]
    ranked = sorted((i for i in range(24) if i not in known(pair)), key=lambda i: (-round(scores[i], 5), i))
    if kind == "bm25":
        ranked = [i for i in ranked if scores[i] > 0]
    return ranked[:depth]


def drawn(negatives: Negatives, pair: int, draws: int = 40) -> set[int]:
    rows = [negatives.draw(np.array([pair]), [known(pair)], np.random.default_rng(seed))[0] for seed in range(draws)]
    assert all(len(row) == len(set(row)) <= 2 for row in rows)
    return {passage for row in rows for passage in row}


@pytest.mark.parametrize("kind", RANKED)
@pytest.mark.parametrize("depth", [50, 4])
def test_draws_come_from_the_ranks_asked_for(kind: str, depth: int):
    negatives = make(kind, negatives_depth=depth)
    assert any(pool(kind, pair, depth) for pair in range(len(DATA.pairs)))
    for pair in range(0, len(DATA.pairs), 3):
        assert drawn(negatives, pair, draws=60) == set(pool(kind, pair, depth)), pair


@pytest.mark.parametrize("kind", [*RANKED, "random", "siblings"])
def test_what_holds_an_answer_is_never_drawn_and_queries_without_answers_draw_as_before(kind: str):
    wanted = dict(zip(DATA.pairs.queries[:12], WORDS, strict=False))
    answers = {query: [f"The {word}!"] for query, word in wanted.items()}
    data = replace(DATA, supervised=replace(DATA.supervised, answers=answers))
    settings = make_settings(negatives=kind, negatives_per_query=2)
    filtered, before = make_negatives(data, settings, TREE), make(kind)
    filtered.refresh(FakeEncoder())
    dropped = 0
    for pair, query in enumerate(DATA.pairs.queries):
        lost = {passage for passage, text in enumerate(DATA.passages.texts) if wanted.get(query) in text.split()}
        allowed = drawn(before, pair, 80)
        assert drawn(filtered, pair, 80) == allowed - lost
        dropped += len(allowed & lost)
        if query not in wanted:
            rows = [n.draw(np.array([pair]), [known(pair)], np.random.default_rng(7)) for n in (filtered, before)]
            assert rows[0] == rows[1]
    assert dropped > 5


def test_as_many_are_drawn_as_are_wanted_where_most_candidates_hold_an_answer():
    texts = ["the answer", *["an answer"] * 200, "nothing", "naught"]
    passages = Passages(texts, np.arange(len(texts)))
    pairs = replace(make_pairs(passages, [("query", [0])]), answers={"query": ["answer"]})
    data = TrainingData(passages, pairs, make_pairs(passages, []))
    negatives = make_negatives(data, make_settings(negatives="random", negatives_per_query=2))
    for seed in range(5):
        row = negatives.draw(np.array([0]), [np.array([0])], np.random.default_rng(seed))[0]
        assert sorted(row) == [201, 202]


@pytest.mark.parametrize("kind", RANKED)
def test_each_candidate_is_as_likely_as_another(kind: str):
    negatives = make(kind, negatives_depth=4, negatives_per_query=1)
    counts: dict[int, int] = {}
    for seed in range(2000):
        (passage,) = negatives.draw(np.array([1]), [known(1)], np.random.default_rng(seed))[0]
        counts[passage] = counts.get(passage, 0) + 1
    assert sorted(counts) == sorted(pool(kind, 1, depth=4))
    assert all(abs(count - 500) < 75 for count in counts.values())  # 3.9 standard errors


@pytest.mark.parametrize("kind", RANKED)
def test_passages_of_the_batch_are_negatives_already(kind: str):
    best = pool(kind, 1, depth=2)
    other = int(np.flatnonzero(DATA.pairs.passages == best[0])[0])
    negatives = make(kind, negatives_depth=2)
    row = negatives.draw(np.array([1, other]), [known(1), known(other)], np.random.default_rng(0))[0]
    assert row == best[1:]


@pytest.mark.parametrize("kind", RANKED)
def test_equal_seeds_draw_alike_whatever_was_drawn_before(kind: str):
    one, other = make(kind), make(kind)
    pairs = np.array([0, 4, 9])
    for pair in range(6):
        other.draw(np.array([pair]), [known(pair)], np.random.default_rng(8))
    rows = [n.draw(pairs, [known(p) for p in pairs], np.random.default_rng(3)) for n in (one, other)]
    assert rows[0] == rows[1]


def test_chunks_of_queries_do_not_change_the_table(monkeypatch: pytest.MonkeyPatch):
    whole = make("mined").state()
    monkeypatch.setattr(sources, "QUERIES", 3)
    for name, array in make("mined").state().items():
        np.testing.assert_allclose(array, whole[name], rtol=0, atol=1e-6)


def test_a_refresh_asks_for_the_passages_of_a_document_once_per_query(monkeypatch: pytest.MonkeyPatch):
    """Not once more for every chunk of queries, which would make mining quadratic in their number."""
    monkeypatch.setattr(sources, "QUERIES", 2)
    asked, of = [], Passages.of
    monkeypatch.setattr(Passages, "of", lambda passages, document: asked.append(document) or of(passages, document))
    negatives = make_negatives(DATA, make_settings(negatives="mined"))
    asked.clear()
    negatives.refresh(FakeEncoder())
    relevant = dict(zip(DATA.pairs.queries, DATA.pairs.relevant, strict=True))
    assert len(asked) <= sum(map(len, relevant.values()))


def test_a_query_is_encoded_once_and_vectors_at_hand_are_used():
    negatives, encoder = make_negatives(DATA, make_settings(negatives="mined")), FakeEncoder()
    negatives.refresh(encoder, encoder.encode(DATA.passages.texts))
    assert encoder.seen == [24, len(set(DATA.pairs.queries))]
    assert {name: array.tolist() for name, array in negatives.state().items()} == {
        name: array.tolist() for name, array in make("mined").state().items()
    }


@pytest.mark.parametrize(("kind", "wanted"), [("bm25", 2), ("random", 2), ("siblings", 2), ("mined", 0)])
def test_nothing_is_encoded_for_other_kinds_or_where_none_are_drawn(kind: str, wanted: int):
    encoder = FakeEncoder()
    make_negatives(DATA, make_settings(negatives=kind, negatives_per_query=wanted), TREE).refresh(encoder)
    assert encoder.seen == []


def test_a_restored_table_draws_alike():
    fresh = make_negatives(DATA, make_settings(negatives="mined"))
    fresh.restore(make("mined").state())
    assert drawn(fresh, 1) == drawn(make("mined"), 1)


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


def test_siblings_in_the_batch_are_negatives_already():
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


def trainer_of(tmp_path: Path, checkpoints: Path | None = None, cluster=None, **changes) -> Trainer:
    encoder, data = make_encoder(tmp_path / "tiny"), example_data()
    if changes.get("negatives") == "bm25":  # which finds nothing in common between "ask7" and "word7"
        data = replace(
            data, passages=replace(data.passages, texts=[text.replace("word", "ask") for text in data.passages.texts])
        )
    settings = make_settings(**({"negatives": "mined", "negatives_depth": 4} | changes))
    tree = make_tree(encoder.encode(data.passages.texts)) if settings.needs_hierarchy else None
    return Trainer(encoder, data, settings, 0, tree, make_dev(data.passages), checkpoints=checkpoints, cluster=cluster)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.encoder.parameters()])


@pytest.mark.parametrize(("kind", "kill"), [("mined", 7), ("mined", 10), ("bm25", 7)])  # checkpoints: 4, 8 and 12
def test_a_resumed_run_is_as_if_never_stopped(tmp_path: Path, kind: str, kill: int):
    whole = trainer_of(tmp_path, tmp_path / "others", negatives=kind)
    expected = whole.fit()
    kill_at(trainer_of(tmp_path, tmp_path / "checkpoints", negatives=kind), kill)
    resumed = trainer_of(tmp_path, tmp_path / "checkpoints", negatives=kind)
    assert resumed.state.step == kill // 4 * 4
    assert resumed.fit() == expected
    assert torch.equal(weights(resumed), weights(whole))
    for name, array in whole.negatives.state().items():
        assert np.array_equal(resumed.negatives.state()[name], array)


def test_mining_comes_once_with_the_start_vectors(tmp_path: Path):
    trainer, seen = trainer_of(tmp_path, learning_rate=1e-2), {}
    refresh = trainer.negatives.refresh

    def spy(encoder, vectors) -> None:
        refresh(encoder, vectors)
        seen[trainer.state.step] = vectors is not None

    trainer.negatives.refresh = spy
    trainer.fit(trainer.encoder.encode(trainer.data.passages.texts))
    assert seen == {0: True}


def test_cotraining_keeps_the_table_and_takes_the_new_tree(tmp_path: Path):
    trees = []

    def cluster(vectors: np.ndarray):
        trees.append(make_tree(vectors))
        return trees[-1]

    trainer = trainer_of(tmp_path, cluster=cluster, cotraining=True, negatives="mined")
    values = iter([0.1, 0.2, 0.2, 0.2])
    trainer.dev.score = lambda *_: next(values)
    assert trainer.fit().reclustered_at == (4,)
    assert trainer.negatives.hierarchy is trees[0]
    assert trainer.collate.negatives is trainer.negatives
