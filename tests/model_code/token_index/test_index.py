"""Guards the laws of the token index: rankings and statistics that equal an oracle's and depend on nothing but bags and
ids, exact add, delete and update, save and load = identity, and refusal of what it must not search or read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import hash_path, read_json
from model_code.token_index import blocks
from model_code.token_index.index import TokenIndex
from model_code.token_index.queries import Query
from tests.model_code.token_index.collection import (
    VOCABULARY,
    Collection,
    make_collection,
    make_queries,
    oracle,
)


def build(collection: Collection) -> TokenIndex:
    return TokenIndex.build(collection.bags, collection.document_ids, "f")


@pytest.fixture(params=[2**16, 16], ids=["one block", "blocks of 16"])
def _block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, so that a tiny collection has many."""
    monkeypatch.setattr(blocks, "BLOCK", request.param)


pytestmark = pytest.mark.usefixtures("_block_size")


@pytest.mark.parametrize("seed", range(3))
def test_rankings_equal_the_double_loop(seed: int) -> None:
    collection, queries = make_collection(seed), make_queries(seed)
    index = build(collection)
    for k in (1, 7, 100):
        assert index.search(queries, k, "f") == oracle(queries, collection, k)


def test_scores_equal_a_dense_product() -> None:
    collection, queries = make_collection(3), make_queries(3)
    dense = np.zeros((len(collection.bags), VOCABULARY + 5))
    for row, bag in enumerate(collection.bags):
        dense[row, bag] = 1
    chance = np.random.default_rng(3)
    queries = [(tokens, np.exp(4 * chance.standard_normal(len(tokens))).astype(np.float32)) for tokens, _ in queries]
    for (tokens, weights), ranking in zip(queries, build(collection).search(queries, 100, "f"), strict=True):
        products = dense[:, tokens] @ weights.astype(np.float64)
        for document, score in ranking:
            rows = [row for row, name in enumerate(collection.document_ids) if name == document]
            assert score == pytest.approx(products[rows].max(), rel=1e-7, abs=1e-14 * float(weights.sum()))


def test_no_dependence_on_batch_k_or_insertion_order() -> None:
    collection, queries = make_collection(4), make_queries(4)
    expected = build(collection).search(queries, 20, "f")
    shuffled = build(collection.of(sorted(collection.documents, key=lambda name: name[::-1])))
    assert shuffled.search(queries, 20, "f") == expected
    assert [shuffled.search([query], 20, "f")[0] for query in queries] == expected
    assert shuffled.search(queries, 6, "f") == [ranking[:6] for ranking in expected]
    reordered = [(tokens[::-1], weights[::-1]) for tokens, weights in queries]
    assert shuffled.search(reordered, 20, "f") == expected


def assert_same(index: TokenIndex, collection: Collection, seed: int) -> None:
    """The index is, for anyone who asks, one built anew from the collection."""
    queries, tokens, rebuilt = make_queries(seed), np.arange(VOCABULARY + 5)[::-1], build(collection)
    assert index.document_ids == collection.document_ids
    assert index.search(queries, 30, "f") == oracle(queries, collection, 30)
    assert (index.blocks.counts(tokens) == rebuilt.blocks.counts(tokens)).all()
    assert index.blocks.postings() == rebuilt.blocks.postings() == sum(map(len, collection.bags))
    pools = [collection.documents[i::3] for i in range(3)] * 4
    assert index.rank(queries, pools, "f") == rebuilt.rank(queries, pools, "f")
    for document in collection.documents[::11]:
        assert index.bag(document).tolist() == rebuilt.bag(document).tolist()
        assert index.matches(queries[3], document, "f") == rebuilt.matches(queries[3], document, "f")


@pytest.mark.parametrize("seed", range(4))
def test_any_adds_and_deletes_equal_an_index_built_anew(seed: int, tmp_path: Path) -> None:
    chance, everything = np.random.default_rng(seed), make_collection(seed)
    outside, inside = everything.documents[20:], everything.documents[:20]
    index = build(everything.of(inside))
    for step in range(25):
        if outside and (not inside or chance.random() < 0.6):
            moved = [
                outside.pop(chance.integers(len(outside))) for _ in range(min(len(outside), chance.integers(1, 5)))
            ]
            part = everything.of(moved)
            index.add(part.bags, part.document_ids, "f")
            inside += moved
        else:
            moved = [inside.pop(chance.integers(len(inside))) for _ in range(min(len(inside), chance.integers(1, 8)))]
            index.delete(moved)
            outside += moved
        if step % 6 == 0:
            assert_same(index, everything.of(inside), seed)
    assert_same(index, everything.of(inside), seed)
    index.save(tmp_path / "changed")
    build(everything.of(inside)).save(tmp_path / "anew")
    assert hash_path(tmp_path / "changed") == hash_path(tmp_path / "anew")
    assert_same(TokenIndex.load(tmp_path / "changed"), everything.of(inside), seed)


def test_passages_added_one_by_one_make_few_blocks() -> None:
    index = TokenIndex.build([], [], "f")
    for number in range(200):
        index.add([[number % 7]], [f"{number}"], "f")
    assert len(index.blocks.blocks) <= 8 + 2 * 200 // blocks.BLOCK


def test_update_replaces_all_passages() -> None:
    collection = make_collection(5)
    index, document = build(collection), collection.documents[7]
    index.update([[1, 2]], [document], "f")
    kept = collection.of([name for name in collection.documents if name != document])
    assert_same(index, Collection([*kept.bags, np.array([1, 2])], [*kept.document_ids, document]), 5)


def test_everything_deleted(tmp_path: Path) -> None:
    collection, queries = make_collection(6), make_queries(6)
    index = build(collection)
    index.delete(collection.documents)
    assert index.search(queries, 5, "f") == [[]] * len(queries)
    assert index.blocks.counts(np.arange(5)).tolist() == [0] * 5
    index.save(tmp_path)
    index = TokenIndex.load(tmp_path)
    index.add([[3]], ["a"], "f")
    assert index.search([(np.array([3]), np.array([1.0]))], 5, "f") == [[("a", 1.0)]]


def test_save_and_load_is_identity_and_sealed(tmp_path: Path) -> None:
    collection = make_collection(7)
    build(collection).save(tmp_path / "one")
    TokenIndex.load(tmp_path / "one").save(tmp_path / "two")
    assert hash_path(tmp_path / "one") == hash_path(tmp_path / "two")
    assert_same(TokenIndex.load(tmp_path / "two"), collection, 7)
    facts = read_json(tmp_path / "one" / "manifest.json")
    assert (facts["kind"], facts["fingerprint"], facts["documents"]) == ("token", "f", 60)
    assert (facts["passages"], facts["postings"]) == (len(collection.bags), sum(map(len, collection.bags)))


@pytest.mark.parametrize("name", ["tokens", "counts", "raw", "low", "high", "bitmaps"])
def test_a_damaged_folder_is_refused(name: str, tmp_path: Path) -> None:
    build(make_collection(8, documents=200)).save(tmp_path)
    path = tmp_path / f"{name}.npy"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(FreshetError, match=f"{name}.npy was changed"):
        TokenIndex.load(tmp_path)


def test_an_unfinished_folder_is_refused(tmp_path: Path) -> None:
    build(make_collection(8)).save(tmp_path / "index")
    shutil.copytree(tmp_path / "index", tmp_path / "copy", ignore=shutil.ignore_patterns("manifest.json"))
    with pytest.raises(FreshetError, match="not finished"):
        TokenIndex.load(tmp_path / "copy")


def test_other_rules_are_refused() -> None:
    index, query = build(make_collection(9)), (np.array([1]), np.array([1.0]))
    attempts = [
        lambda: index.search([query], 1, "g"),
        lambda: index.rank([query], [["d001"]], "g"),
        lambda: index.best_passage(query, "d001", "g"),
        lambda: index.matches(query, "d001", "g"),
        lambda: index.add([[1]], ["new"], "g"),
        lambda: index.update([[1]], ["d001"], "g"),
    ]
    for attempt in attempts:
        with pytest.raises(FingerprintMismatch, match="built with the rules f"):
            attempt()


@pytest.mark.parametrize(
    ("tokens", "weights", "message"),
    [
        ([1, 2], [1.0, -0.5], "not negative"),
        ([1, 2], [1.0, np.nan], "finite"),
        ([1, 2], [1.0, np.inf], "finite"),
        ([2, 2], [1.0, 0.5], "twice"),
        ([1, 2], [1.0], "no query"),
    ],
)
def test_impossible_queries_are_refused(tokens: list[int], weights: list[float], message: str) -> None:
    with pytest.raises(FreshetError, match=message):
        build(make_collection(9)).search([(np.array(tokens), np.array(weights))], 1, "f")


def test_documents_are_added_once_and_known_when_deleted() -> None:
    index = build(make_collection(9))
    with pytest.raises(FreshetError, match="already holds"):
        index.add([[1]], ["d001"], "f")
    with pytest.raises(FreshetError, match="holds no document"):
        index.delete(["nobody"])
    with pytest.raises(FreshetError, match="2 bags do not fit 1"):
        index.add([[1], [2]], ["new"], "f")
    assert_same(index, make_collection(9), 9)


def test_only_allowed_documents_are_found() -> None:
    collection, queries = make_collection(10), make_queries(10)
    allowed = collection.documents[::4]
    index, alone = build(collection), collection.of(allowed)
    assert index.search(queries, 8, "f", allowed=allowed) == oracle(queries, alone, 8)
    assert index.search(queries, 8, "f", allowed=[]) == [[]] * len(queries)
    with pytest.raises(FreshetError, match="holds no document"):
        index.search(queries, 8, "f", allowed=["nobody"])


def test_best_passage_and_matches() -> None:
    index = TokenIndex.build([[1], [1, 2, 3], [2, 3, 4]], ["a", "a", "a"], "f")
    query = (np.array([9, 3, 2]), np.array([5.0, 1.0, 2.0]))
    assert index.best_passage(query, "a", "f") == 1
    assert index.matches(query, "a", "f") == [(2, 2.0), (3, 1.0)]
    assert index.bag("a", 2).tolist() == [2, 3, 4]


def test_sums_do_not_depend_on_their_order() -> None:
    chance = np.random.default_rng(0)
    for scale in (1e-30, 1.0, 1e30):
        weights = (scale * np.exp(5 * chance.standard_normal(3000))).astype(np.float32)
        query = Query.of((chance.permutation(3000), weights))
        sums = {float(np.add.accumulate(chance.permutation(query.weights))[-1]) for _ in range(20)}
        assert sums == {query.weights.sum()}
        assert np.abs(np.sort(query.weights) - np.sort(weights)).max() <= 2.0**-53 * 2 * query.weights.sum()
