"""Guards how long added documents' vectors are: as many queries taken as by learned ones, by a loop
over them all; and that a trained dsi measures it with its dev queries, keeps it, and uses it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.context import StageContext
from model_code.dsi import fit
from model_code.dsi.fit import MIN_ANSWERED_QUERIES, largest_safe_scale
from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.vectors import document_means
from model_code.encoding.encoder import Encoder
from model_code.files import MANIFEST, read_json
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.kinds import open_retriever
from model_code.stages import train
from model_code.text.documents import Document
from model_code.training.tables import TrainingTables
from tests.model_code.collection.laws import up_to
from tests.model_code.dsi.small_corpus import RULES, go_live, make_context, run_index


def made(seed: int, documents: int = 40, queries: int = 300):
    """V, a sample of its rows, their encodings, and queries near the documents that answer them."""
    random = np.random.default_rng(seed)
    encodings = random.normal(size=(documents, 8))
    vectors = 0.8 * encodings + 0.3 * random.normal(size=encodings.shape)
    relevant = [
        set(random.permutation(documents)[: random.integers(1, 4)].tolist()) for _ in range(queries)
    ]
    asked = np.stack([encodings[sorted(rows)[0]] for rows in relevant]) + random.normal(
        size=(queries, 8)
    )
    sample = np.sort(random.permutation(documents)[: documents // 2])
    return vectors, sample, encodings[sample], asked, relevant


def taken(vectors, sample, replaced, queries, relevant) -> int:
    """How many queries that are kept without the sample it takes, if its vectors are `replaced`: by
    definition.
    """
    count, in_sample = 0, {int(row): vector for row, vector in zip(sample, replaced, strict=True)}
    for query, answers in zip(queries, relevant, strict=True):
        own = max(float(query @ vectors[row]) for row in answers)
        rest = [row for row in range(len(vectors)) if row not in answers]
        others = [float(query @ vectors[row]) for row in rest if row not in in_sample]
        added = [float(query @ in_sample[row]) for row in rest if row in in_sample]
        count += own > 0 and own > max(others) and max(added) >= own
    return count


@pytest.mark.parametrize("seed", range(5))
def test_scale_is_the_largest_safe_one(seed: int):
    vectors, sample, encodings, queries, relevant = made(seed)
    scale = largest_safe_scale(vectors, sample, encodings, queries, relevant)
    assert scale is not None
    now = taken(vectors, sample, vectors[sample], queries, relevant)
    assert taken(vectors, sample, scale * (1 - 1e-9) * encodings, queries, relevant) <= now
    assert taken(vectors, sample, scale * (1 + 1e-9) * encodings, queries, relevant) > now


def test_scale_is_inverse_to_encoding_length(
    monkeypatch: pytest.MonkeyPatch,
):
    vectors, sample, encodings, queries, relevant = made(0)
    scale = largest_safe_scale(vectors, sample, encodings, queries, relevant)
    assert largest_safe_scale(vectors, sample, 4 * encodings, queries, relevant) == pytest.approx(
        scale / 4
    )
    monkeypatch.setattr(fit, "MAX_SCORES_AT_ONCE", 100)
    assert largest_safe_scale(vectors, sample, encodings, queries, relevant) == pytest.approx(scale)


def test_vectors_that_were_not_learned_keep_scale():
    _, sample, encodings, queries, relevant = made(2)
    vectors = np.random.default_rng(2).normal(size=(40, 8))
    vectors[sample] = encodings
    scale = largest_safe_scale(vectors, sample, encodings, queries, relevant)
    assert scale is not None
    assert scale >= 1
    now = taken(vectors, sample, encodings, queries, relevant)
    assert taken(vectors, sample, scale * (1 - 1e-9) * encodings, queries, relevant) == now


def test_scale_is_none_without_enough_queries():
    vectors, sample, encodings, queries, relevant = made(3)
    few = MIN_ANSWERED_QUERIES - 1
    assert largest_safe_scale(vectors, sample, encodings, queries[:few], relevant[:few]) is None
    assert largest_safe_scale(vectors, sample, np.zeros_like(encodings), queries, relevant) is None


OWN = DocumentVectorSettings(epochs=4, batch_size=16, learning_rate=2e-2, patience=None)


def trained(root: Path, **own: object) -> tuple[StageContext, dict[str, object]]:
    context = make_context(root, OWN.replace(**own))  # type: ignore[arg-type]
    return context, train.run(context)


def by_hand(context: StageContext) -> float | None:
    """The scale, with all documents encoded by the encoder that training left."""
    tables, found = (
        TrainingTables.load(context),
        DenseIndex.load(context.output / "document_vectors"),
    )
    encoder = Encoder.from_settings(context.settings["encoder"], context.output / "encoder")
    encodings = document_means(
        encoder.encode(tables.passages.texts), tables.passages.documents, len(found.vectors)
    )
    count, seed = len(found.vectors) // 2, context.settings["seed"]
    sample = np.sort(np.random.default_rng(seed).permutation(len(found.vectors))[:count])
    relevant = [
        {tables.number[name] for name in tables.dev.qrels[query]} for query in tables.dev.queries
    ]
    queries = encoder.encode(list(tables.dev.queries.values()))
    return fit.largest_safe_scale(found.vectors, sample, encodings[sample], queries, relevant)


@pytest.mark.parametrize("train_encoder", [False, True])
def test_the_scale_is_measured_with_what_training_left(tmp_path, monkeypatch, train_encoder):
    monkeypatch.setattr(fit, "MIN_ANSWERED_QUERIES", 3)
    context, report = trained(tmp_path, train_encoder=train_encoder)
    assert report["encoding_scale"] is not None
    assert report["encoding_scale"] == pytest.approx(by_hand(context), rel=1e-4)
    assert (
        read_json(context.output / "document_vectors" / MANIFEST)["encoding_scale"]
        == report["encoding_scale"]
    )


@pytest.mark.parametrize("there_are_some", [True, False])
def test_encodings_stay_without_enough_dev_queries(tmp_path, monkeypatch, there_are_some):
    if not there_are_some:
        monkeypatch.setattr(TrainingTables, "dev_evaluator", lambda *_: None)
    context, report = trained(tmp_path, epochs=1)
    assert report["encoding_scale"] is None
    assert read_json(context.output / "document_vectors" / MANIFEST)["encoding_scale"] == 1.0


def test_an_added_document_has_the_measured_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fit, "MIN_ANSWERED_QUERIES", 3)
    context, report = trained(tmp_path)
    indexing = run_index(context, tmp_path / "indexed")
    opened = open_retriever(
        context.output / "encoder", indexing.output / "index", context.settings["encoder"]
    )
    assert opened.encoding_scale == report["encoding_scale"] != 1
    go_live(tmp_path, context, indexing)
    monkeypatch.setattr(Generation, "text", RULES)
    writer = GenerationBuilder(tmp_path / "live", "dsi")
    for number in (1, 2):
        writer.apply([Document(f"new{number}", "", f"ask{number} ask2")], up_to(number), {})
    writer.compact()
    (segment,) = writer.searcher.views[1:]
    found: DenseIndex = segment.segment.retriever.index
    np.testing.assert_allclose(
        np.linalg.norm(found.vectors, axis=1), report["encoding_scale"], rtol=1e-6
    )
    assert segment.segment.retriever.encoding_scale == report["encoding_scale"]
