"""Test a dsi through its stages (train, index, evaluate) and in the live collection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.searcher import Searcher
from model_code.context import StageContext
from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.vectors import REPRESENTATIVES
from model_code.errors import FreshetError
from model_code.evaluation.runs import write_run
from model_code.evaluation.scores import EVALUATED_SPLITS
from model_code.files import hash_path, read_json
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.indexed import IndexedRetriever
from model_code.retrieval.kinds import open_retriever
from model_code.stages import evaluate, train
from model_code.text.documents import Document, Remove
from tests.model_code.collection.laws import up_to
from tests.model_code.dsi.small_corpus import IDS, LONG, RULES, go_live, make_context, run_index

SETTINGS = DocumentVectorSettings(epochs=6, batch_size=16, learning_rate=2e-2, patience=None)


Built = tuple[StageContext, StageContext]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return the contexts of a finished `train` and a finished `index`."""
    root = tmp_path_factory.mktemp("dsi")
    training = make_context(root, SETTINGS)
    train.run(training)
    return training, run_index(training, root / "index")


@pytest.fixture(scope="module")
def index(built: Built) -> DenseIndex:
    _, indexing = built
    return DenseIndex.load(indexing.output / "index")


@pytest.fixture(scope="module")
def retriever(built: Built) -> IndexedRetriever:
    training, indexing = built
    settings = training.settings["encoder"]
    return open_retriever(training.output / "encoder", indexing.output / "index", settings)


def test_index_manifest_names_kind_and_sizes(built: Built, index: DenseIndex):
    _, indexing = built

    manifest = read_json(indexing.output / "index" / "manifest.json")

    assert manifest["kind"] == "dsi"
    assert manifest["documents"] == 24
    assert manifest["passages"] == 24
    assert manifest["fingerprint"] == index.fingerprint


def test_index_holds_the_learned_vectors(built: Built, index: DenseIndex):
    training, indexing = built
    learned_folder = training.output / "document_vectors"

    learned = DenseIndex.load(learned_folder)

    np.testing.assert_array_equal(index.vectors, learned.vectors)
    assert index.fingerprint == learned.fingerprint
    representatives = indexing.output / "index" / REPRESENTATIVES
    assert hash_path(representatives) == hash_path(learned_folder / REPRESENTATIVES)


def test_index_has_one_row_per_document(index: DenseIndex):
    assert index.document_ids == IDS


def test_index_keeps_learned_norms(index: DenseIndex):
    norms = np.linalg.norm(index.vectors, axis=1)

    assert np.abs(norms - 1).max() > 1e-3


def test_index_is_reproducible(built: Built, tmp_path: Path):
    training, indexing = built

    repeated = run_index(training, tmp_path / "repeated")

    assert hash_path(repeated.output) == hash_path(indexing.output)


def test_search_ranks_by_the_product_with_every_vector(
    index: DenseIndex, retriever: IndexedRetriever
):
    (ranking,) = retriever.search(["ask1 ask2"], 24)

    products = index.vectors @ retriever.encoder.encode_queries(["ask1 ask2"])[0]
    order = np.argsort(-products, kind="stable")
    assert [name for name, _ in ranking] == [IDS[row] for row in order]
    assert [score for _, score in ranking] == pytest.approx(products[order].tolist(), abs=1e-5)


def test_filtered_search_keeps_the_scores(retriever: IndexedRetriever):
    (ranking,) = retriever.search(["ask1 ask2"], 24)

    (filtered,) = retriever.search(["ask1 ask2"], 1, allowed=["d07", "d03"])

    assert filtered[0] in ranking


@pytest.mark.parametrize("name", [*LONG, "d00"])
def test_best_passage_is_the_first(retriever: IndexedRetriever, name: str):
    query = retriever.encode_queries(["ask1"])

    assert retriever.best_passage_encoded(query, name) == 0


def test_evaluation_agrees_with_training(built: Built, tmp_path: Path):
    training, indexing = built
    (tmp_path / "bm25").mkdir()
    for split in EVALUATED_SPLITS:
        write_run(tmp_path / "bm25" / f"run.{split}.trec", {}, "bm25")
    inputs = dict(training.inputs)
    inputs["trained"] = training.output
    inputs["index"] = indexing.output / "index"
    inputs["baselines"] = tmp_path
    (tmp_path / "dsi").mkdir()

    report = evaluate.run(replace(training, inputs=inputs, output=tmp_path / "dsi"))

    history = read_json(training.output / "history.json")
    best_ndcg = max(row.get("nDCG@10", 0) for row in history)
    assert report["dev"]["nDCG@10"] == pytest.approx(best_ndcg, abs=1e-6)
    assert report["test"]["queries"] == 24


def test_corpus_with_other_documents_is_refused(built: Built, tmp_path: Path):
    training, _ = built
    for name in ("documents", "passages", "queries", "qrels"):
        table = pd.read_parquet(training.inputs["corpus"] / f"{name}.parquet")
        table.iloc[1:].to_parquet(tmp_path / f"{name}.parquet", index=False)
    inputs = dict(training.inputs)
    inputs["corpus"] = tmp_path

    with pytest.raises(FreshetError, match="differ by 1 documents \\('d00' is one\\).*train again"):
        run_index(replace(training, inputs=inputs), tmp_path / "index")


def test_live_documents_keep_the_passages_of_the_hierarchy(built: Built, tmp_path: Path):
    generation = go_live(tmp_path, *built)

    hits = Searcher.open(tmp_path / "live", "dsi").search("ask1 ask2", 24)

    assert generation.manifest["documents"] == 24
    assert generation.manifest["passages"] == 26
    assert {hit.document_id for hit in hits} == set(IDS)


def test_live_documents_have_the_path_of_their_first_passage(built: Built, tmp_path: Path):
    go_live(tmp_path, *built)
    searcher = Searcher.open(tmp_path / "live", "dsi")

    hits = searcher.search("ask1 ask2", 24)

    paths = {hit.document_id: hit.path for hit in hits}
    for name in LONG:
        first_passage = int(searcher.base.rows.rows_of([name])[0])
        assert paths[name] == searcher.base.tree.path(first_passage)


@pytest.fixture
def builder(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GenerationBuilder:
    """Return the builder of a live collection with two added documents."""

    def skip_fsync(handle: int) -> None:
        pass

    monkeypatch.setattr("os.fsync", skip_fsync)
    monkeypatch.setattr(Generation, "text", RULES)
    go_live(tmp_path, *built)
    builder = GenerationBuilder(tmp_path / "live", "dsi")
    long_document = Document("new", "", NEW_TEXT, {}, ("ask1", "ask2"))
    builder.apply([long_document, Document("other", "", "ask9")], up_to(1), {})
    return builder


# Longer than one passage.
NEW_TEXT = "ask1 ask2 ask3 ask4 ask5 ask6"


def test_new_document_starts_at_the_mean_of_its_passages(builder: GenerationBuilder):
    retriever = builder.searcher.views[1].segment.retriever

    passages = retriever.encoder.encode_documents(RULES.passages("", NEW_TEXT))
    mean = passages.astype(np.float64).mean(axis=0)
    mean /= np.linalg.norm(mean)
    np.testing.assert_allclose(retriever.index.vectors[0], mean, atol=1e-6)
    assert retriever.index.document_ids == ["new", "other"]


def test_new_documents_are_found(builder: GenerationBuilder):
    hits = builder.searcher.search("ask1 ask2", 26)

    assert {hit.document_id for hit in hits} == {*IDS, "new", "other"}


def test_compaction_keeps_the_ranking(builder: GenerationBuilder):
    (ranking_before,) = builder.searcher.retriever.search(["ask1 ask2"], 26)
    builder.apply([Document("third", "", "ask7")], up_to(2), {})
    builder.apply([Remove("third"), Remove("d03")], up_to(3), {})

    builder.compact()

    (ranking,) = builder.searcher.retriever.search(["ask1 ask2"], 26)
    assert ranking == [hit for hit in ranking_before if hit[0] != "d03"]
    assert builder.searcher.views[1].segment.retriever.encoding_scale == 1.0
