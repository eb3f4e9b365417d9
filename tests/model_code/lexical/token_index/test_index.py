"""Tests of the laws of the token index.

Rankings equal a double loop and depend on nothing but bags and ids. A loaded index equals the saved
one. Queries and files that it cannot use are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.files import hash_path, read_json
from model_code.lexical.token_index import index
from model_code.lexical.token_index.bags import Bags
from model_code.lexical.token_index.index import TokenIndex
from model_code.lexical.token_index.postings import prepare_query
from tests.model_code.lexical.token_index.collection import (
    VOCABULARY,
    Collection,
    make_collection,
    make_queries,
    rank_by_double_loop,
    sort_key,
)


def build_index(collection: Collection) -> TokenIndex:
    """Index the bags of a collection."""
    return TokenIndex.build(collection.bags, collection.document_ids)


@pytest.fixture(params=[2**16, 16], ids=["one block", "blocks of 16"])
def _block_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use large and small blocks; a small collection has many small ones."""
    monkeypatch.setattr(index, "MAX_BLOCK_PASSAGES", request.param)


pytestmark = pytest.mark.usefixtures("_block_size")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [1, 7, 100])
def test_rankings_equal_the_double_loop(seed: int, k: int) -> None:
    collection = make_collection(seed)
    queries = make_queries(seed)

    rankings = build_index(collection).search(queries, k)

    assert rankings == rank_by_double_loop(queries, collection, k)


def test_scores_equal_a_dense_product() -> None:
    chance = np.random.default_rng(3)
    collection = make_collection(3)
    token_matrix = np.zeros((len(collection.bags), VOCABULARY + 5))
    for row, bag in enumerate(collection.bags):
        token_matrix[row, bag] = 1
    queries = []
    for tokens, _ in make_queries(3):
        weights = np.exp(4 * chance.standard_normal(len(tokens))).astype(np.float32)
        queries.append((tokens, weights))

    rankings = build_index(collection).search(queries, 100)

    for (tokens, weights), ranking in zip(queries, rankings, strict=True):
        products = token_matrix[:, tokens] @ weights.astype(np.float64)
        tolerance = 1e-14 * float(weights.sum())
        for document, score in ranking:
            rows = [row for row, name in enumerate(collection.document_ids) if name == document]
            assert score == pytest.approx(products[rows].max(), rel=1e-7, abs=tolerance)


def test_rankings_do_not_depend_on_insertion_order() -> None:
    collection = make_collection(4)
    queries = make_queries(4)
    expected = build_index(collection).search(queries, 20)

    shuffled = build_index(collection.select(sorted(collection.documents)))

    assert shuffled.search(queries, 20) == expected


def test_rankings_do_not_depend_on_the_batch() -> None:
    queries = make_queries(4)
    token_index = build_index(make_collection(4))

    separate = [token_index.search([query], 20)[0] for query in queries]

    assert separate == token_index.search(queries, 20)


def test_shorter_rankings_begin_longer_ones() -> None:
    queries = make_queries(4)
    token_index = build_index(make_collection(4))

    shorter = token_index.search(queries, 6)

    assert shorter == [ranking[:6] for ranking in token_index.search(queries, 20)]


def test_rankings_do_not_depend_on_the_order_of_tokens() -> None:
    queries = make_queries(4)
    token_index = build_index(make_collection(4))

    reversed_queries = [(tokens[::-1], weights[::-1]) for tokens, weights in queries]

    assert token_index.search(reversed_queries, 20) == token_index.search(queries, 20)


def test_index_gives_back_its_bags() -> None:
    collection = make_collection(5)

    token_index = build_index(collection)

    assert token_index.postings == collection.postings
    for row, bag in enumerate(collection.bags):
        assert token_index.bags(np.array([row]))[0].tolist() == bag.tolist()


def test_matches_are_the_common_tokens_of_query_and_passage() -> None:
    collection = make_collection(5)
    token_index = build_index(collection)
    tokens = np.arange(1 + max(bag.max(initial=0) for bag in collection.bags))
    query = (tokens, np.ones(len(tokens)))

    for row, bag in enumerate(collection.bags):
        matches = [token for token, _ in token_index.matches_at(query, row)]
        assert matches == np.sort(bag).tolist()


def test_candidates_are_ranked_as_by_search() -> None:
    collection = make_collection(5)
    queries = make_queries(5)
    token_index = build_index(collection)
    candidates = [collection.documents[first::3] for first in range(3)] * 4

    rankings = token_index.rank(queries, candidates)

    whole = token_index.search(queries, 100)
    for ranking, whole_ranking, documents in zip(rankings, whole, candidates, strict=True):
        scores = dict(whole_ranking)
        expected = [(document, scores.get(document, 0.0)) for document in documents]
        assert ranking == sorted(expected, key=sort_key)


def test_texts_are_indexed_like_their_bags(tmp_path: Path) -> None:
    collection = make_collection(7)
    text_counts = []

    def find_tokens(texts: Sequence[str]) -> Bags:
        text_counts.append(len(texts))
        return Bags.of([collection.bags[int(text)] for text in texts])

    numbers = [str(number) for number in range(len(collection.bags))]
    TokenIndex.from_texts(find_tokens, numbers, collection.document_ids).save(tmp_path / "texts")

    build_index(collection).save(tmp_path / "bags")
    assert hash_path(tmp_path / "texts") == hash_path(tmp_path / "bags")
    assert max(text_counts) <= index.MAX_BLOCK_PASSAGES


def test_texts_without_a_document_are_refused() -> None:
    with pytest.raises(FreshetError, match="2 texts do not fit 1 passages"):
        TokenIndex.from_texts(lambda texts: Bags.of([]), ["one", "two"], ["a"])


def test_loaded_index_equals_the_saved_one(tmp_path: Path) -> None:
    collection = make_collection(7)
    queries = make_queries(7)
    build_index(collection).save(tmp_path)

    loaded = TokenIndex.load(tmp_path)

    assert loaded.search(queries, 30) == rank_by_double_loop(queries, collection, 30)


def test_loaded_index_is_saved_as_equal_bytes(tmp_path: Path) -> None:
    build_index(make_collection(7)).save(tmp_path / "first")

    TokenIndex.load(tmp_path / "first").save(tmp_path / "second")

    assert hash_path(tmp_path / "second") == hash_path(tmp_path / "first")


def test_manifest_has_the_sizes(tmp_path: Path) -> None:
    collection = make_collection(7)

    build_index(collection).save(tmp_path)

    manifest = read_json(tmp_path / "manifest.json")
    assert manifest["kind"] == "token"
    assert manifest["documents"] == 60
    assert manifest["passages"] == len(collection.bags)
    assert manifest["postings"] == collection.postings


@pytest.mark.parametrize("name", ["tokens", "counts", "raw", "low", "high", "bitmaps"])
def test_damaged_folder_is_refused(name: str, tmp_path: Path) -> None:
    build_index(make_collection(8, documents=200)).save(tmp_path)
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
    token_index = build_index(make_collection(9))

    with pytest.raises(FreshetError, match=message):
        token_index.search([(np.array(tokens), np.array(weights))], 1)


def test_only_allowed_documents_are_found() -> None:
    collection = make_collection(10)
    queries = make_queries(10)
    allowed = collection.documents[::4]

    rankings = build_index(collection).search(queries, 8, allowed=allowed)

    assert rankings == rank_by_double_loop(queries, collection.select(allowed), 8)


def test_without_allowed_documents_nothing_is_found() -> None:
    queries = make_queries(10)

    rankings = build_index(make_collection(10)).search(queries, 8, allowed=[])

    assert rankings == [[]] * len(queries)


def test_unknown_allowed_documents_are_refused() -> None:
    token_index = build_index(make_collection(10))

    with pytest.raises(FreshetError, match="holds no document"):
        token_index.search(make_queries(10), 8, allowed=["nobody"])


QUERY = (np.array([9, 3, 2]), np.array([5.0, 1.0, 2.0]))


def test_best_passage_has_the_highest_score() -> None:
    token_index = TokenIndex.build([[1], [1, 2, 3], [2, 3, 4]], ["a", "a", "a"])

    assert token_index.best_passage(QUERY, "a") == 1


def test_matches_are_those_of_the_best_passage() -> None:
    token_index = TokenIndex.build([[1], [1, 2, 3], [2, 3, 4]], ["a", "a", "a"])

    assert token_index.matches(QUERY, "a") == [(2, 2.0), (3, 1.0)]


def test_bags_without_a_document_are_refused() -> None:
    with pytest.raises(FreshetError, match="2 bags do not fit 1"):
        TokenIndex.build([[1], [2]], ["new"])


def test_index_without_documents_has_no_hits() -> None:
    assert TokenIndex.build([], []).search([QUERY], 5) == [[]]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_sums_do_not_depend_on_their_order(scale: float) -> None:
    chance = np.random.default_rng(0)
    weights = (scale * np.exp(5 * chance.standard_normal(3000))).astype(np.float32)

    _, exact_weights = prepare_query((chance.permutation(3000), weights))

    sums = set()
    for _ in range(20):
        shuffled = chance.permutation(exact_weights)
        sums.add(float(np.add.accumulate(shuffled)[-1]))
    rounding_errors = np.abs(np.sort(exact_weights) - np.sort(weights))
    assert sums == {exact_weights.sum()}
    assert rounding_errors.max() <= 2.0**-53 * 2 * exact_weights.sum()
