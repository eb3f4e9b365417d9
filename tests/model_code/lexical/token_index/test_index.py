"""Guards the laws of the token index: rankings that equal an oracle's and depend on nothing but
bags and ids, save and load = identity, and refusal of what it must not search or read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.files import hash_path, read_json
from model_code.lexical.token_index import index
from model_code.lexical.token_index.index import TokenIndex
from model_code.lexical.token_index.postings import exact
from tests.model_code.lexical.token_index.collection import (
    VOCABULARY,
    Collection,
    make_collection,
    make_queries,
    oracle,
)


def build(collection: Collection) -> TokenIndex:
    return TokenIndex.build(collection.bags, collection.document_ids)


@pytest.fixture(params=[2**16, 16], ids=["one block", "blocks of 16"])
def _block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, so that a tiny collection has many."""
    monkeypatch.setattr(index, "MAX_BLOCK_PASSAGES", request.param)


pytestmark = pytest.mark.usefixtures("_block_size")


@pytest.mark.parametrize("seed", range(3))
def test_rankings_equal_the_double_loop(seed: int) -> None:
    collection, queries = make_collection(seed), make_queries(seed)
    built = build(collection)
    for k in (1, 7, 100):
        assert built.search(queries, k) == oracle(queries, collection, k)


def test_scores_equal_a_dense_product() -> None:
    collection, queries = make_collection(3), make_queries(3)
    dense = np.zeros((len(collection.bags), VOCABULARY + 5))
    for row, bag in enumerate(collection.bags):
        dense[row, bag] = 1
    chance = np.random.default_rng(3)
    queries = [
        (tokens, np.exp(4 * chance.standard_normal(len(tokens))).astype(np.float32))
        for tokens, _ in queries
    ]
    for (tokens, weights), ranking in zip(
        queries, build(collection).search(queries, 100), strict=True
    ):
        products = dense[:, tokens] @ weights.astype(np.float64)
        for document, score in ranking:
            rows = [row for row, name in enumerate(collection.document_ids) if name == document]
            assert score == pytest.approx(
                products[rows].max(), rel=1e-7, abs=1e-14 * float(weights.sum())
            )


def test_no_dependence_on_batch_k_or_insertion_order() -> None:
    collection, queries = make_collection(4), make_queries(4)
    expected = build(collection).search(queries, 20)
    shuffled = build(collection.of(sorted(collection.documents, key=lambda name: name[::-1])))
    assert shuffled.search(queries, 20) == expected
    assert [shuffled.search([query], 20)[0] for query in queries] == expected
    assert shuffled.search(queries, 6) == [ranking[:6] for ranking in expected]
    reordered = [(tokens[::-1], weights[::-1]) for tokens, weights in queries]
    assert shuffled.search(reordered, 20) == expected


def test_single_passages_rank_as_their_bags() -> None:
    collection, queries = make_collection(5), make_queries(5)
    built = build(collection)
    assert built.postings == sum(map(len, collection.bags))
    for row, bag in enumerate(collection.bags):
        assert built.bag(row).tolist() == bag.tolist()
    pools = [collection.documents[i::3] for i in range(3)] * 4
    whole = built.search(queries, 100)
    for ranking, found, pool in zip(whole, built.rank(queries, pools), pools, strict=True):
        scores = dict(ranking)
        assert found == sorted(
            ((name, scores.get(name, 0.0)) for name in pool), key=lambda hit: (-hit[1], hit[0])
        )


def test_save_and_load_is_identity_and_sealed(tmp_path: Path) -> None:
    collection = make_collection(7)
    build(collection).save(tmp_path / "one")
    TokenIndex.load(tmp_path / "one").save(tmp_path / "two")
    assert hash_path(tmp_path / "one") == hash_path(tmp_path / "two")
    assert TokenIndex.load(tmp_path / "two").search(make_queries(7), 30) == oracle(
        make_queries(7), collection, 30
    )
    facts = read_json(tmp_path / "one" / "manifest.json")
    assert (facts["kind"], facts["documents"]) == ("token", 60)
    assert (facts["passages"], facts["postings"]) == (
        len(collection.bags),
        sum(map(len, collection.bags)),
    )


@pytest.mark.parametrize("name", ["tokens", "counts", "raw", "low", "high", "bitmaps"])
def test_a_damaged_folder_is_refused(name: str, tmp_path: Path) -> None:
    build(make_collection(8, documents=200)).save(tmp_path)
    path = tmp_path / f"{name}.npy"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(FreshetError, match=f"{name}.npy was changed"):
        TokenIndex.load(tmp_path)


@pytest.mark.parametrize(
    ("tokens", "weights", "message"),
    [
        ([1, 2], [1.0, -0.5], "not negative"),
        ([1, 2], [1.0, np.nan], "finite"),
        ([1, 2], [1.0, np.inf], "finite"),
        ([2, 2], [1.0, 0.5], "twice"),
    ],
)
def test_impossible_queries_are_refused(
    tokens: list[int], weights: list[float], message: str
) -> None:
    with pytest.raises(FreshetError, match=message):
        build(make_collection(9)).search([(np.array(tokens), np.array(weights))], 1)


def test_only_allowed_documents_are_found() -> None:
    collection, queries = make_collection(10), make_queries(10)
    allowed = collection.documents[::4]
    built, alone = build(collection), collection.of(allowed)
    assert built.search(queries, 8, allowed=allowed) == oracle(queries, alone, 8)
    assert built.search(queries, 8, allowed=[]) == [[]] * len(queries)
    with pytest.raises(FreshetError, match="holds no document"):
        built.search(queries, 8, allowed=["nobody"])


def test_best_passage_and_matches() -> None:
    built = TokenIndex.build([[1], [1, 2, 3], [2, 3, 4]], ["a", "a", "a"])
    query = (np.array([9, 3, 2]), np.array([5.0, 1.0, 2.0]))
    assert built.best_passage(query, "a") == 1
    assert built.matches(query, "a") == [(2, 2.0), (3, 1.0)]
    with pytest.raises(FreshetError, match="2 bags do not fit 1"):
        TokenIndex.build([[1], [2]], ["new"])
    nothing = TokenIndex.build([], [])
    assert nothing.search([query], 5) == [[]]


def test_sums_do_not_depend_on_their_order() -> None:
    chance = np.random.default_rng(0)
    for scale in (1e-30, 1.0, 1e30):
        weights = (scale * np.exp(5 * chance.standard_normal(3000))).astype(np.float32)
        _, found = exact((chance.permutation(3000), weights))
        sums = {float(np.add.accumulate(chance.permutation(found))[-1]) for _ in range(20)}
        assert sums == {found.sum()}
        assert np.abs(np.sort(found) - np.sort(weights)).max() <= 2.0**-53 * 2 * found.sum()
