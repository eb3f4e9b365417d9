"""Guards BM25: its scores against the formula in float64 and against bm25s, ties by id, empty
corner cases; and the law that N additions and deletions are one rebuild, to the bit.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import bm25s
import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.files import MANIFEST
from model_code.retrieval import bm25_index
from model_code.retrieval.bm25_index import Bm25Index, Bm25Segment, TermWeights, WeightCache
from model_code.retrieval.index_settings import Bm25Settings
from tests.model_code.collection.laws import reranked

TEXTS = [
    "sort list numbers",
    "sort sort table",
    "read file",
    "read table file numbers numbers",
    "read file",
]
DOCUMENTS = ["b", "b", "d", "a", "c"]


def formula(query: str, k1: float, b: float) -> list[float]:
    """The module docstring's formula, word by word, for each of `TEXTS`."""
    passages = [text.split() for text in TEXTS]
    mean = sum(map(len, passages)) / len(passages)
    scores = []
    for passage in passages:
        score = 0.0
        for term in query.split():
            having = sum(term in other for other in passages)
            idf = math.log(1 + (len(passages) - having + 0.5) / (having + 0.5))
            f = passage.count(term)
            score += idf * f / (f + k1 * (1 - b + b * len(passage) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75)])
def test_scores_and_ranks_follow_the_formula(k1: float, b: float) -> None:
    index = Bm25Index.build(TEXTS, DOCUMENTS, Bm25Settings(k1=k1, b=b))
    for query in ("sort", "numbers table", "read file numbers", "sort sort"):
        best: dict[str, float] = {}
        for document, score in zip(DOCUMENTS, formula(query, k1, b), strict=True):
            best[document] = max(score, best.get(document, 0.0))
        expected = sorted(
            ((d, s) for d, s in best.items() if s > 0),
            key=lambda item: (-round(item[1], 5), item[0]),
        )
        found = index.search([query], k=10)[0]
        assert [document for document, _ in found] == [document for document, _ in expected]
        assert [score for _, score in found] == pytest.approx(
            [score for _, score in expected], rel=1e-5
        )


def test_nothing_in_common_and_nothing_at_all() -> None:
    index = Bm25Index.build([*TEXTS, ""], [*DOCUMENTS, "e"])
    assert index.search(["zebra", "", "!", "zebra read"], k=1)[:3] == [[], [], []]
    assert index.search(["zebra read"], k=1)[0][0][0] == "c"
    assert Bm25Index.build([], []).search(["sort"], k=1) == [[]]
    assert Bm25Index.build(["", "!"], ["x", "y"]).search(["sort"], k=1) == [[]]


def test_bm25_breaks_ties_and_filters_consistently() -> None:
    index = Bm25Index.build(TEXTS, DOCUMENTS)
    assert [document for document, _ in index.search(["read file"], k=2)[0]] == ["c", "d"]
    whole = index.search(["sort table numbers read"], 9)[0]
    assert len(whole) == 4
    for allowed in (["a", "c"], ["b"], []):
        found = index.search(["sort table numbers read"], 2, allowed)[0]
        assert found == [hit for hit in whole if hit[0] in allowed][:2]


def test_scores_equal_bm25s() -> None:
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(200)]
    peer = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    peer.index([text.split() for text in texts], show_progress=False)
    index = Bm25Index.build(texts, [str(i) for i in range(len(texts))], Bm25Settings(language=None))
    for _ in range(20):
        query = draw.choices(WORDS, k=4)
        np.testing.assert_allclose(
            index.scores(" ".join(query)), peer.get_scores(query), rtol=1e-4, atol=1e-6
        )


WORDS = [f"word{i}" for i in range(60)]


def test_bm25_changes_equal_rebuild(tmp_path: Path) -> None:
    """500 random additions, changes and deletions; segments are merged, saved and loaded on the
    way.
    """
    draw, known = random.Random(2), {}
    segments: list[tuple[Bm25Segment, frozenset[str]]] = []
    for step in range(500):
        document = f"d{draw.randint(0, 80)}"
        segments = [
            (own, gone | {document} if document in own.ids else gone) for own, gone in segments
        ]
        known.pop(document, None)
        if draw.random() < 0.7:
            known[document] = [
                " ".join(draw.choices(WORDS, k=draw.randint(1, 12)))
                for _ in range(draw.randint(1, 3))
            ]
            segments.append(
                (
                    Bm25Segment.build(known[document], [document] * len(known[document]), None),
                    frozenset(),
                )
            )
        if len(segments) > 5:
            left = [
                (own, [name for name in dict.fromkeys(own.ids.document_ids) if name not in gone])
                for own, gone in segments
            ]
            segments = [(saved(Bm25Segment.merge(left), tmp_path / str(step)), frozenset())]
    pairs = [(name, text) for name in sorted(known) for text in known[name]]
    whole = Bm25Index.build(
        [text for _, text in pairs], [name for name, _ in pairs], Bm25Settings(language=None)
    )
    parts = Bm25Index(segments, Bm25Settings(language=None))
    queries = [" ".join(draw.choices(WORDS, k=3)) for _ in range(30)]
    allowed = sorted(known)[::3]
    for k in (1, 5, 100):
        assert parts.search(queries, k) == whole.search(queries, k)
        assert parts.search(queries, k, allowed) == whole.search(queries, k, allowed)
    for query in queries:
        assert reranked(parts, [query], [sorted(known)]) == reranked(
            whole, [query], [sorted(known)]
        )


def saved(segment: Bm25Segment, folder: Path) -> Bm25Segment:
    segment.save(folder, {})
    return Bm25Segment.load(folder)


def test_merged_bm25_segment_equals_built_segment(tmp_path: Path) -> None:
    one = Bm25Segment.build(TEXTS[:2], DOCUMENTS[:2], "english")
    other = Bm25Segment.build(
        [*TEXTS[2:], "gone with the wind"], [*DOCUMENTS[2:], "gone"], "english"
    )
    Bm25Segment.merge([(one, ["b"]), (other, ["a", "c", "d"])]).save(tmp_path / "merged", {})
    Bm25Segment.build(TEXTS, DOCUMENTS, "english").save(tmp_path / "built", {})
    for path in (tmp_path / "built").iterdir():
        assert (tmp_path / "merged" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    Bm25Segment.build(TEXTS, DOCUMENTS, None).save(tmp_path, {})
    (tmp_path / "vocabulary.json").write_text("[]")
    with pytest.raises(FreshetError, match=r"vocabulary\.json was changed"):
        Bm25Segment.load(tmp_path)


def test_segment_of_another_format_is_refused(tmp_path: Path) -> None:
    Bm25Segment.build(TEXTS, DOCUMENTS, None).save(tmp_path, {})
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    manifest["format"] = 1
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))

    with pytest.raises(FreshetError, match="has format 1, .* build it again: freshet run"):
        Bm25Segment.load(tmp_path)


def test_bm25_term_shares_sum_to_score() -> None:
    index = Bm25Index.build(TEXTS, DOCUMENTS)
    text = "sorted tables and numbers"
    assert index.can_explain, "else nobody may ask"
    shares, ((_, score),) = index.explain(text, "b"), reranked(index, [text], [["b"]])[0]
    assert {share.token for share in shares} == {"sort", "tabl"}
    assert sum(share.weight for share in shares) == pytest.approx(score, rel=1e-6)
    with pytest.raises(FreshetError, match="no document 'x'"):
        reranked(index, [text], [["x"]])


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("merging", "m"),
        ("dataframe", "m"),
        ("DataFrame.merge", "m"),
        ("frame", "m"),
        ("read csv", "r"),
        ("read_csv", "r"),
        ("排序", "z"),
        ("parse XML", "x"),
    ],
)
def test_words_are_found_whatever_their_form(query: str, found: str) -> None:
    texts = {
        "m": "DataFrame merges tables",
        "r": "pandas.read_csv of a file",
        "z": "用 Python 排序列表",
        "x": "XMLParser",
    }
    index = Bm25Index.build(list(texts.values()), list(texts))
    assert index.search([query], 1)[0][0][0] == found


def test_scores_with_a_reference_do_not_depend_on_later_documents() -> None:
    base = Bm25Segment.build(["red fish", "blue fish", "old boat"], ["a", "b", "c"], "english")
    first = Bm25Segment.build(["red boat red"], ["d"], "english")
    second = Bm25Segment.build(["red red red moon", "red"], ["e", "f"], "english")
    reference = Bm25Index([(base, frozenset())])

    before = Bm25Index([(base, frozenset()), (first, frozenset())], reference=reference)
    after = Bm25Index(
        [(base, frozenset("a")), (first, frozenset()), (second, frozenset())], reference=reference
    )

    assert before.scores("red boat")[3] == after.scores("red boat")[3]
    assert before.scores("red boat")[0] == reference.scores("red boat")[0]


def test_cache_forgets_the_weights_not_used_for_longest() -> None:
    weights = TermWeights(np.arange(2, dtype=np.int32), np.ones(2))
    cache = WeightCache(max_bytes=2 * weights.size)
    cache.put("a", weights)
    cache.put("b", weights)
    cache.get("a")

    cache.put("c", weights)

    assert [term for term in "abc" if cache.get(term) is not None] == ["a", "c"]


def test_weights_larger_than_the_cache_are_not_kept() -> None:
    weights = TermWeights(None, np.ones(8))
    cache = WeightCache(max_bytes=weights.size - 1)

    cache.put("common", weights)

    assert cache.get("common") is None


def test_scores_do_not_depend_on_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the cat sat", "dogs and a cat ran away", "a cat and a cat", "birds"]
    ids = ["a", "b", "c", "d"]
    queries = ["cat dogs", "birds", "cat cat sat"]
    expected = Bm25Index.build(texts, ids).search(queries, 4)
    monkeypatch.setattr(bm25_index, "MIN_CACHED_BYTES", 0)
    monkeypatch.setattr(bm25_index, "MAX_CACHED_BYTES_PER_PASSAGE", 0)

    assert Bm25Index.build(texts, ids).search(queries, 4) == expected
