"""Guards the laws of the dense index: exact rankings that depend on nothing but vectors and ids,
save and load = identity, and refusal of another encoder's vectors.
"""

from __future__ import annotations

import shutil
import sys
from itertools import product
from pathlib import Path

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

KINDS = [ALWAYS_EXACT, 1]  # from how many vectors on search is approximate


def build(
    vectors: np.ndarray, document_ids: list[str], flat_below: int = ALWAYS_EXACT, each: int = 1
) -> DenseIndex:
    """An index that searches everything there is, so that an approximate one is exact on tiny data."""
    return DenseIndex.build(
        vectors, document_ids, "f", IndexSettings(flat_below=flat_below, nprobe=64), each
    )


def require_close(found: list[Ranking], expected: list[Ranking], error: float) -> None:
    for row, wanted in zip(found, expected, strict=True):
        assert [document for document, _ in row] == [document for document, _ in wanted]
        np.testing.assert_allclose([s for _, s in row], [s for _, s in wanted], rtol=0, atol=error)


def oracle(
    queries: np.ndarray, vectors: np.ndarray, document_ids: list[str], k: int
) -> list[list[tuple[str, float]]]:
    """Double loop in float64, rounded to float32 as the index states its scores."""
    scores = np.empty((len(queries), len(vectors)), dtype=np.float32)
    for i, query in enumerate(queries):
        for j, vector in enumerate(vectors):
            scores[i, j] = sum(float(a) * float(b) for a, b in zip(query, vector, strict=True))
    return [top_k(row, document_ids, k) for row in scores]


def test_rankings_equal_the_double_loop(
    vectors: np.ndarray, document_ids: list[str], queries: np.ndarray
) -> None:
    index = build(vectors, document_ids)
    for k in (1, 5, 17, 60, 100):
        require_close(
            index.search(queries, k, "f"), oracle(queries, vectors, document_ids, k), 6e-8
        )


@pytest.mark.parametrize("flat_below", KINDS)
def test_best_of_several_passage_vectors_ranks(flat_below: int, tmp_path: Path) -> None:
    chance, each, passages = np.random.default_rng(0), 3, ["b", "a", "b", "c", "a", "b"]
    rows = [document for document in passages for _ in range(each)]
    raw, queries = (
        chance.standard_normal((len(rows), 4)),
        chance.standard_normal((20, 4)).astype(np.float32),
    )
    vectors = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    index = build(vectors, rows, flat_below, each)
    for k in (1, 2, 3, 9):
        require_close(index.search(queries, k, "f"), oracle(queries, vectors, rows, k), 2e-7)
    index.save(tmp_path)
    manifest, loaded = read_json(tmp_path / "manifest.json"), DenseIndex.load(tmp_path)
    assert manifest["vectors_per_passage"] == each
    assert manifest["passages"] == 6
    assert manifest["documents"] == 3
    assert loaded.vectors_per_passage == each
    assert loaded.passages == 6
    for row, document in enumerate(rows):
        assert loaded.best_passage(vectors[row], document) == passages[: row // each].count(
            document
        )


def test_no_dependence_on_batch_k_or_insertion_order(vectors, document_ids, queries):
    expected = build(vectors, document_ids).search(queries, 20, "f")
    order = np.random.default_rng(2).permutation(len(vectors))
    shuffled = build(vectors[order], [document_ids[i] for i in order])
    assert shuffled.search(queries, 20, "f") == expected
    alone = [shuffled.search(query[None], 20, "f")[0] for query in queries]
    assert alone == expected
    assert [ranking[:7] for ranking in expected] == shuffled.search(queries, 7, "f")


def test_thousands_of_equal_passages_still_tie_by_id() -> None:
    vectors = np.tile(np.array([[0.6, 0.8]], np.float32), (3000, 1))
    index = build(vectors, [f"d{(7 * i) % 3000:04d}" for i in range(3000)])
    ranking = index.search(vectors[:1], 3, "f")[0]
    assert [document for document, _ in ranking] == ["d0000", "d0001", "d0002"]


@pytest.mark.parametrize("flat_below", KINDS)
def test_save_and_load_is_identity(vectors, document_ids, queries, flat_below, tmp_path):
    index = build(vectors, document_ids, flat_below)
    index.save(tmp_path / "a")
    loaded = DenseIndex.load(tmp_path / "a")
    assert loaded.search(queries, 10, "f") == index.search(queries, 10, "f")
    assert loaded.document_ids == document_ids
    assert np.array_equal(loaded.vectors, vectors)
    loaded.save(tmp_path / "b")
    build(vectors, document_ids, flat_below).save(tmp_path / "c")
    assert hash_path(tmp_path / "a") == hash_path(tmp_path / "b") == hash_path(tmp_path / "c")


def test_dense_index_keeps_optional_tokens(vectors, document_ids, queries, tmp_path):
    rng = np.random.default_rng(0)
    tokens = TokenSigns.of(
        [pack_signs(rng.standard_normal((rng.integers(1, 9), 70))) for _ in document_ids]
    )
    index = DenseIndex.build(vectors, document_ids, "f", tokens=tokens)
    index.save(tmp_path / "a")
    some = document_ids[5:1:-1]
    for own in (index, DenseIndex.load(tmp_path / "a")):
        rows, starts, _ = own.ids.group_rows(some)
        passages = tokens[:1].similarities(tokens[rows])
        expected = [max(part) for part in np.split(passages, starts[1:])]
        assert own.vectors_of(some).late_scores(tokens[:1]).tolist() == expected
    index.tokens = None
    index.save(tmp_path / "b")
    assert DenseIndex.load(tmp_path / "b").tokens is None


def test_other_encoders_and_invalid_requests_are_refused(
    vectors: np.ndarray, document_ids: list[str]
) -> None:
    index, one = build(vectors, document_ids), vectors[:1]
    foreign = "built with encoder f, these vectors come from other"
    for error, message, use in (
        (FingerprintMismatch, foreign, lambda: index.search(one, 1, "other")),
        (FingerprintMismatch, foreign, lambda: index.scores(one, [["doc-00"]], "other")),
        (FingerprintMismatch, foreign, lambda: index.search_among(one, 1, ["doc-00"], "other")),
        (
            FreshetError,
            "no document 'nobody' .2 unknown",
            lambda: index.scores(one, [["doc-00", "x", "nobody"]], "f"),
        ),
        (FreshetError, "do not fit 1 passages of 24", lambda: index.search(one[:, :8], 1, "f")),
        (FreshetError, "do not fit 1 passages of 24", lambda: build(vectors[:2], ["doc-00"])),
        (FreshetError, "NaN", lambda: build(np.full((1, 24), np.nan, np.float32), ["new"])),
        (SettingsError, "k is 0", lambda: index.search(one, 0, "f")),
    ):
        with pytest.raises(error, match=message):
            use()


def test_a_damaged_or_foreign_folder_is_refused(
    vectors: np.ndarray, document_ids: list[str], tmp_path: Path
) -> None:
    build(vectors, document_ids).save(tmp_path / "good")
    cut = Path(shutil.copytree(tmp_path / "good", tmp_path / "cut"))
    with (cut / "vectors.npy").open("r+b") as stream:
        stream.seek(200)
        stream.write(b"\x01")
    with pytest.raises(FreshetError, match="vectors.npy was changed"):
        DenseIndex.load(cut)
    old = Path(shutil.copytree(tmp_path / "good", tmp_path / "old"))
    write_json(old / "manifest.json", read_json(old / "manifest.json") | {"format": 0})
    with pytest.raises(FreshetError, match="has format 0"):
        DenseIndex.load(old)
    (old / "manifest.json").unlink()
    with pytest.raises(FreshetError, match=r"has no manifest\.json"):
        DenseIndex.load(old)


@pytest.mark.parametrize("few", [0, 10**6])
@pytest.mark.parametrize("flat_below", KINDS)
def test_search_among_equals_filtered_search(
    vectors, document_ids, queries, flat_below, few, monkeypatch
):
    """Whether they are scored one by one or searched for, and whatever number of products is in
    memory at a time.
    """
    index, chance = build(vectors, document_ids, flat_below), np.random.default_rng(3)
    monkeypatch.setattr(dense_index, "MAX_EXHAUSTIVE_ROWS", few)
    monkeypatch.setattr(dense_index, "MAX_ROWS_SCORED_AT_ONCE", 7)
    whole = index.search(queries, 60, "f")
    for share in (0.05, 0.5, 1):
        allowed = chance.choice(
            sorted(set(document_ids)), max(1, int(60 * share)), replace=False
        ).tolist()
        expected = [[hit for hit in ranking if hit[0] in allowed] for ranking in whole]
        for k in (1, 4, 60):
            assert index.search_among(queries, k, allowed, "f") == [
                ranking[:k] for ranking in expected
            ]
    with pytest.raises(FreshetError, match="no document 'x'|unknown"):
        index.search_among(queries, 3, ["x"], "f")


@pytest.mark.parametrize("flat_below", KINDS)
def test_joined_indexes_are_one_of_what_is_left(vectors, document_ids, queries, flat_below):
    """Also where the first is approximate; removed rows are long, near the queries, and some of
    them come back.
    """
    chance, names = np.random.default_rng(5), np.array(document_ids)
    tokens = TokenSigns.of(
        [pack_signs(chance.standard_normal((chance.integers(1, 9), 70))) for _ in document_ids]
    )
    where = {name: chance.integers(3) for name in sorted(set(document_ids))}
    parts, left = [], []
    for number in range(3):
        own = np.flatnonzero([where[name] == number for name in document_ids])
        gone = [name for name in where if where[name] > number][:4] + [
            f"never {number}",
            f"nowhere {number}",
        ]
        long = 3 * queries[chance.integers(len(queries), size=len(gone))]
        other = TokenSigns.of([pack_signs(chance.standard_normal((3, 70))) for _ in gone])
        settings = IndexSettings(
            flat_below=1 if number == 0 and flat_below == 1 else ALWAYS_EXACT, nprobe=64
        )
        index = DenseIndex.build(
            np.concatenate([vectors[own], long]),
            [*names[own].tolist(), *gone],
            "f",
            settings,
            tokens=TokenSigns.concatenate([tokens[own], other]),
        )
        parts.append((index, frozenset(gone)))
        left += own.tolist()
    joined, one = (
        JoinedIndex(parts),
        DenseIndex.build(vectors[left], names[left].tolist(), "f", tokens=tokens[left]),
    )
    assert joined.ids.documents == one.ids.documents
    assert (joined.approximate is None) == (flat_below > 1)
    for k in (1, 5, 60):
        assert joined.search(queries, k, "f") == one.search(queries, k, "f")
    some = chance.permutation(sorted(set(names[left]))).tolist()[:20]
    assert joined.search_among(queries, 9, some, "f") == one.search_among(queries, 9, some, "f")
    assert (
        joined.scores(queries[:1], [some], "f")[0].tolist()
        == one.scores(queries[:1], [some], "f")[0].tolist()
    )
    own, other = joined.vectors_of(some), one.vectors_of(some)
    assert own.scores(queries[0]).tolist() == other.scores(queries[0]).tolist()
    assert own.late_scores(tokens[:1]).tolist() == other.late_scores(tokens[:1]).tolist()
    for number in range(len(some)):
        assert (
            own.nearest_vector(queries[0], number).tolist()
            == other.nearest_vector(queries[0], number).tolist()
        )
    uses = (
        joined.ids.require_known,
        joined.vectors_of,
        lambda names: joined.search_among(queries, 3, names, "f"),
    )
    for unknown, use in product(("x", "never 0", "nowhere 2"), uses):
        with pytest.raises(FreshetError, match="unknown"):
            use([unknown])


def test_additions_to_approximate_index_are_searched_exactly() -> None:
    """However many passages a document has that comes first, and however many are equally near."""
    chance, near = np.random.default_rng(0), np.eye(16, dtype=np.float32)[:2]
    base = chance.standard_normal((3000, 16)).astype(np.float32) / 8
    settings = IndexSettings(flat_below=1, nprobe=1)
    old = DenseIndex.build(base, [f"b{i}" for i in range(3000)], "f", settings), frozenset[str]()
    query, second = near[:1], (near[:1] + near[1:] / 8) / 2
    rows = np.concatenate([np.repeat(query, 40, axis=0), second])
    ranking = JoinedIndex([old, (build(rows, ["x"] * 40 + ["y"]), frozenset())]).search(
        4 * query, 5, "f"
    )[0]
    assert {"x", "y"} < {document for document, _ in ranking}
    equal = JoinedIndex(
        [
            old,
            (
                build(np.repeat(9 * query, 60, axis=0), [f"n{i:02d}" for i in range(60)]),
                frozenset(),
            ),
        ]
    )
    for k in (1, 5, 20, 60):
        assert [document for document, _ in equal.search(query, k, "f")[0]] == [
            f"n{i:02d}" for i in range(k)
        ]


def test_empty_index_returns_no_hits(vectors, document_ids, queries):
    empty, whole = (
        (DenseIndex.build(vectors[:0], [], "f"), frozenset[str]()),
        build(vectors, document_ids),
    )
    assert JoinedIndex([(whole, frozenset(document_ids)), empty]).search(queries[:2], 3, "f") == [
        [],
        [],
    ]
    assert JoinedIndex([empty, (whole, frozenset()), empty]).search(
        queries, 9, "f"
    ) == whole.search(queries, 9, "f")


def test_large_allowed_sets_are_not_scored_exhaustively(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors = np.random.default_rng(0).normal(size=(6000, 8)).astype(np.float32)
    names, scored = [f"d{i:04d}" for i in range(6000)], []
    index, scores = build(vectors, names), DenseIndex._scores

    def counted(self: DenseIndex, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        scored.append(len(rows))
        return scores(self, query, rows)

    monkeypatch.setattr(DenseIndex, "_scores", counted)
    index.search_among(vectors[:5], 10, names[100:], "f")
    assert max(scored) < 100


def test_approximate_misses_fall_back_to_exact_search() -> None:
    """A query of one topic among documents of others: the lists that are visited hold none of them."""
    chance = np.random.default_rng(0)
    topics = 10 * np.eye(16, dtype=np.float32)[:10]
    vectors = (
        np.repeat(topics, 300, axis=0) + chance.normal(size=(3000, 16)).astype(np.float32) / 10
    )
    names = [f"d{i:04d}" for i in range(3000)]
    index = DenseIndex.build(vectors, names, "f", IndexSettings(flat_below=1, nprobe=1))
    allowed, queries = names[1500:2700], vectors[:3]
    exact = build(vectors, names).search_among(queries, 10, allowed, "f")
    assert index.search_among(queries, 10, allowed, "f") == exact
    assert all(len(ranking) == 10 for ranking in exact)


def test_only_approximate_index_needs_faiss(vectors, document_ids, queries, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    expected = DenseIndex.build(vectors, document_ids, "f").search(queries, 10, "f")
    build(vectors, document_ids, 1).save(tmp_path / "approximate")
    monkeypatch.setitem(sys.modules, "faiss", None)
    flat = DenseIndex.build(vectors, document_ids, "f")
    flat.save(tmp_path / "flat")
    assert (
        flat.search(queries, 10, "f")
        == DenseIndex.load(tmp_path / "flat").search(queries, 10, "f")
        == expected
    )
    assert flat.search_among(queries[:2], 3, document_ids, "f") == [
        ranking[:3] for ranking in expected[:2]
    ]
    with pytest.raises(
        FreshetError, match=r"needs faiss, .*pip install .*or set index\.flat_below"
    ):
        build(vectors, document_ids, 1)
    with pytest.raises(FreshetError, match="needs faiss"):
        DenseIndex.load(tmp_path / "approximate")
