"""Guards known queries as words of BM25: the scores follow the formula, N additions equal one
rebuild to the bit, and a query can be left out of its own document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_code.errors import SettingsError
from model_code.retrieval import bm25_index
from model_code.retrieval.bm25 import Bm25Retriever, build_folders, open_folders
from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.bm25_known import KnownWords
from model_code.retrieval.bm25_segment import Bm25Segment
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.indexed import NewPassages, RetrieverSegment
from model_code.text.known_queries import KnownQuery, KnownQueryLimits, QuerySource
from tests.model_code.collection.laws import reranked

PLAIN_TERMS = Bm25Settings(language=None)
WEIGHTS = (0.0, 0.25, 0.5, 1.0)
VOCABULARY = ("sort", "list", "read", "file", "table", "row")


def known(document_id: str, *texts: str) -> list[KnownQuery]:
    return [KnownQuery(document_id, text, QuerySource.ROW) for text in texts]


@dataclass
class Collection:
    """Documents with passages and known queries, and the index that is built of them at once."""

    passages: dict[str, list[str]] = field(default_factory=dict)
    queries: dict[str, list[KnownQuery]] = field(default_factory=dict)

    def build(self, folder: Path, words: KnownWords | None) -> Bm25Retriever:
        texts = []
        document_ids = []
        for document_id, passages in self.passages.items():
            texts.extend(passages)
            document_ids.extend([document_id] * len(passages))
        new = NewPassages(texts, document_ids, known=self.queries)
        build_folders(new, PLAIN_TERMS, folder / "encoder", folder / "index", words)
        return open_folders(folder / "encoder", folder / "index")


SMALL = Collection(
    {
        "a": ["sort list", "sort sort table"],
        "b": ["read file"],
        "c": ["read table file row row"],
    },
    {"a": known("a", "order rows of a table"), "b": known("b", "load a file", "open file")},
)


def formula(query: str, collection: Collection, words: KnownWords) -> dict[str, float]:
    """The formula of the module's docstring, word by word; the score of the best passage."""
    counts: list[tuple[str, dict[str, float], float]] = []
    for document_id, passages in collection.passages.items():
        asked = " ".join(query.text for query in collection.queries.get(document_id, [])).split()
        for passage in passages:
            terms = passage.split()
            frequencies = {term: float(terms.count(term)) for term in terms}
            length = float(len(terms))
            if words.weight:
                for term in asked:
                    frequencies[term] = frequencies.get(term, 0.0) + words.weight
            if words.in_length:
                length += words.weight * len(asked)
            counts.append((document_id, frequencies, length))

    mean_length = sum(length for _, _, length in counts) / len(counts)
    best = dict.fromkeys(collection.passages, 0.0)
    for document_id, frequencies, length in counts:
        score = 0.0
        for term in query.split():
            containing = sum(term in other for _, other, _ in counts)
            idf = math.log(1 + (len(counts) - containing + 0.5) / (containing + 0.5))
            frequency = frequencies.get(term, 0.0)
            norm = 1.2 * (1 - 0.75 + 0.75 * length / mean_length)
            score += idf * frequency / (frequency + norm)
        best[document_id] = max(best[document_id], score)
    return best


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("in_length", [True, False])
def test_known_words_follow_the_formula(weight: float, in_length: bool, tmp_path: Path) -> None:
    words = KnownWords(weight, in_length)
    retriever = SMALL.build(tmp_path, words)

    for query in ("order table", "file", "load rows", "sort a"):
        expected = formula(query, SMALL, words)
        found = dict(retriever.search([query], k=9)[0])
        assert found == pytest.approx({d: s for d, s in expected.items() if s > 0}, rel=1e-5)


def test_weight_must_keep_sums_exact() -> None:
    with pytest.raises(SettingsError, match=r"is 0.3, but must be a multiple of 0.25"):
        KnownWords(0.3, in_length=True)


def test_limits_bound_what_queries_add(tmp_path: Path) -> None:
    words = KnownWords(1.0, True, KnownQueryLimits(max_queries=2, max_words=3))
    many = replace(SMALL, queries={"b": known("b", "x one", "y", "z", "far too many words here")})
    retriever = many.build(tmp_path, words)

    assert retriever.known_segment is not None
    assert retriever.known_segment.queries.vocabulary == ["one", "x", "y"]


TEXT = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=5).map(" ".join)
DOCUMENT_IDS = st.sampled_from([f"d{i}" for i in range(6)])


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, str, list[str], list[str]]]:
    """Changes of a collection: puts, removals, replaced known queries, and merges."""
    kinds = st.sampled_from(["put", "put", "put", "remove", "replace", "merge"])
    count = draw(st.integers(2, 14))
    changes = []
    for _ in range(count):
        passages = draw(st.lists(TEXT, min_size=1, max_size=3))
        queries = draw(st.lists(TEXT, max_size=3))
        changes.append((draw(kinds), draw(DOCUMENT_IDS), passages, queries))
    return changes


class Incremental:
    """The same collection, changed step by step in segments, as a live collection does it."""

    def __init__(self, folder: Path, words: KnownWords) -> None:
        self.folder = folder
        empty = Bm25Segment.build([], [], None)
        self.template = Bm25Retriever(empty, PLAIN_TERMS, words)
        self.segments: list[RetrieverSegment] = []
        self.step = 0

    def next_folder(self) -> Path:
        self.step += 1
        return self.folder / str(self.step)

    def put(self, document_id: str, passages: Sequence[str], queries: list[KnownQuery]) -> None:
        self.remove(document_id)
        folder = self.next_folder()
        asked = {document_id: queries} if queries else {}
        ids = [document_id] * len(passages)
        self.template.write_segment(folder, NewPassages(passages, ids, known=asked))
        retriever = self.template.reopen(folder)
        self.segments.append(RetrieverSegment(retriever, retriever.segment.ids))

    def remove(self, document_id: str) -> None:
        for number, segment in enumerate(self.segments):
            if document_id in segment:
                removed = segment.removed | {document_id}
                self.segments[number] = replace(segment, removed=removed)

    def replace_queries(self, document_id: str, queries: list[KnownQuery]) -> None:
        for number, segment in enumerate(self.segments):
            if document_id in segment:
                changed = {**segment.known, document_id: queries}
                self.segments[number] = replace(segment, known=changed)

    def merge(self) -> None:
        if not self.segments:
            return
        sources = []
        overrides: dict[str, Sequence[KnownQuery]] = {}
        for segment in self.segments:
            live = [name for name in segment.rows.rows_by_document if name in segment]
            sources.append((segment.retriever, live))
            for name, queries in segment.known.items():
                if name in segment:
                    overrides[name] = queries
        folder = self.next_folder()
        Bm25Retriever.merge(sources, folder)
        retriever = self.template.reopen(folder)
        self.segments = [RetrieverSegment(retriever, retriever.segment.ids, known=overrides)]

    def index(self) -> Bm25Index:
        index = Bm25Retriever.join_segments(self.segments)
        assert isinstance(index, Bm25Index)
        return index


@settings(max_examples=25, deadline=None)
@given(
    changes=steps(),
    weight=st.sampled_from(WEIGHTS),
    in_length=st.booleans(),
    query=TEXT,
)
def test_n_changes_equal_one_rebuild_to_the_bit(
    changes: list[tuple[str, str, list[str], list[str]]],
    weight: float,
    in_length: bool,
    query: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    words = KnownWords(weight, in_length, KnownQueryLimits(max_queries=2, max_words=6))
    whole = Collection()
    incremental = Incremental(tmp_path_factory.mktemp("steps"), words)
    for kind, document_id, passages, texts in changes:
        queries = known(document_id, *texts)
        if kind == "put":
            whole.passages[document_id] = passages
            whole.queries[document_id] = queries
            incremental.put(document_id, passages, queries)
        elif kind == "remove":
            whole.passages.pop(document_id, None)
            whole.queries.pop(document_id, None)
            incremental.remove(document_id)
        elif kind == "replace" and document_id in whole.passages:
            whole.queries[document_id] = queries
            incremental.replace_queries(document_id, queries)
        elif kind == "merge":
            incremental.merge()
    if not incremental.segments:
        return

    rebuilt = whole.build(tmp_path_factory.mktemp("whole"), words)
    index = incremental.index()
    assert index.fingerprint == rebuilt.fingerprint
    assert index.search([query], 9) == rebuilt.search([query], 9)
    names = sorted(whole.passages)
    assert reranked(index, [query], [names]) == reranked(rebuilt, [query], [names])


@settings(max_examples=25, deadline=None)
@given(
    asked=st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.lists(TEXT, min_size=1, max_size=4, unique_by=lambda text: frozenset(text.split())),
        min_size=1,
    ),
    weight=st.sampled_from(WEIGHTS),
    in_length=st.booleans(),
    data=st.data(),
)
def test_score_without_is_that_of_an_index_without(
    asked: dict[str, list[str]],
    weight: float,
    in_length: bool,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Queries of five words with four in common are near-duplicates, so vocabularies are small."""
    words = KnownWords(weight, in_length, KnownQueryLimits(max_queries=9, max_words=99))
    queries = {name: known(name, *texts) for name, texts in asked.items()}
    index = replace(SMALL, queries=queries).build(tmp_path_factory.mktemp("all"), words)
    document_id = data.draw(st.sampled_from(sorted(asked)))
    left_out = data.draw(st.sampled_from(asked[document_id]))

    own_terms = frozenset(left_out.split())
    others = []
    for query in queries[document_id]:
        terms = frozenset(query.text.split())
        if len(terms & own_terms) < 0.8 * len(terms | own_terms):
            others.append(query)
    without = replace(SMALL, queries={**queries, document_id: others})
    expected = without.build(tmp_path_factory.mktemp("without"), words)

    score = score_without(index, left_out, document_id)
    encoded = expected.encode_queries([left_out])
    assert score == pytest.approx(expected.score_encoded(encoded, [[document_id]])[0][0], rel=1e-5)


def score_without(index: Bm25Index, query: str, document_id: str) -> float:
    """Score a document for a query as if the query were not a known query of this document."""
    return float(index.score_pairs_without(index.encode_queries([query]), [document_id])[0])


def joined_index(folder: Path) -> Bm25Index:
    """An index of two segments with a removed document, and with the statistics of the first."""
    first = SMALL.build(folder / "first", KnownWords(0.5, in_length=True))
    later = Collection(
        {"d": ["sort row row", "file list"], "e": ["table"]},
        {"d": known("d", "sort a table", "load a file", "file")},
    )
    second = later.build(folder / "second", KnownWords(0.5, in_length=True))
    first_ids = IdMap(["a", "a", "b", "c"])
    second_ids = IdMap(["d", "d", "e"])
    segments = [
        RetrieverSegment(first, first_ids, frozenset("b")),
        RetrieverSegment(second, second_ids),
    ]
    reference: Any = Bm25Retriever.join_segments([RetrieverSegment(first, first_ids)])
    index: Any = Bm25Retriever.join_segments(segments, reference=reference)
    return index


def test_pairs_are_scored_as_one_by_one(tmp_path: Path) -> None:
    index = joined_index(tmp_path)
    texts = ["sort a table", "file", "table table zebra", "order rows of a table", "load a file"]
    document_ids = ["d", "d", "e", "a", "c"]

    scores = index.score_pairs_without(index.encode_queries(texts), document_ids)

    for text, document_id, score in zip(texts, document_ids, scores.tolist(), strict=True):
        assert score == score_without(index, text, document_id)
    assert scores[0] > 0


@pytest.mark.parametrize("most_postings", [0, 2, 1000])
def test_loaded_terms_give_the_same_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_postings: int
) -> None:
    monkeypatch.setattr(bm25_index, "MAX_LOADED_POSTINGS", most_postings)
    index = joined_index(tmp_path)
    loaded = joined_index(tmp_path / "loaded")
    queries = loaded.encode_queries(["sort a table", "load file zebra", "row"])
    loaded.load_terms(queries)

    for text in ("sort a table", "load file zebra", "row"):
        assert loaded.scores(text).tolist() == index.scores(text).tolist()


def test_passages_are_counted_once_per_term(tmp_path: Path) -> None:
    index = joined_index(tmp_path)

    # "table" is a word of two texts of "a" and "c", of a query of "a" and "d", and of "e".
    assert index.count_passages(["table", "zebra", "open"]) == [6, 0, 0]


def test_own_query_does_not_find_its_document(tmp_path: Path) -> None:
    retriever = SMALL.build(tmp_path, KnownWords(1.0, True))
    own_query = "load a file"

    with_words = dict(retriever.search([own_query], 9)[0])["b"]
    assert score_without(retriever, own_query, "b") < with_words
    assert score_without(retriever, "zebra", "b") == 0
    assert np.isclose(score_without(retriever, "sort", "c"), 0)


def test_plain_index_ignores_known_queries(tmp_path: Path) -> None:
    plain = SMALL.build(tmp_path / "plain", None)
    weightless = SMALL.build(tmp_path / "weightless", KnownWords(0.0, True))

    assert plain.known_segment is None
    assert not (tmp_path / "plain" / "index" / "known").exists()
    for query in ("order table", "file", "load"):
        assert plain.search([query], 9) == weightless.search([query], 9)
        assert score_without(plain, query, "a") == score_without(weightless, query, "a")
