"""Test that every kind of retriever accepts an empty list of candidates.

BM25 may find nothing to rerank, and a filter may allow no document.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.encoding.encoder import Encoder
from model_code.lexical.index import NAMES, build_folder
from model_code.lexical.retriever import LexicalRetriever
from model_code.mlr.settings import LayerSettings
from model_code.mlr.training import set_indexed_layers
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.protocol import Retriever
from tests.model_code.collection.laws import reranked
from tests.model_code.lexical.example import SETTINGS, TEXTS, make_encoder

# Each document has two passages.
IDS = [f"d{i // 2:02}" for i in range(len(TEXTS))]
KINDS = ["dense", "multi_vector", "dsi", *NAMES, "beta_on_the_fly"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an encoder, and lexical indexes with and without embeddings."""
    folder = tmp_path_factory.mktemp("kinds")
    encoder = make_encoder(folder / "base")
    for name, search in (("stored", "full"), ("flying", "beta_rerank")):
        settings = SETTINGS.replace(search=search)
        (folder / f"{name} shards").mkdir()
        build_folder(folder / name, encoder, TEXTS, IDS, settings, folder / f"{name} shards")
    return folder


def open_lexical(index: Path, search: str) -> LexicalRetriever:
    encoder = make_encoder(index.parent / "base")
    return LexicalRetriever.open(index, encoder).with_main_search(search)  # type: ignore[arg-type]


def make_retriever(kind: str, folder: Path) -> Retriever:
    if kind in NAMES:
        return open_lexical(folder / "stored", kind)
    if kind == "beta_on_the_fly":
        return open_lexical(folder / "flying", "beta_rerank")

    encoder = Encoder.load(folder / "base", 16, precision="float32", device="cpu")
    if kind == "multi_vector":
        set_indexed_layers(encoder, LayerSettings(numbers=(1,), pooling="multi_vector"))
    vectors = encoder.encode_documents(TEXTS)
    ids = IDS
    if kind == "dsi":
        vectors = 3 * vectors[::2]
        ids = IDS[::2]

    vectors_per_passage = encoder.vectors_per_passage
    index = DenseIndex.build(
        vectors,
        np.repeat(ids, vectors_per_passage).tolist(),
        encoder.fingerprint(),
        vectors_per_passage=vectors_per_passage,
    )
    return DenseRetriever(encoder, index)


CANDIDATES = ["d03", "d01"]


@pytest.fixture(scope="module", params=KINDS)
def retriever(request: pytest.FixtureRequest, folder: Path) -> Retriever:
    return make_retriever(request.param, folder)


def test_candidates_are_reranked(retriever: Retriever) -> None:
    (ranking,) = reranked(retriever, [TEXTS[2]], [CANDIDATES])

    assert {document for document, _ in ranking} == set(CANDIDATES)


def test_no_candidates_have_no_ranking(retriever: Retriever) -> None:
    assert reranked(retriever, [TEXTS[2]], [[]]) == [[]]


def test_empty_candidates_do_not_affect_others(retriever: Retriever) -> None:
    (ranking,) = reranked(retriever, [TEXTS[2]], [CANDIDATES])

    rankings = reranked(retriever, [TEXTS[0], TEXTS[2], TEXTS[4]], [[], CANDIDATES, []])

    assert rankings == [[], ranking, []]


def test_no_queries_have_no_rankings(retriever: Retriever) -> None:
    assert reranked(retriever, [], []) == []


def test_no_allowed_documents_have_no_ranking(retriever: Retriever) -> None:
    assert retriever.search([TEXTS[2]], 3, allowed=[]) == [[]]
    assert len(retriever.search([TEXTS[2]], 3)[0]) == 3
