"""Guards what a trained dsi says of documents that are added: measured with its dev queries, kept, and used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.opened_build import open_generation_zero
from model_code.context import StageContext
from model_code.documents import Document
from model_code.dsi import encoding_scale
from model_code.dsi.settings import DocumentVectorSettings, Start
from model_code.dsi.vectors import document_means
from model_code.encoding.encoder import Encoder
from model_code.files import read_json
from model_code.index.dense_index import DenseIndex
from model_code.live.generation import Generation
from model_code.live.texts import TextRules
from model_code.live.writer import LiveWriter
from model_code.manifest import MANIFEST
from model_code.retrievers.kinds import open_retriever
from model_code.stages import index, train
from model_code.training.tables import TrainingTables
from tests.model_code.dsi.small_corpus import make_context
from tests.model_code.live.laws import up_to

OWN = DocumentVectorSettings(epochs=4, batch_size=16, learning_rate=2e-2, patience=None)


def trained(root: Path, **own: object) -> tuple[StageContext, dict[str, object]]:
    context = make_context(root, OWN.replace(**own))  # type: ignore[arg-type]
    return context, train.run(context)


def by_hand(context: StageContext) -> float | None:
    """The scale, with all documents encoded by the encoder that training left."""
    tables, found = TrainingTables.load(context), DenseIndex.load(context.output / "document_vectors")
    encoder = Encoder.from_settings(context.settings["encoder"], context.output / "encoder")
    encodings = document_means(encoder.encode(tables.passages.texts), tables.passages.documents, len(found.vectors))
    count, seed = len(found.vectors) // 2, context.settings["seed"]
    sample = np.sort(np.random.default_rng(seed).permutation(len(found.vectors))[:count])
    relevant = [{tables.number[name] for name in tables.dev.qrels[query]} for query in tables.dev.queries]
    queries = encoder.encode(list(tables.dev.queries.values()))
    return encoding_scale.encoding_scale(found.vectors, sample, encodings[sample], queries, relevant)


@pytest.mark.parametrize(("start", "train_encoder"), [("documents", False), ("random", False), ("documents", True)])
def test_the_scale_is_measured_with_what_training_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start, train_encoder: bool
):
    monkeypatch.setattr(encoding_scale, "ENOUGH", 3)
    context, report = trained(tmp_path, start=start, train_encoder=train_encoder)
    assert report["encoding_scale"] is not None
    assert report["encoding_scale"] == pytest.approx(by_hand(context), rel=1e-4)
    assert read_json(context.output / "document_vectors" / MANIFEST)["encoding_scale"] == report["encoding_scale"]


def test_too_few_dev_queries_leave_encodings_as_they_are(tmp_path: Path):
    context, report = trained(tmp_path)
    assert report["encoding_scale"] is None
    assert read_json(context.output / "document_vectors" / MANIFEST)["encoding_scale"] == 1.0


def test_without_dev_queries_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TrainingTables, "dev_evaluator", lambda *_: None)
    assert trained(tmp_path, epochs=1)[1]["encoding_scale"] is None


def test_an_added_document_has_the_measured_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoding_scale, "ENOUGH", 3)
    context, report = trained(tmp_path)
    output = tmp_path / "indexed"
    output.mkdir()
    index.run(replace(context, inputs=context.inputs | {"trained": context.output}, output=output))
    opened = open_retriever(context.output / "encoder", output / "index", context.settings["encoder"])
    assert opened.encoding_scale == report["encoding_scale"] != 1
    folders = {"encoder": context.output / "encoder", "index": output / "index"}
    documents, tree = context.inputs["corpus"] / "documents.parquet", context.inputs["hierarchy"]
    open_generation_zero(tmp_path, "dsi", **folders, documents=documents, hierarchy=tree, provenance={})
    rules = TextRules(include_title=False, words=4, stride=3)
    monkeypatch.setattr(Generation, "text", rules)  # the corpus of this test was cut by hand
    writer = LiveWriter(tmp_path / "live", "dsi")
    for number in (1, 2):
        writer.apply([Document(f"new{number}", "", f"ask{number} ask2")], up_to(number), {})
    writer.compact()
    (segment,) = writer.searcher.views[1:]
    found: DenseIndex = segment.part.retriever.index
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), report["encoding_scale"], rtol=1e-6)
    assert segment.part.retriever.encoding_scale == report["encoding_scale"]
