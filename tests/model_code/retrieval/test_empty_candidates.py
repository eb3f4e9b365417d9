"""Guards that every kind of retriever takes an empty list of candidates, alone or beside a full
one: BM25 may find nothing to rerank, and a filter may let no document through.
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

IDS = [f"d{i // 2:02}" for i in range(len(TEXTS))]  # two passages each
KINDS = ["dense", "multi_vector", "dsi", *NAMES, "beta_on_the_fly"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, and lexical indexes with and without embeddings."""
    folder = tmp_path_factory.mktemp("kinds")
    encoder = make_encoder(folder / "base")
    for name, search in (("stored", "full"), ("flying", "beta_rerank")):
        settings = SETTINGS.replace(search=search)
        (folder / f"{name} shards").mkdir()
        build_folder(folder / name, encoder, TEXTS, IDS, settings, folder / f"{name} shards")
    return folder


def make_retriever(kind: str, folder: Path) -> Retriever:
    if kind in NAMES or kind == "beta_on_the_fly":
        index, search = ("stored", kind) if kind in NAMES else ("flying", "beta_rerank")
        return LexicalRetriever.open(folder / index, make_encoder(folder / "base")).by(search)  # type: ignore[arg-type]
    encoder = Encoder.load(folder / "base", 16, precision="float32", device="cpu")
    if kind == "multi_vector":
        set_indexed_layers(encoder, LayerSettings(numbers=(1,), pooling="multi_vector"))
    vectors, each, ids = encoder.encode_documents(TEXTS), encoder.vectors_per_passage, IDS
    if kind == "dsi":
        vectors, ids = 3 * vectors[::2], IDS[::2]
    ids = np.repeat(ids, each).tolist()
    return DenseRetriever(
        encoder, DenseIndex.build(vectors, ids, encoder.fingerprint(), vectors_per_passage=each)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_candidates_and_no_allowed_documents_give_none(kind: str, folder: Path) -> None:
    retriever = make_retriever(kind, folder)
    some = ["d03", "d01"]
    alone = reranked(retriever, [TEXTS[2]], [some])
    assert {document for document, _ in alone[0]} == set(some)
    assert reranked(retriever, [TEXTS[2]], [[]]) == [[]]
    assert reranked(retriever, [TEXTS[0], TEXTS[2], TEXTS[4]], [[], some, []]) == [[], alone[0], []]
    assert reranked(retriever, [], []) == []
    assert retriever.search([TEXTS[2]], 3, allowed=[]) == [[]]
    assert len(retriever.search([TEXTS[2]], 3)[0]) == 3
