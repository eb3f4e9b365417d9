"""Tests of BM25.

Its scores follow the formula in float64 and equal those of bm25s. Equal scores are sorted by id. N
additions and deletions equal one rebuild, to the bit.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import bm25s
import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.retrieval import bm25_index
from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.bm25_segment import Bm25Segment
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.protocol import Ranking
from tests.model_code.collection.laws import reranked

TEXTS = [
    "sort list numbers",
    "sort sort table",
    "read file",
    "read table file numbers numbers",
    "read file",
]
DOCUMENTS = ["b", "b", "d", "a", "c"]
WORDS = [f"word{i}" for i in range(60)]
SIMPLE_WORDS = Bm25Settings(language=None)
NOTHING_REMOVED = frozenset[str]()


def documents_of(ranking: Ranking) -> list[str]:
    """Return the documents of a ranking, best first."""
    return [document for document, _ in ranking]


def scores_by_formula(query: str, k1: float, b: float) -> list[float]:
    """Return the score of each of TEXTS by the formula of the module, word by word."""
    passages = [text.split() for text in TEXTS]
    mean_length = sum(len(passage) for passage in passages) / len(passages)
    scores = []
    for passage in passages:
        score = 0.0
        for term in query.split():
            with_term = sum(term in other for other in passages)
            idf = math.log(1 + (len(passages) - with_term + 0.5) / (with_term + 0.5))
            frequency = passage.count(term)
            length_factor = 1 - b + b * len(passage) / mean_length
            score += idf * frequency / (frequency + k1 * length_factor)
        scores.append(score)
    return scores


def rank_by_formula(query: str, k1: float, b: float) -> Ranking:
    """Return the documents that match, by their best passage; nearly equal scores by id."""
    best: dict[str, float] = {}
    for document, score in zip(DOCUMENTS, scores_by_formula(query, k1, b), strict=True):
        if score > 0:
            best[document] = max(score, best.get(document, 0.0))

    def sort_key(hit: tuple[str, float]) -> tuple[float, str]:
        document, score = hit
        return -round(score, 5), document

    return sorted(best.items(), key=sort_key)


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75)])
@pytest.mark.parametrize("query", ["sort", "numbers table", "read file numbers", "sort sort"])
def test_scores_and_ranks_follow_the_formula(k1: float, b: float, query: str) -> None:
    index = Bm25Index.build(TEXTS, DOCUMENTS, Bm25Settings(k1=k1, b=b))

    (ranking,) = index.search([query], k=10)

    expected = rank_by_formula(query, k1, b)
    assert documents_of(ranking) == documents_of(expected)
    scores = [score for _, score in ranking]
    expected_scores = [score for _, score in expected]
    assert scores == pytest.approx(expected_scores, rel=1e-5)


@pytest.mark.parametrize("query", ["zebra", "", "!"])
def test_query_without_a_known_word_finds_nothing(query: str) -> None:
    index = Bm25Index.build([*TEXTS, ""], [*DOCUMENTS, "e"])

    assert index.search([query], k=1) == [[]]


def test_unknown_words_beside_known_ones_are_ignored() -> None:
    index = Bm25Index.build([*TEXTS, ""], [*DOCUMENTS, "e"])

    (ranking,) = index.search(["zebra read"], k=1)

    assert documents_of(ranking) == ["c"]


@pytest.mark.parametrize("texts", [[], ["", "!"]])
def test_index_without_words_finds_nothing(texts: list[str]) -> None:
    document_ids = [f"d{number}" for number in range(len(texts))]

    assert Bm25Index.build(texts, document_ids).search(["sort"], k=1) == [[]]


def test_equal_scores_are_sorted_by_id() -> None:
    index = Bm25Index.build(TEXTS, DOCUMENTS)

    (ranking,) = index.search(["read file"], k=2)

    assert documents_of(ranking) == ["c", "d"]


@pytest.mark.parametrize("allowed", [["a", "c"], ["b"], []])
def test_filter_keeps_order_and_scores(allowed: list[str]) -> None:
    index = Bm25Index.build(TEXTS, DOCUMENTS)
    (whole,) = index.search(["sort table numbers read"], 9)

    (ranking,) = index.search(["sort table numbers read"], 2, allowed)

    assert len(whole) == 4
    expected = [hit for hit in whole if hit[0] in allowed]
    assert ranking == expected[:2]


@pytest.mark.parametrize("allowed_documents", [1, 5, 30])
def test_filter_of_any_size_keeps_order_and_scores(allowed_documents: int) -> None:
    draw = random.Random(3)
    texts = [" ".join(draw.choices(WORDS[:9], k=6)) for _ in range(80)]
    names = [f"d{draw.randrange(40):02d}" for _ in texts]
    index = Bm25Index.build(texts, names, SIMPLE_WORDS)
    allowed = set(draw.sample(sorted(set(names)), allowed_documents))
    (whole,) = index.search(["word1 word2 word3"], 99)

    (ranking,) = index.search(["word1 word2 word3"], 99, allowed)

    assert ranking == [hit for hit in whole if hit[0] in allowed]


def test_scores_equal_bm25s() -> None:
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(200)]
    peer = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    peer.index([text.split() for text in texts], show_progress=False)
    index = Bm25Index.build(texts, [str(i) for i in range(len(texts))], SIMPLE_WORDS)

    for _ in range(20):
        query = draw.choices(WORDS, k=4)
        scores = index.scores(" ".join(query))
        np.testing.assert_allclose(scores, peer.get_scores(query), rtol=1e-4, atol=1e-6)


class ChangingIndex:
    """Segments that take additions, changes and deletions, and the texts that they must hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts: dict[str, list[str]] = {}
        self.segments: list[tuple[Bm25Segment, frozenset[str]]] = []

    def delete(self, document: str) -> None:
        """Mark a document as removed in the segments that hold it."""
        self.texts.pop(document, None)
        segments = []
        for segment, removed in self.segments:
            if document in segment.ids:
                removed = removed | {document}
            segments.append((segment, removed))
        self.segments = segments

    def add(self, document: str, texts: list[str]) -> None:
        """Put a document into a segment of its own."""
        self.texts[document] = texts
        segment = Bm25Segment.build(texts, [document] * len(texts), None)
        self.segments.append((segment, NOTHING_REMOVED))

    def merge(self) -> None:
        """Merge all segments into one, save it and load it again."""
        remaining = []
        for segment, removed in self.segments:
            names = dict.fromkeys(segment.ids.document_ids)
            remaining.append((segment, [name for name in names if name not in removed]))
        merged = Bm25Segment.merge(remaining)
        merged.save(self.folder, {})
        self.segments = [(Bm25Segment.load(self.folder), NOTHING_REMOVED)]

    def rebuild(self) -> Bm25Index:
        """Index the texts at once."""
        document_ids = []
        texts = []
        for name in sorted(self.texts):
            document_ids += [name] * len(self.texts[name])
            texts += self.texts[name]
        return Bm25Index.build(texts, document_ids, SIMPLE_WORDS)


def test_bm25_changes_equal_rebuild(tmp_path: Path) -> None:
    """After 500 random additions, changes and deletions, with merges between them."""
    draw = random.Random(2)
    changing = ChangingIndex(tmp_path)
    for step in range(500):
        document = f"d{draw.randint(0, 80)}"
        changing.delete(document)
        if draw.random() < 0.7:
            passages = draw.randint(1, 3)
            texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(passages)]
            changing.add(document, texts)
        if len(changing.segments) > 5:
            changing.folder = tmp_path / str(step)
            changing.merge()
    index = Bm25Index(changing.segments, SIMPLE_WORDS)
    rebuilt = changing.rebuild()
    queries = [" ".join(draw.choices(WORDS, k=3)) for _ in range(30)]
    documents = sorted(changing.texts)
    allowed = documents[::3]

    for k in (1, 5, 100):
        assert index.search(queries, k) == rebuilt.search(queries, k)
        assert index.search(queries, k, allowed) == rebuilt.search(queries, k, allowed)
    for query in queries:
        expected = reranked(rebuilt, [query], [documents])
        assert reranked(index, [query], [documents]) == expected


def test_bm25_term_shares_sum_to_score() -> None:
    index = Bm25Index.build(TEXTS, DOCUMENTS)
    query = "sorted tables and numbers"
    ((_, score),) = reranked(index, [query], [["b"]])[0]

    shares = index.explain(query, "b")

    assert index.can_explain
    assert {share.token for share in shares} == {"sort", "tabl"}
    assert sum(share.weight for share in shares) == pytest.approx(score, rel=1e-6)


def test_scores_of_unknown_documents_are_refused() -> None:
    index = Bm25Index.build(TEXTS, DOCUMENTS)

    with pytest.raises(FreshetError, match="no document 'x'"):
        reranked(index, ["sort"], [["x"]])


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
def test_words_are_found_in_any_form(query: str, found: str) -> None:
    texts = {
        "m": "DataFrame merges tables",
        "r": "pandas.read_csv of a file",
        "z": "用 Python 排序列表",
        "x": "XMLParser",
    }
    index = Bm25Index.build(list(texts.values()), list(texts))

    (ranking,) = index.search([query], 1)

    assert documents_of(ranking) == [found]


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


def test_scores_do_not_depend_on_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the cat sat", "dogs and a cat ran away", "a cat and a cat", "birds"]
    ids = ["a", "b", "c", "d"]
    queries = ["cat dogs", "birds", "cat cat sat"]
    expected = Bm25Index.build(texts, ids).search(queries, 4)
    monkeypatch.setattr(bm25_index, "MIN_CACHED_BYTES", 0)
    monkeypatch.setattr(bm25_index, "MAX_CACHED_BYTES_PER_PASSAGE", 0)

    assert Bm25Index.build(texts, ids).search(queries, 4) == expected


def test_many_queries_keep_no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of queries over a large index would fill the memory with scores."""
    index = Bm25Index.build(TEXTS, DOCUMENTS, SIMPLE_WORDS)
    texts = ["sort table", "read file", "numbers"]
    expected = index.search(texts, 3)
    monkeypatch.setattr(bm25_index, "MAX_KEPT_SCORES", 2 * len(TEXTS))

    queries = index.encode_queries(texts)

    assert index.search_encoded(queries, 3) == expected
    assert not any(query.scores for query in queries)
    index.score_encoded(queries[:2], [["a"], ["b"]])
    assert [len(query.scores) for query in queries] == [1, 1, 0]
