"""Tests of the laws of the dense index.

Exact rankings depend on nothing but vectors and ids. A loaded index equals the saved one. Vectors
of another encoder are refused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from model_code.encoding.token_signs import TokenSigns, pack_signs
from model_code.errors import FingerprintMismatch, FreshetError, SettingsError
from model_code.files import hash_path, read_json, write_json
from model_code.retrieval import dense_index
from model_code.retrieval.dense_index import DenseIndex, JoinedIndex
from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
from model_code.retrieval.protocol import Ranking
from model_code.retrieval.top_k import top_k

# Every index of these tests is built for an encoder of this fingerprint.
FINGERPRINT = "f"
NOTHING_REMOVED = frozenset[str]()

# Number of vectors from which on the search is approximate.
exact_and_approximate = pytest.mark.parametrize("flat_below", [ALWAYS_EXACT, 1])


def build_index(
    vectors: np.ndarray,
    document_ids: list[str],
    flat_below: int = ALWAYS_EXACT,
    vectors_per_passage: int = 1,
) -> DenseIndex:
    """Build an index that visits all inverted lists, so that it is exact on few vectors."""
    settings = IndexSettings(flat_below=flat_below, nprobe=64)
    return DenseIndex.build(vectors, document_ids, FINGERPRINT, settings, vectors_per_passage)


def rank_by_double_loop(
    queries: np.ndarray, vectors: np.ndarray, document_ids: list[str], k: int
) -> list[Ranking]:
    """Return rankings by scores in float64, rounded to float32 as the index rounds its scores."""
    scores = np.empty((len(queries), len(vectors)), dtype=np.float32)
    for i, query in enumerate(queries):
        for j, vector in enumerate(vectors):
            scores[i, j] = sum(float(a) * float(b) for a, b in zip(query, vector, strict=True))
    return [top_k(row, document_ids, k) for row in scores]


def documents_of(ranking: Ranking) -> list[str]:
    """Return the documents of a ranking, best first."""
    return [document for document, _ in ranking]


def scores_of(ranking: Ranking) -> list[float]:
    """Return the scores of a ranking, best first."""
    return [score for _, score in ranking]


def require_close(found: list[Ranking], expected: list[Ranking], error: float) -> None:
    """Check that rankings have equal documents, and scores that differ by at most `error`."""
    for ranking, expected_ranking in zip(found, expected, strict=True):
        assert documents_of(ranking) == documents_of(expected_ranking)
        np.testing.assert_allclose(
            scores_of(ranking), scores_of(expected_ranking), rtol=0, atol=error
        )


@pytest.mark.parametrize("k", [1, 5, 17, 60, 100])
def test_rankings_equal_the_double_loop(
    vectors: np.ndarray, document_ids: list[str], queries: np.ndarray, k: int
) -> None:
    index = build_index(vectors, document_ids)

    rankings = index.search(queries, k, FINGERPRINT)

    require_close(rankings, rank_by_double_loop(queries, vectors, document_ids, k), 6e-8)


class SeveralVectors(NamedTuple):
    """Six passages of three documents, each with three vectors."""

    vectors: np.ndarray
    # Document of each vector.
    rows: list[str]
    queries: np.ndarray


PASSAGE_DOCUMENTS = ["b", "a", "b", "c", "a", "b"]


@pytest.fixture
def several() -> SeveralVectors:
    """Unit vectors of passages with three vectors each, and queries."""
    chance = np.random.default_rng(0)
    rows = []
    for document in PASSAGE_DOCUMENTS:
        rows += [document] * 3
    vectors = chance.standard_normal((len(rows), 4))
    queries = chance.standard_normal((20, 4)).astype(np.float32)
    unit_vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return SeveralVectors(unit_vectors.astype(np.float32), rows, queries)


@exact_and_approximate
@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_document_is_ranked_by_best_of_its_vectors(
    several: SeveralVectors, flat_below: int, k: int
) -> None:
    vectors, rows, queries = several
    index = build_index(vectors, rows, flat_below, vectors_per_passage=3)

    rankings = index.search(queries, k, FINGERPRINT)

    require_close(rankings, rank_by_double_loop(queries, vectors, rows, k), 2e-7)


@exact_and_approximate
def test_vectors_per_passage_are_saved(
    several: SeveralVectors, flat_below: int, tmp_path: Path
) -> None:
    vectors, rows, _ = several

    build_index(vectors, rows, flat_below, vectors_per_passage=3).save(tmp_path)

    manifest = read_json(tmp_path / "manifest.json")
    assert manifest["vectors_per_passage"] == 3
    assert manifest["passages"] == 6
    assert manifest["documents"] == 3
    loaded = DenseIndex.load(tmp_path)
    assert loaded.vectors_per_passage == 3
    assert loaded.passages == 6


@exact_and_approximate
def test_best_passage_is_counted_within_its_document(
    several: SeveralVectors, flat_below: int, tmp_path: Path
) -> None:
    vectors, rows, _ = several
    build_index(vectors, rows, flat_below, vectors_per_passage=3).save(tmp_path)
    loaded = DenseIndex.load(tmp_path)

    for row, document in enumerate(rows):
        passage = row // 3
        earlier_passages = PASSAGE_DOCUMENTS[:passage].count(document)
        assert loaded.best_passage(vectors[row], document) == earlier_passages


def test_rankings_do_not_depend_on_insertion_order(vectors, document_ids, queries):
    expected = build_index(vectors, document_ids).search(queries, 20, FINGERPRINT)
    order = np.random.default_rng(2).permutation(len(vectors))

    shuffled = build_index(vectors[order], [document_ids[row] for row in order])

    assert shuffled.search(queries, 20, FINGERPRINT) == expected


def test_rankings_do_not_depend_on_the_batch(vectors, document_ids, queries):
    index = build_index(vectors, document_ids)
    together = index.search(queries, 20, FINGERPRINT)

    separate = [index.search(query[None], 20, FINGERPRINT)[0] for query in queries]

    assert separate == together


def test_shorter_rankings_begin_longer_ones(vectors, document_ids, queries):
    index = build_index(vectors, document_ids)
    longer = index.search(queries, 20, FINGERPRINT)

    shorter = index.search(queries, 7, FINGERPRINT)

    assert shorter == [ranking[:7] for ranking in longer]


def test_thousands_of_equal_passages_tie_by_id() -> None:
    vectors = np.tile(np.array([[0.6, 0.8]], np.float32), (3000, 1))
    index = build_index(vectors, [f"d{(7 * i) % 3000:04d}" for i in range(3000)])

    ranking = index.search(vectors[:1], 3, FINGERPRINT)[0]

    assert documents_of(ranking) == ["d0000", "d0001", "d0002"]


@exact_and_approximate
def test_loaded_index_equals_the_saved_one(vectors, document_ids, queries, flat_below, tmp_path):
    index = build_index(vectors, document_ids, flat_below)

    index.save(tmp_path / "saved")
    loaded = DenseIndex.load(tmp_path / "saved")

    assert loaded.search(queries, 10, FINGERPRINT) == index.search(queries, 10, FINGERPRINT)
    assert loaded.document_ids == document_ids
    assert np.array_equal(loaded.vectors, vectors)


@exact_and_approximate
def test_equal_indexes_are_saved_as_equal_bytes(vectors, document_ids, flat_below, tmp_path):
    build_index(vectors, document_ids, flat_below).save(tmp_path / "first")
    build_index(vectors, document_ids, flat_below).save(tmp_path / "second")
    DenseIndex.load(tmp_path / "first").save(tmp_path / "loaded")

    expected = hash_path(tmp_path / "first")
    assert hash_path(tmp_path / "second") == expected
    assert hash_path(tmp_path / "loaded") == expected


def make_token_signs(count: int, chance: np.random.Generator) -> TokenSigns:
    """Make random signs of 1 to 8 tokens for each of `count` passages."""
    signs = []
    for _ in range(count):
        tokens = chance.integers(1, 9)
        signs.append(pack_signs(chance.standard_normal((tokens, 70))))
    return TokenSigns.of(signs)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_late_score_is_that_of_the_best_passage(vectors, document_ids, tmp_path, is_loaded):
    tokens = make_token_signs(len(document_ids), np.random.default_rng(0))
    index = DenseIndex.build(vectors, document_ids, FINGERPRINT, token_signs=tokens)
    if is_loaded:
        index.save(tmp_path)
        index = DenseIndex.load(tmp_path)
    documents = document_ids[5:1:-1]

    late_scores = index.vectors_of(documents).late_scores(tokens[:1])

    rows, starts, _ = index.ids.group_rows(documents)
    similarities = tokens[:1].similarities(tokens[rows])
    similarities_by_document = np.split(similarities, starts[1:])
    assert late_scores.tolist() == [max(passages) for passages in similarities_by_document]


def test_index_without_tokens_has_none_when_loaded(vectors, document_ids, tmp_path):
    build_index(vectors, document_ids).save(tmp_path)

    assert DenseIndex.load(tmp_path).token_signs is None


def test_queries_of_another_encoder_are_refused(vectors, document_ids) -> None:
    index = build_index(vectors, document_ids)
    query = vectors[:1]
    message = "built with encoder f, these vectors come from other"

    with pytest.raises(FingerprintMismatch, match=message):
        index.search(query, 1, "other")
    with pytest.raises(FingerprintMismatch, match=message):
        index.scores(query, [["doc-00"]], "other")
    with pytest.raises(FingerprintMismatch, match=message):
        index.search_among(query, 1, ["doc-00"], "other")


def test_scores_of_unknown_documents_are_refused(vectors, document_ids) -> None:
    index = build_index(vectors, document_ids)

    with pytest.raises(FreshetError, match="no document 'nobody' .2 unknown"):
        index.scores(vectors[:1], [["doc-00", "x", "nobody"]], FINGERPRINT)


def test_queries_of_another_width_are_refused(vectors, document_ids) -> None:
    index = build_index(vectors, document_ids)

    with pytest.raises(FreshetError, match="do not fit 1 passages of 24"):
        index.search(vectors[:1, :8], 1, FINGERPRINT)


def test_vectors_without_a_document_are_refused(vectors) -> None:
    with pytest.raises(FreshetError, match="do not fit 1 passages of 24"):
        build_index(vectors[:2], ["doc-00"])


def test_vectors_that_are_not_finite_are_refused() -> None:
    with pytest.raises(FreshetError, match="NaN"):
        build_index(np.full((1, 24), np.nan, np.float32), ["new"])


def test_search_for_no_documents_is_refused(vectors, document_ids) -> None:
    index = build_index(vectors, document_ids)

    with pytest.raises(SettingsError, match="k is 0"):
        index.search(vectors[:1], 0, FINGERPRINT)


@pytest.fixture
def saved(vectors: np.ndarray, document_ids: list[str], tmp_path: Path) -> Path:
    """The folder of a saved index."""
    folder = tmp_path / "saved"
    build_index(vectors, document_ids).save(folder)
    return folder


def test_changed_vectors_are_reported(saved: Path) -> None:
    with (saved / "vectors.npy").open("r+b") as stream:
        stream.seek(200)
        stream.write(b"\x01")

    with pytest.raises(FreshetError, match="vectors.npy was changed"):
        DenseIndex.load(saved)


def test_index_of_another_format_is_refused(saved: Path) -> None:
    manifest = read_json(saved / "manifest.json")
    manifest["format"] = 0
    write_json(saved / "manifest.json", manifest)

    with pytest.raises(FreshetError, match="has format 0"):
        DenseIndex.load(saved)


def test_folder_without_manifest_is_refused(saved: Path) -> None:
    (saved / "manifest.json").unlink()

    with pytest.raises(FreshetError, match=r"has no manifest\.json"):
        DenseIndex.load(saved)


@pytest.mark.parametrize("max_exhaustive_rows", [0, 10**6])
@exact_and_approximate
def test_search_among_equals_filtered_search(
    vectors, document_ids, queries, flat_below, max_exhaustive_rows, monkeypatch
):
    """Allowed documents are scored one by one or searched, a few products at a time."""
    index = build_index(vectors, document_ids, flat_below)
    chance = np.random.default_rng(3)
    all_documents = sorted(set(document_ids))
    whole = index.search(queries, 60, FINGERPRINT)

    monkeypatch.setattr(dense_index, "MAX_EXHAUSTIVE_ROWS", max_exhaustive_rows)
    monkeypatch.setattr(dense_index, "MAX_ROWS_SCORED_AT_ONCE", 7)
    for count in (3, 30, 60):
        allowed = chance.choice(all_documents, count, replace=False).tolist()
        filtered = []
        for ranking in whole:
            filtered.append([hit for hit in ranking if hit[0] in allowed])
        for k in (1, 4, 60):
            rankings = index.search_among(queries, k, allowed, FINGERPRINT)
            assert rankings == [ranking[:k] for ranking in filtered]


def test_search_among_unknown_documents_is_refused(vectors, document_ids, queries):
    index = build_index(vectors, document_ids)

    with pytest.raises(FreshetError, match="no document 'x'|unknown"):
        index.search_among(queries, 3, ["x"], FINGERPRINT)


class JoinedCase(NamedTuple):
    """Three joined indexes, and one index of the documents that are left in them."""

    joined: JoinedIndex
    single: DenseIndex
    # Signs of every passage, those that are left included.
    tokens: TokenSigns
    # Twenty documents that are left, in random order.
    documents: list[str]


@pytest.fixture
def joined_case(vectors, document_ids, queries, flat_below: int) -> JoinedCase:
    """Three indexes with removed rows, the first of which may be approximate.

    The vectors of removed rows are long and near the queries. A removed document may be in a later
    index, or in none.
    """
    chance = np.random.default_rng(5)
    tokens = make_token_signs(len(document_ids), chance)
    index_of_document = {name: chance.integers(3) for name in sorted(set(document_ids))}

    joined = []
    remaining_rows = []
    for number in range(3):
        rows = [row for row, name in enumerate(document_ids) if index_of_document[name] == number]
        in_later_index = [name for name, place in index_of_document.items() if place > number]
        removed = [*in_later_index[:4], f"never {number}", f"nowhere {number}"]
        removed_vectors = 3 * queries[chance.integers(len(queries), size=len(removed))]
        removed_tokens = make_token_signs(len(removed), chance)

        settings = IndexSettings(flat_below=ALWAYS_EXACT, nprobe=64)
        if number == 0:
            settings = IndexSettings(flat_below=flat_below, nprobe=64)
        index = DenseIndex.build(
            np.concatenate([vectors[rows], removed_vectors]),
            [document_ids[row] for row in rows] + removed,
            FINGERPRINT,
            settings,
            token_signs=TokenSigns.concatenate([tokens[rows], removed_tokens]),
        )
        joined.append((index, frozenset(removed)))
        remaining_rows += rows

    remaining_ids = [document_ids[row] for row in remaining_rows]
    single = DenseIndex.build(
        vectors[remaining_rows], remaining_ids, FINGERPRINT, token_signs=tokens[remaining_rows]
    )
    documents = chance.permutation(sorted(set(remaining_ids))).tolist()[:20]
    return JoinedCase(JoinedIndex(joined), single, tokens, documents)


@exact_and_approximate
def test_joined_indexes_hold_the_remaining_documents(joined_case: JoinedCase, flat_below: int):
    joined, single, _, _ = joined_case
    is_exact = flat_below == ALWAYS_EXACT

    assert joined.ids.documents == single.ids.documents
    assert (joined.approximate is None) == is_exact


@exact_and_approximate
@pytest.mark.parametrize("k", [1, 5, 60])
def test_joined_indexes_are_searched_as_one(joined_case: JoinedCase, queries, k: int):
    joined, single, _, _ = joined_case

    rankings = joined.search(queries, k, FINGERPRINT)

    assert rankings == single.search(queries, k, FINGERPRINT)


@exact_and_approximate
def test_joined_indexes_are_filtered_as_one(joined_case: JoinedCase, queries):
    joined, single, _, documents = joined_case

    rankings = joined.search_among(queries, 9, documents, FINGERPRINT)

    assert rankings == single.search_among(queries, 9, documents, FINGERPRINT)


@exact_and_approximate
def test_joined_indexes_score_as_one(joined_case: JoinedCase, queries):
    joined, single, _, documents = joined_case

    scores = joined.scores(queries[:1], [documents], FINGERPRINT)[0]

    assert scores.tolist() == single.scores(queries[:1], [documents], FINGERPRINT)[0].tolist()


@exact_and_approximate
def test_joined_vectors_are_those_of_one_index(joined_case: JoinedCase, queries):
    joined, single, tokens, documents = joined_case
    query = queries[0]

    joined_vectors = joined.vectors_of(documents)
    single_vectors = single.vectors_of(documents)

    joined_late_scores = joined_vectors.late_scores(tokens[:1])
    assert joined_vectors.scores(query).tolist() == single_vectors.scores(query).tolist()
    assert joined_late_scores.tolist() == single_vectors.late_scores(tokens[:1]).tolist()
    for number in range(len(documents)):
        nearest = joined_vectors.nearest_vector(query, number)
        assert nearest.tolist() == single_vectors.nearest_vector(query, number).tolist()


@exact_and_approximate
@pytest.mark.parametrize("document", ["x", "never 0", "nowhere 2"])
def test_removed_documents_are_unknown_to_joined_indexes(
    joined_case: JoinedCase, queries, document: str
):
    joined = joined_case.joined

    with pytest.raises(FreshetError, match="unknown"):
        joined.ids.require_known([document])
    with pytest.raises(FreshetError, match="unknown"):
        joined.vectors_of([document])
    with pytest.raises(FreshetError, match="unknown"):
        joined.search_among(queries, 3, [document], FINGERPRINT)


@pytest.fixture
def approximate_index() -> DenseIndex:
    """An index of 3,000 vectors that visits one inverted list per query."""
    chance = np.random.default_rng(0)
    vectors = chance.standard_normal((3000, 16)).astype(np.float32) / 8
    settings = IndexSettings(flat_below=1, nprobe=1)
    return DenseIndex.build(vectors, [f"b{i}" for i in range(3000)], FINGERPRINT, settings)


def test_many_passages_of_an_addition_hide_no_other_addition(approximate_index: DenseIndex) -> None:
    axes = np.eye(16, dtype=np.float32)[:2]
    query = axes[:1]
    less_near = (axes[:1] + axes[1:] / 8) / 2
    added_vectors = np.concatenate([np.repeat(query, 40, axis=0), less_near])
    added = build_index(added_vectors, ["x"] * 40 + ["y"])
    joined = JoinedIndex([(approximate_index, NOTHING_REMOVED), (added, NOTHING_REMOVED)])

    ranking = joined.search(4 * query, 5, FINGERPRINT)[0]

    documents = documents_of(ranking)
    assert "x" in documents
    assert "y" in documents
    assert len(documents) > 2


@pytest.mark.parametrize("k", [1, 5, 20, 60])
def test_equally_near_additions_are_all_found(approximate_index: DenseIndex, k: int) -> None:
    query = np.eye(16, dtype=np.float32)[:1]
    names = [f"n{i:02d}" for i in range(60)]
    added = build_index(np.repeat(9 * query, 60, axis=0), names)
    joined = JoinedIndex([(approximate_index, NOTHING_REMOVED), (added, NOTHING_REMOVED)])

    ranking = joined.search(query, k, FINGERPRINT)[0]

    assert documents_of(ranking) == names[:k]


def test_index_without_documents_has_no_hits(vectors, document_ids, queries):
    empty = DenseIndex.build(vectors[:0], [], FINGERPRINT)
    whole = build_index(vectors, document_ids)
    joined = JoinedIndex([(whole, frozenset(document_ids)), (empty, NOTHING_REMOVED)])

    assert joined.search(queries[:2], 3, FINGERPRINT) == [[], []]


def test_empty_indexes_change_no_ranking(vectors, document_ids, queries):
    empty = DenseIndex.build(vectors[:0], [], FINGERPRINT)
    whole = build_index(vectors, document_ids)
    joined = JoinedIndex(
        [(empty, NOTHING_REMOVED), (whole, NOTHING_REMOVED), (empty, NOTHING_REMOVED)]
    )

    assert joined.search(queries, 9, FINGERPRINT) == whole.search(queries, 9, FINGERPRINT)


def test_large_allowed_sets_are_not_scored_exhaustively(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors = np.random.default_rng(0).normal(size=(6000, 8)).astype(np.float32)
    names = [f"d{i:04d}" for i in range(6000)]
    index = build_index(vectors, names)
    compute_scores = DenseIndex._scores
    scored_counts = []

    def count_and_score(self: DenseIndex, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        scored_counts.append(len(rows))
        return compute_scores(self, query, rows)

    monkeypatch.setattr(DenseIndex, "_scores", count_and_score)
    index.search_among(vectors[:5], 10, names[100:], FINGERPRINT)

    assert max(scored_counts) < 100


def test_approximate_misses_fall_back_to_exact_search() -> None:
    """The queries have one topic and the allowed documents have others.

    So the lists that are visited hold no allowed document.
    """
    chance = np.random.default_rng(0)
    topics = 10 * np.eye(16, dtype=np.float32)[:10]
    noise = chance.normal(size=(3000, 16)).astype(np.float32) / 10
    vectors = np.repeat(topics, 300, axis=0) + noise
    names = [f"d{i:04d}" for i in range(3000)]
    allowed = names[1500:2700]
    queries = vectors[:3]
    settings = IndexSettings(flat_below=1, nprobe=1)
    index = DenseIndex.build(vectors, names, FINGERPRINT, settings)

    rankings = index.search_among(queries, 10, allowed, FINGERPRINT)

    exact = build_index(vectors, names).search_among(queries, 10, allowed, FINGERPRINT)
    assert rankings == exact
    assert all(len(ranking) == 10 for ranking in rankings)


@pytest.fixture
def without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports of FAISS fail."""
    monkeypatch.setitem(sys.modules, "faiss", None)


def test_exact_index_needs_no_faiss(
    vectors, document_ids, queries, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("faiss")
    expected = DenseIndex.build(vectors, document_ids, FINGERPRINT).search(queries, 10, FINGERPRINT)

    monkeypatch.setitem(sys.modules, "faiss", None)
    index = DenseIndex.build(vectors, document_ids, FINGERPRINT)
    index.save(tmp_path / "flat")
    loaded = DenseIndex.load(tmp_path / "flat")

    assert index.search(queries, 10, FINGERPRINT) == expected
    assert loaded.search(queries, 10, FINGERPRINT) == expected
    filtered = index.search_among(queries[:2], 3, document_ids, FINGERPRINT)
    assert filtered == [ranking[:3] for ranking in expected[:2]]


@pytest.mark.usefixtures("without_faiss")
def test_building_approximate_index_without_faiss_is_refused(vectors, document_ids):
    with pytest.raises(
        FreshetError, match=r"needs faiss, .*pip install .*or set index\.flat_below"
    ):
        build_index(vectors, document_ids, flat_below=1)


def test_loading_approximate_index_without_faiss_is_refused(
    vectors, document_ids, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("faiss")
    build_index(vectors, document_ids, flat_below=1).save(tmp_path)

    monkeypatch.setitem(sys.modules, "faiss", None)

    with pytest.raises(FreshetError, match="needs faiss"):
        DenseIndex.load(tmp_path)


@pytest.mark.parametrize("k", [1, 3, 8, 39, 50])
@pytest.mark.parametrize("flat_below", [ALWAYS_EXACT, 1])
def test_best_rows_are_those_of_the_search(k: int, flat_below: int) -> None:
    """Each vector occurs twice, so equal scores meet at the end of every ranking."""
    random = np.random.default_rng(0)
    halves = random.normal(size=(20, 8)).astype(np.float32)
    ids = [f"d{number}" for number in random.permutation(40)]
    first = build_index(np.concatenate([halves, halves[:10]]), ids[:30], flat_below)
    second = build_index(halves[10:], ids[30:])
    joined = JoinedIndex([(first, frozenset(ids[3:5])), (second, NOTHING_REMOVED)])
    queries = random.normal(size=(15, 8)).astype(np.float32)

    found = joined.best_rows(queries, k, FINGERPRINT)

    for rows, ranking in zip(found, joined.search(queries, k, FINGERPRINT), strict=True):
        names = sorted(joined.document_ids[row] for row in rows.tolist())
        assert names == sorted(documents_of(ranking))


def test_best_rows_of_a_single_approximate_index() -> None:
    """A live collection has such an index until the first document is added."""
    pytest.importorskip("faiss")
    random = np.random.default_rng(0)
    vectors = random.normal(size=(40, 8)).astype(np.float32)
    ids = [f"d{number}" for number in range(40)]
    joined = JoinedIndex([(build_index(vectors, ids, flat_below=1), NOTHING_REMOVED)])
    queries = random.normal(size=(3, 8)).astype(np.float32)

    found = joined.best_rows(queries, 5, FINGERPRINT)

    for rows, ranking in zip(found, joined.search(queries, 5, FINGERPRINT), strict=True):
        names = sorted(joined.document_ids[row] for row in rows.tolist())
        assert names == sorted(documents_of(ranking))
