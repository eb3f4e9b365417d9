"""Guards pruned searches: by the heaviest tokens they rank as a query of those tokens would; exact they equal the whole
query, ties included; and a ranking that is called certain is never wrong."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.errors import SettingsError
from model_code.token_index import index as index_module
from model_code.token_index.blocks import Blocks
from model_code.token_index.index import TokenIndex
from model_code.token_index.queries import Query
from tests.model_code.token_index.collection import make_collection, make_queries, oracle


@pytest.mark.parametrize("tokens", [1, 4, 12, 100])
@pytest.mark.parametrize("seed", range(3))
def test_pruned_exact_and_certain(seed: int, tokens: int) -> None:
    collection, queries = make_collection(seed, documents=90), make_queries(seed, count=20)
    index = TokenIndex.build(collection.bags, collection.document_ids, "f")
    heaviest = [(part.tokens, part.weights) for part in (Query.of(query).heaviest(tokens) for query in queries)]
    every, every_pruned = oracle(queries, collection, 300), oracle(heaviest, collection, 300)
    for k in (1, 3, 20, 300):
        whole = [ranking[:k] for ranking in every]
        pruned = index.search(queries, k, "f", tokens=tokens)
        assert pruned == [ranking[:k] for ranking in every_pruned]
        assert index.search(queries, k, "f", tokens=tokens, exact=True) == whole
        judged = index.search_pruned(queries, k, "f", tokens)
        assert [one.ranking for one in judged] == pruned
        for one, ranking in zip(judged, whole, strict=True):
            assert not one.certain or dict(one.ranking).keys() == dict(ranking).keys()
            assert all(score <= dict(ranking).get(name, np.inf) for name, score in one.ranking)
        if tokens == 100:
            assert all(one.certain and one.left_out == 0 for one in judged)


def test_a_clear_winner_is_certain_and_a_near_one_is_not() -> None:
    index = TokenIndex.build([[1, 9], [2], [3, 9]], ["a", "b", "c"], "f")
    tokens = np.array([1, 2, 9])
    clear, near = (tokens, np.array([9.0, 2.0, 1.0])), (tokens, np.array([2.75, 2.0, 1.0]))
    assert [one.certain for one in index.search_pruned([clear, near], 1, "f", tokens=2)] == [True, False]
    assert index.search_pruned([clear], 1, "f", tokens=2)[0].left_out == 1.0
    assert not index.search_pruned([clear], 3, "f", tokens=2)[0].certain  # c is not found, but may hold the rest


def test_exact_looks_at_few_passages_where_the_bound_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "SPARSE_SHARE", 1)
    looked_at = []
    plain = Blocks.scores_at

    def counting(self: Blocks, query: Query, passages: np.ndarray) -> np.ndarray:
        looked_at.append(len(passages))
        return plain(self, query, passages)

    monkeypatch.setattr(Blocks, "scores_at", counting)
    index = TokenIndex.build([[1, 2, 9], [1, 9], *[[9]] * 50], [f"{i:02d}" for i in range(52)], "f")
    query = (np.array([1, 2, 9]), np.array([5.0, 4.0, 1.0]))
    assert index.search([query], 1, "f", tokens=2, exact=True) == [[("00", 10.0)]]
    assert looked_at == [1]


def test_ties_that_the_rest_breaks() -> None:
    index = TokenIndex.build([[1], [1, 5], [1, 6]], ["a", "b", "c"], "f")
    query = (np.array([1, 5, 6]), np.array([1.0, 1e-6, 1e-6], np.float32))
    exact = index.search([query], 2, "f", tokens=1, exact=True)[0]
    assert [name for name, _ in exact] == ["b", "c"]
    assert not index.search_pruned([query], 2, "f", tokens=1)[0].certain


def test_sums_do_not_depend_on_their_order() -> None:
    chance = np.random.default_rng(0)
    for scale in (1e-30, 1.0, 1e30):
        weights = (scale * np.exp(5 * chance.standard_normal(3000))).astype(np.float32)
        query = Query.of((chance.permutation(3000), weights))
        sums = {float(np.add.accumulate(chance.permutation(query.weights))[-1]) for _ in range(20)}
        assert sums == {query.total}
        assert np.abs(np.sort(query.weights) - np.sort(weights)).max() <= 2.0**-53 * 2 * query.total


def test_no_token_at_all_is_no_search() -> None:
    index = TokenIndex.build([[1]], ["a"], "f")
    with pytest.raises(SettingsError, match="tokens is 0"):
        index.search([(np.array([1]), np.array([1.0]))], 1, "f", tokens=0)
