"""Guards dense retrievers of several layers from end to end, for every pooling: the stages train
and index, outputs are pure, documents are searched as the pooling says, and the trained folder
gives the same vectors elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus
from model_code.encoding.encoder import Encoder
from model_code.errors import SettingsError
from model_code.mlr.settings import LayerSettings
from model_code.mlr.training import set_indexed_layers
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import IndexSettings
from model_code.retrieval.kinds import open_retriever
from model_code.stages import index, train
from model_code.training.fit import reusable_vectors
from tests.model_code.collection.laws import reranked
from tests.model_code.stages.test_train import make_context

POOLINGS = ["self_contrastive", "multi_vector"]


def build(tmp_path: Path, layers: LayerSettings, **changes) -> tuple[StageContext, dict, dict]:
    """Run both stages; the index lies beside the trained encoder."""
    context = make_context(tmp_path, **changes)
    retriever = context.settings["retriever"].replace(layers=layers)
    context = replace(
        context, settings=context.settings | {"retriever": retriever, "index": IndexSettings()}
    )
    trained = train.run(context)
    checkpoints = context.checkpoints.parent / "index_checkpoints"
    checkpoints.mkdir()
    output = context.output.parent / "indexed"
    output.mkdir()
    inputs = {"corpus": context.inputs["corpus"], "trained": context.output}
    indexed = index.run(replace(context, inputs=inputs, output=output, checkpoints=checkpoints))
    return context, trained, indexed


def passages_of(context: StageContext) -> pd.DataFrame:
    return pd.read_parquet(context.inputs["corpus"] / "passages.parquet")


def document_vectors(context: StageContext, texts: list[str], pooling: str) -> np.ndarray:
    """(n, v, H), by sentence-transformers where its folder says all, else by our layers one by one."""
    from sentence_transformers import SentenceTransformer

    if pooling != "multi_vector":
        peer = SentenceTransformer(str(context.output / "encoder"), device="cpu")
        return peer.encode_document(texts)[:, None]
    encoder = Encoder.load(context.output / "encoder", 16, precision="float32", device="cpu")
    return encoder.layers_forward(encoder.tokenize(texts), (1, 2)).detach().numpy()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_trained_indexed_and_searched(tmp_path: Path, pooling: str) -> None:
    layers = LayerSettings(numbers=(1,), pooling=pooling, regulariser=0.2)
    context, trained, indexed = build(tmp_path, layers)
    assert (trained["layers"], trained["layer_pooling"]) == ([1, 2], pooling)
    passages = passages_of(context)
    assert (indexed["passages"], indexed["documents"]) == (len(passages), 16)
    assert trained["fingerprint"] == indexed["fingerprint"]
    retriever = open_retriever(
        context.output / "encoder", context.output.parent / "indexed" / "index"
    )
    vectors = document_vectors(context, passages["text"].tolist(), pooling)
    np.testing.assert_allclose(retriever.index.vectors.reshape(vectors.shape), vectors, atol=3e-6)
    query = passages["text"][3][:17]
    scores = (vectors @ retriever.encoder.encode([query])[0]).max(axis=1)
    best = pd.Series(scores).groupby(passages["document_id"]).max().sort_values(ascending=False)
    found = retriever.search([query], 5)[0]
    np.testing.assert_allclose([score for _, score in found], best.head(5), atol=3e-6)
    assert [document for document, _ in found] == best.head(5).index.tolist()
    two = passages[passages["document_id"] == "d03"].index
    assert retriever.best_passage_encoded(retriever.encode_queries([query]), "d03") == int(
        np.argmax(scores[two])
    )
    assert reranked(retriever, [query], [["d03", "d05"]])[0][0][0] == max(
        ("d03", "d05"), key=best.get
    )


@pytest.mark.parametrize(
    ("pooling", "taken"), [("self_contrastive", True), ("multi_vector", False)]
)
def test_base_vectors_are_reused_for_single_vectors(tmp_path, pooling, taken):
    context = make_context(tmp_path)
    index = DenseIndex.load(tmp_path / "base_index")
    encoder = Encoder.from_settings(context.settings["encoder"])
    set_indexed_layers(encoder, LayerSettings(numbers=(1,), pooling=pooling))
    vectors = reusable_vectors(context, encoder, load_corpus(context.inputs["corpus"]))
    assert (vectors is not None and np.array_equal(vectors, index.vectors)) == taken


def test_unknown_layer_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="above the encoder's last, which is 2"):
        build(tmp_path, LayerSettings(numbers=(2, 6)))


@pytest.mark.parametrize(
    "changes", [{"negatives": "bm25"}, {"hierarchy_weight": 0.0, "negatives": "bm25"}]
)
def test_layers_compose_with_hard_negatives(tmp_path: Path, changes: dict) -> None:
    _, trained, _ = build(tmp_path, LayerSettings(numbers=(1,), pooling="multi_vector"), **changes)
    assert trained["steps"] == 4
