"""Guards the round trip: ranks and shares against a loop, over the corpus's texts, by BM25 and by the base encoder."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from model_code.corpus.tables import Corpus, frame
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.index.bm25 import Bm25
from model_code.queries.pseudo_query import PseudoQuery
from model_code.queries.round_trip import make_search, shares_found, source_ranks
from tests.model_code.queries.toy import DOCUMENTS, WORDS
from tests.tiny_encoder import make_tiny_encoder

QUERIES = [
    PseudoQuery(i, " ".join(text.split()[n : n + 2]), "kind") for n in (0, 3) for i, text in DOCUMENTS.items()
]  # fmt: skip


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> EncoderSettings:
    folder = make_tiny_encoder(tmp_path_factory.mktemp("base") / "encoder", [*WORDS, "title"])
    return EncoderSettings(str(folder), max_tokens=16, precision="float32", device="cpu")


def corpus() -> Corpus:
    passages = pd.DataFrame({"document_id": list(DOCUMENTS), "title": "title", "text": list(DOCUMENTS.values())})
    return Corpus(passages, passages, frame("queries", []), frame("qrels", []))


def test_ranks_are_those_of_the_whole_ranking():
    search = Bm25(list(DOCUMENTS.values()), list(DOCUMENTS)).search
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
    plain = make_search("bm25", corpus(), EncoderSettings(encoder.base, include_title=False), tmp_path)
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
