"""Guards the filters of pseudo-queries: against a double loop over queries and documents, and the round trip."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import pytest

from model_code.corpus.tables import Corpus, frame
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.index.bm25 import Bm25
from model_code.queries.filtering import (
    AMBIGUOUS,
    EMPTY,
    LOST,
    REPEATED,
    drop_lost,
    make_search,
    normalised,
    reasons_to_drop,
    shares_found,
    source_ranks,
)
from model_code.queries.pseudo_queries import PseudoQuery
from tests.model_code.queries.toy import DOCUMENTS, WORDS
from tests.tiny_encoder import make_tiny_encoder

TEXTS = {"d1": "The quick brown fox.", "d2": "A lazy dog: the QUICK brown bear", "d3": "the cat sat"}


@pytest.mark.parametrize(
    ("document", "text", "reason"),
    [
        ("d1", "brown fox", None),
        ("d1", "--- !", EMPTY),
        ("d1", "Quick, brown", AMBIGUOUS),
        ("d3", "lazy dog", AMBIGUOUS),  # a generated query that another document answers word for word
        ("d3", "quick fox", None),
        ("d3", "he cat", None),  # whole words only: "the cat" does not contain it
    ],
)
def test_reasons_by_example(document, text, reason):
    assert reasons_to_drop([PseudoQuery(document, text, "k")], TEXTS) == [reason]


def test_the_same_query_of_two_documents_is_dropped_from_both():
    queries = [PseudoQuery("d1", "which animal?", "k"), PseudoQuery("d3", "Which animal", "k")]
    assert reasons_to_drop(queries, TEXTS) == [AMBIGUOUS, AMBIGUOUS]


def test_of_repeated_queries_of_one_document_the_first_is_kept():
    queries = [PseudoQuery("d1", text, kind) for text, kind in (("brown fox", "k"), ("Brown fox!", "k"), ("fox", "k"))]
    assert reasons_to_drop(queries, TEXTS) == [None, REPEATED, None]


def test_equals_a_double_loop_on_random_texts():
    chance = random.Random(5)
    documents = {f"d{i}": " ".join(chance.choices("abcdefg", k=12)) for i in range(40)}
    queries = [
        PseudoQuery(document, documents[document][start : start + 8], "k")
        for document in documents
        for start in (0, 4, 8, 16)
    ]
    slow = []
    for n, query in enumerate(queries):
        fitting = {query.document_id}
        for document, text in documents.items():
            if f" {normalised(query.text)} " in f" {text} ":
                fitting.add(document)
        again = any((query.document_id, query.text) == (other.document_id, other.text) for other in queries[:n])
        slow.append(AMBIGUOUS if len(fitting) > 1 else REPEATED if again else None)
    assert reasons_to_drop(queries, documents) == slow
    assert set(slow) == {AMBIGUOUS, None}


def test_normalising_keeps_letters_of_any_script():
    assert normalised("Größe_x = ΔT; 東京") == "grösse_x δt 東 京"


def test_a_query_that_was_searched_for_and_not_found_is_lost():
    ranks = {0: 1, 1: 4, 2: None, 4: None}  # 3 was not searched for
    reasons = [None, None, None, None, EMPTY]
    assert drop_lost(reasons, ranks, depth=4) == [None, None, LOST, None, EMPTY]
    assert drop_lost(reasons, ranks, depth=3) == [None, LOST, LOST, None, EMPTY]


QUERIES = [
    PseudoQuery(i, " ".join(text.split()[n : n + 2]), "kind") for n in (0, 3) for i, text in DOCUMENTS.items()
]  # fmt: skip


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> EncoderSettings:
    folder = make_tiny_encoder(tmp_path_factory.mktemp("base") / "encoder", [*WORDS, "title"])
    return EncoderSettings(base=str(folder), max_tokens=16, precision="float32", device="cpu")


def corpus() -> Corpus:
    passages = pd.DataFrame({"document_id": list(DOCUMENTS), "title": "title", "text": list(DOCUMENTS.values())})
    return Corpus(passages, passages, frame("queries", []), frame("qrels", []))


def test_ranks_are_those_of_the_whole_ranking():
    search = Bm25.build(list(DOCUMENTS.values()), list(DOCUMENTS)).search
    whole = [[document for document, _ in search([query.text], 16)[0]] for query in QUERIES]
    expected = [row.index(query.document_id) + 1 for row, query in zip(whole, QUERIES, strict=True)]
    assert max(expected) > 1
    assert source_ranks(QUERIES, search, 16) == expected
    assert source_ranks(QUERIES, search, 1) == [1 if rank == 1 else None for rank in expected]
    assert shares_found(source_ranks(QUERIES, search, 2), 2) == {
        "first": expected.count(1) / 32, "first_2": sum(rank <= 2 for rank in expected) / 32
    }  # fmt: skip


def test_no_query_no_share():
    assert source_ranks([], lambda texts, k: pytest.fail("nothing to search for"), 3) == []
    assert shares_found([], 3) == {"first": None, "first_3": None}


def test_bm25_searches_what_the_encoder_encodes(encoder: EncoderSettings, tmp_path: Path):
    search = make_search("bm25", corpus(), encoder, tmp_path)
    assert len(search(["title"], 20)[0]) == 16
    plain = make_search("bm25", corpus(), EncoderSettings(base=encoder.base, include_title=False), tmp_path)
    assert plain(["title"], 20) == [[]]
    assert [i for i, _ in plain([DOCUMENTS["d03"]], 1)[0]] == ["d03"]
    assert not list(tmp_path.iterdir())


def test_base_is_the_untrained_encoder_and_its_work_is_kept(encoder: EncoderSettings, tmp_path: Path):
    ranking = make_search("base", corpus(), encoder, tmp_path)(["w1 w2"], 16)[0]
    untrained = Encoder.from_settings(encoder)
    scores = untrained.encode([f"title {text}" for text in DOCUMENTS.values()]) @ untrained.encode(["w1 w2"])[0]
    best = sorted(zip(DOCUMENTS, scores.tolist(), strict=True), key=lambda item: -item[1])
    assert [document for document, _ in ranking] == [document for document, _ in best]
    assert [path.suffix for path in tmp_path.iterdir()] == [".npy"]
