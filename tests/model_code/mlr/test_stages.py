"""Test dense retrievers of several layers through training, indexing and search."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from model_code.retrieval.indexed import IndexedRetriever
from model_code.retrieval.kinds import open_retriever
from model_code.stages import index, train
from model_code.training.fit import reusable_vectors
from tests.model_code.collection.laws import reranked
from tests.model_code.stages.test_train import make_context

POOLINGS = ["self_contrastive", "multi_vector"]


@dataclass
class Build:
    """A trained and indexed retriever.

    Attributes:
        context: Context of the `train` stage.
        index: Folder of the index.
        training_report: Report of `train`.
        index_report: Report of `index`.
    """

    context: StageContext
    index: Path
    training_report: dict
    index_report: dict

    @property
    def encoder(self) -> Path:
        return self.context.output / "encoder"

    @property
    def passages(self) -> pd.DataFrame:
        return pd.read_parquet(self.context.inputs["corpus"] / "passages.parquet")

    def open(self) -> IndexedRetriever:
        return open_retriever(self.encoder, self.index)


def build(tmp_path: Path, layers: LayerSettings, **changes) -> Build:
    """Run the stages `train` and `index`."""
    context = make_context(tmp_path, **changes)
    settings = dict(context.settings)
    settings["retriever"] = settings["retriever"].replace(layers=layers)
    settings["index"] = IndexSettings()
    context = replace(context, settings=settings)
    training_report = train.run(context)

    checkpoints = context.checkpoints.parent / "index_checkpoints"
    checkpoints.mkdir()
    output = context.output.parent / "indexed"
    output.mkdir()
    inputs = {"corpus": context.inputs["corpus"], "trained": context.output}
    index_context = replace(context, inputs=inputs, output=output, checkpoints=checkpoints)
    index_report = index.run(index_context)
    return Build(context, output / "index", training_report, index_report)


def document_vectors(built: Build, texts: list[str], pooling: str) -> np.ndarray:
    """Return the vectors (n, v, H) of texts, computed without the index.

    A folder of sentence-transformers describes the pooling of single vectors completely. The
    vectors of several layers are computed by our encoder.
    """
    from sentence_transformers import SentenceTransformer

    if pooling != "multi_vector":
        model = SentenceTransformer(str(built.encoder), device="cpu")
        return model.encode_document(texts)[:, None]
    encoder = Encoder.load(built.encoder, 16, precision="float32", device="cpu")
    return encoder.layers_forward(encoder.tokenize(texts), (1, 2)).detach().numpy()


@pytest.fixture(scope="module", params=POOLINGS)
def pooling(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def built(pooling: str, tmp_path_factory: pytest.TempPathFactory) -> Build:
    layers = LayerSettings(numbers=(1,), pooling=pooling, regulariser=0.2)
    return build(tmp_path_factory.mktemp(pooling), layers)


@pytest.fixture(scope="module")
def vectors(built: Build, pooling: str) -> np.ndarray:
    return document_vectors(built, built.passages["text"].tolist(), pooling)


@pytest.fixture(scope="module")
def query(built: Build) -> str:
    return built.passages["text"][3][:17]


@pytest.fixture(scope="module")
def passage_scores(built: Build, vectors: np.ndarray, query: str) -> np.ndarray:
    """Return the score of each passage, which is that of its best vector."""
    query_vector = built.open().encoder.encode_queries([query])[0]
    return (vectors @ query_vector).max(axis=1)


@pytest.fixture(scope="module")
def document_scores(built: Build, passage_scores: np.ndarray) -> pd.Series:
    """Return the score of each document, which is that of its best passage, best first."""
    scores = pd.Series(passage_scores).groupby(built.passages["document_id"]).max()
    return scores.sort_values(ascending=False)


def test_reports_name_layers_and_sizes(built: Build, pooling: str) -> None:
    assert built.training_report["layers"] == [1, 2]
    assert built.training_report["layer_pooling"] == pooling
    assert built.index_report["passages"] == len(built.passages)
    assert built.index_report["documents"] == 16


def test_index_has_the_fingerprint_of_training(built: Build) -> None:
    assert built.training_report["fingerprint"] == built.index_report["fingerprint"]


def test_indexed_vectors_are_those_of_the_trained_folder(built: Build, vectors: np.ndarray) -> None:
    indexed_vectors = built.open().index.vectors.reshape(vectors.shape)

    np.testing.assert_allclose(indexed_vectors, vectors, atol=3e-6)


def test_search_ranks_documents_by_their_best_vector(
    built: Build, query: str, document_scores: pd.Series
) -> None:
    (hits,) = built.open().search([query], 5)

    expected = document_scores.head(5)
    np.testing.assert_allclose([score for _, score in hits], expected, atol=3e-6)
    assert [document for document, _ in hits] == expected.index.tolist()


def test_best_passage_has_the_best_vector(
    built: Build, query: str, passage_scores: np.ndarray
) -> None:
    retriever = built.open()
    encoded_query = retriever.encode_queries([query])

    best_passage = retriever.best_passage_encoded(encoded_query, "d03")

    is_of_document = built.passages["document_id"] == "d03"
    assert best_passage == int(np.argmax(passage_scores[is_of_document]))


def test_reranking_puts_the_best_document_first(
    built: Build, query: str, document_scores: pd.Series
) -> None:
    candidates = ["d03", "d05"]

    (ranking,) = reranked(built.open(), [query], [candidates])

    assert ranking[0][0] == max(candidates, key=document_scores.get)


def vectors_to_reuse(context: StageContext, pooling: str) -> np.ndarray | None:
    encoder = Encoder.from_settings(context.settings["encoder"])
    set_indexed_layers(encoder, LayerSettings(numbers=(1,), pooling=pooling))
    return reusable_vectors(context, encoder, load_corpus(context.inputs["corpus"]))


def test_base_vectors_are_reused_for_single_vectors(tmp_path: Path) -> None:
    context = make_context(tmp_path)

    vectors = vectors_to_reuse(context, "self_contrastive")

    base_index = DenseIndex.load(tmp_path / "base_index")
    assert np.array_equal(vectors, base_index.vectors)


def test_base_vectors_are_not_reused_for_several_vectors(tmp_path: Path) -> None:
    assert vectors_to_reuse(make_context(tmp_path), "multi_vector") is None


def test_unknown_layer_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="above the encoder's last, which is 2"):
        build(tmp_path, LayerSettings(numbers=(2, 6)))


@pytest.mark.parametrize(
    "changes", [{"negatives": "bm25"}, {"hierarchy_weight": 0.0, "negatives": "bm25"}]
)
def test_layers_compose_with_hard_negatives(tmp_path: Path, changes: dict) -> None:
    layers = LayerSettings(numbers=(1,), pooling="multi_vector")

    built = build(tmp_path, layers, **changes)

    assert built.training_report["steps"] == 4
