"""Guards hard negatives: rankings by BM25 and by an encoder against a double loop over passages, and every filter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.index.bm25 import Bm25
from model_code.progress import Progress, silent
from model_code.training import negatives as sources
from model_code.training.data import Passages, TrainingData, make_pairs
from model_code.training.negatives import Negatives, make_negatives
from tests.model_code.training.example import LEAVES, WORDS, make_settings, make_tree

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
    with pytest.raises(FreshetError, match="before the first draw"):
        drawn(fresh, 1)
    fresh.restore(make("mined").state())
    assert drawn(fresh, 1) == drawn(make("mined"), 1)
