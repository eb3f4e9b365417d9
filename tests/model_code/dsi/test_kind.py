"""Guards a dsi through its stages (train, index, evaluate) and what goes live: one row per
document, of any length.
"""

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
from model_code.retrieval.kinds import open_retriever
from model_code.stages import evaluate, train
from model_code.text.documents import Document, Remove
from tests.model_code.collection.laws import up_to
from tests.model_code.dsi.small_corpus import IDS, LONG, RULES, go_live, make_context, run_index

OWN = DocumentVectorSettings(epochs=6, batch_size=16, learning_rate=2e-2, patience=None)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[StageContext, StageContext]:
    """The contexts of a finished `train` and a finished `index`."""
    root = tmp_path_factory.mktemp("dsi")
    training = make_context(root, OWN)
    train.run(training)
    return training, run_index(training, root / "index")


def test_index_has_one_row_per_document(built, tmp_path):
    training, indexing = built
    folder, learned = indexing.output / "index", training.output / "document_vectors"
    trained = DenseIndex.load(learned)
    manifest = read_json(folder / "manifest.json")
    assert {key: manifest[key] for key in ("kind", "documents", "passages", "fingerprint")} == {
        "kind": "dsi",
        "documents": 24,
        "passages": 24,
        "fingerprint": trained.fingerprint,
    }
    found = DenseIndex.load(folder)
    np.testing.assert_array_equal(found.vectors, trained.vectors)
    assert hash_path(folder / REPRESENTATIVES) == hash_path(learned / REPRESENTATIVES)
    assert found.document_ids == IDS
    # norms are learned, and are kept
    assert np.abs(np.linalg.norm(found.vectors, axis=1) - 1).max() > 1e-3
    assert hash_path(run_index(training, tmp_path / "again").output) == hash_path(indexing.output)


def test_a_search_is_the_product_with_every_vector(built: tuple[StageContext, StageContext]):
    training, indexing = built
    settings = training.settings["encoder"]
    retriever = open_retriever(training.output / "encoder", indexing.output / "index", settings)
    (ranking,) = retriever.search(["ask1 ask2"], 24)
    products = (
        DenseIndex.load(indexing.output / "index").vectors
        @ retriever.encoder.encode(["ask1 ask2"])[0]
    )
    assert [name for name, _ in ranking] == [
        IDS[row] for row in np.argsort(-products, kind="stable")
    ]
    assert [score for _, score in ranking] == pytest.approx(
        sorted(products.tolist(), reverse=True), abs=1e-5
    )
    assert retriever.search(["ask1 ask2"], 1, allowed=["d07", "d03"])[0][0] in ranking
    asked = retriever.encode_queries(["ask1"])
    assert [retriever.best_passage_encoded(asked, name) for name in (*LONG, "d00")] == [0, 0, 0]


def test_evaluation_finds_what_training_saw(
    built: tuple[StageContext, StageContext], tmp_path: Path
):
    training, indexing = built
    for split in EVALUATED_SPLITS:
        (tmp_path / "bm25").mkdir(exist_ok=True)
        write_run(tmp_path / "bm25" / f"run.{split}.trec", {}, "bm25")
    inputs = training.inputs | {
        "trained": training.output,
        "index": indexing.output / "index",
        "baselines": tmp_path,
    }
    (tmp_path / "dsi").mkdir()
    report = evaluate.run(replace(training, inputs=inputs, output=tmp_path / "dsi"))
    best = max(row.get("nDCG@10", 0) for row in read_json(training.output / "history.json"))
    assert report["dev"]["nDCG@10"] == pytest.approx(best, abs=1e-6)
    assert report["test"]["queries"] == 24


def test_a_corpus_with_other_documents_is_refused(
    built: tuple[StageContext, StageContext], tmp_path: Path
):
    training, _ = built
    source = training.inputs["corpus"]
    for name in ("documents", "passages", "queries", "qrels"):
        table = pd.read_parquet(source / f"{name}.parquet")
        table.iloc[1:].to_parquet(tmp_path / f"{name}.parquet", index=False)
    changed = replace(training, inputs=training.inputs | {"corpus": tmp_path})
    with pytest.raises(FreshetError, match="differ by 1 documents \\('d00' is one\\).*train again"):
        run_index(changed, tmp_path / "index")


def test_it_goes_live_beside_a_hierarchy_of_passages(
    built: tuple[StageContext, StageContext], tmp_path: Path
):
    training, indexing = built
    generation = go_live(tmp_path, training, indexing)
    assert (generation.manifest["documents"], generation.manifest["passages"]) == (24, 26)
    searcher = Searcher.open(tmp_path / "live", "dsi")
    hits = searcher.search("ask1 ask2", 24)
    assert {hit.document_id for hit in hits} == set(IDS)
    paths = {hit.document_id: hit.path for hit in hits}
    assert all(
        paths[name] == searcher.base.tree.path(int(searcher.base.rows.rows_of([name])[0]))
        for name in LONG
    )


def test_new_document_starts_at_its_training_start(built, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)
    training, indexing = built
    go_live(tmp_path, *built)
    monkeypatch.setattr(Generation, "text", RULES)
    writer = GenerationBuilder(tmp_path / "live", "dsi")
    text = "ask1 ask2 ask3 ask4 ask5 ask6"
    writer.apply(
        [Document("new", "", text, {}, ("ask1", "ask2")), Document("other", "", "ask9")],
        up_to(1),
        {},
    )
    retriever = writer.searcher.views[1].segment.retriever
    encode = retriever.encoder.encode
    mean = encode(RULES.passages("", text)).astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(retriever.index.vectors[0], mean / np.linalg.norm(mean), atol=1e-6)
    assert retriever.index.document_ids == ["new", "other"]
    before, hits = (
        writer.searcher.retriever.search(["ask1 ask2"], 26)[0],
        writer.searcher.search("ask1 ask2", 26),
    )
    assert {hit.document_id for hit in hits} == {*IDS, "new", "other"}
    writer.apply([Document("third", "", "ask7")], up_to(2), {})
    writer.apply([Remove("third"), Remove("d03")], up_to(3), {})
    writer.compact()
    after = writer.searcher.retriever.search(["ask1 ask2"], 26)[0]
    assert after == [hit for hit in before if hit[0] != "d03"]
    assert writer.searcher.views[1].segment.retriever.encoding_scale == 1.0
