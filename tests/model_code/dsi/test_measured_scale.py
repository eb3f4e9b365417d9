"""Test the scale of added documents' vectors.

With it, encoded documents take as many queries as learned ones do. A trained dsi measures the
scale with its dev queries, stores it, and applies it to added documents.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

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


class Example(NamedTuple):
    """Arguments of `largest_safe_scale`.

    Attributes:
        vectors: Learned document vectors, (documents, 8).
        sample: Ascending rows of the sampled documents.
        encodings: Encodings of the sampled documents.
        queries: Query vectors, (queries, 8), each near a document that answers it.
        relevant: Rows of the documents that answer each query.
    """

    vectors: np.ndarray
    sample: np.ndarray
    encodings: np.ndarray
    queries: np.ndarray
    relevant: list[set[int]]


def make_example(seed: int) -> Example:
    rng = np.random.default_rng(seed)
    encodings = rng.normal(size=(40, 8))
    vectors = 0.8 * encodings + 0.3 * rng.normal(size=(40, 8))
    relevant = []
    for _ in range(300):
        rows = rng.permutation(40)[: rng.integers(1, 4)]
        relevant.append(set(rows.tolist()))
    answers = [min(rows) for rows in relevant]
    queries = encodings[answers] + rng.normal(size=(300, 8))
    sample = np.sort(rng.permutation(40)[:20])
    return Example(vectors, sample, encodings[sample], queries, relevant)


def count_taken_queries(example: Example, sample_vectors: np.ndarray) -> int:
    """Count the queries that the sample takes if it has these vectors, by a loop over all queries.

    A query is taken if its own document is first without the sample, and is not first with it.
    """
    count = 0
    vectors = example.vectors.copy()
    vectors[example.sample] = sample_vectors
    for query, answers in zip(example.queries, example.relevant, strict=True):
        own_score = max(float(query @ example.vectors[row]) for row in answers)
        other_scores = []
        sample_scores = []
        for row, vector in enumerate(vectors):
            if row in answers:
                continue
            if row in example.sample:
                sample_scores.append(float(query @ vector))
            else:
                other_scores.append(float(query @ vector))
        is_first = own_score > 0 and own_score > max(other_scores)
        if is_first and max(sample_scores) >= own_score:
            count += 1
    return count


@pytest.mark.parametrize("seed", range(5))
def test_scale_is_the_largest_safe_one(seed: int):
    example = make_example(seed)

    scale = largest_safe_scale(*example)

    assert scale is not None
    taken_by_learned = count_taken_queries(example, example.vectors[example.sample])
    slightly_smaller = scale * (1 - 1e-9) * example.encodings
    slightly_larger = scale * (1 + 1e-9) * example.encodings
    assert count_taken_queries(example, slightly_smaller) <= taken_by_learned
    assert count_taken_queries(example, slightly_larger) > taken_by_learned


def test_scale_is_inverse_to_encoding_length():
    example = make_example(0)
    scale = largest_safe_scale(*example)

    longer = example._replace(encodings=4 * example.encodings)

    assert largest_safe_scale(*longer) == pytest.approx(scale / 4)


def test_scale_does_not_depend_on_block_size(monkeypatch: pytest.MonkeyPatch):
    example = make_example(0)
    scale = largest_safe_scale(*example)

    monkeypatch.setattr(fit, "MAX_SCORES_AT_ONCE", 100)

    assert largest_safe_scale(*example) == pytest.approx(scale)


def test_vectors_that_were_not_learned_keep_their_scale():
    example = make_example(2)
    vectors = np.random.default_rng(2).normal(size=(40, 8))
    vectors[example.sample] = example.encodings
    example = example._replace(vectors=vectors)

    scale = largest_safe_scale(*example)

    assert scale is not None
    assert scale >= 1
    slightly_smaller = scale * (1 - 1e-9) * example.encodings
    taken = count_taken_queries(example, example.encodings)
    assert count_taken_queries(example, slightly_smaller) == taken


def test_too_few_queries_give_no_scale():
    example = make_example(3)
    count = MIN_ANSWERED_QUERIES - 1
    few_queries = example._replace(
        queries=example.queries[:count], relevant=example.relevant[:count]
    )

    assert largest_safe_scale(*few_queries) is None


def test_zero_encodings_give_no_scale():
    example = make_example(3)
    zeros = example._replace(encodings=np.zeros_like(example.encodings))

    assert largest_safe_scale(*zeros) is None


SETTINGS = DocumentVectorSettings(epochs=4, batch_size=16, learning_rate=2e-2, patience=None)


def run_training(root: Path, **changes: object) -> tuple[StageContext, dict[str, object]]:
    context = make_context(root, SETTINGS.replace(**changes))  # type: ignore[arg-type]
    return context, train.run(context)


def manifest_scale(context: StageContext) -> float:
    return read_json(context.output / "document_vectors" / MANIFEST)["encoding_scale"]


def scale_of_trained_encoder(context: StageContext) -> float | None:
    """Compute the scale again, with all documents encoded by the encoder that training saved."""
    tables = TrainingTables.load(context)
    index = DenseIndex.load(context.output / "document_vectors")
    encoder = Encoder.from_settings(context.settings["encoder"], context.output / "encoder")
    documents = len(index.vectors)
    encodings = document_means(
        encoder.encode_documents(tables.passages.texts), tables.passages.documents, documents
    )

    rng = np.random.default_rng(context.settings["seed"])
    sample = np.sort(rng.permutation(documents)[: documents // 2])

    queries = encoder.encode_queries(list(tables.dev.queries.values()))
    relevant = []
    for query_id in tables.dev.queries:
        relevant.append({tables.number[name] for name in tables.dev.qrels[query_id]})
    return largest_safe_scale(index.vectors, sample, encodings[sample], queries, relevant)


@pytest.mark.parametrize("train_encoder", [False, True])
def test_scale_is_measured_with_the_trained_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train_encoder: bool
):
    monkeypatch.setattr(fit, "MIN_ANSWERED_QUERIES", 3)

    context, report = run_training(tmp_path, train_encoder=train_encoder)

    assert report["encoding_scale"] is not None
    expected = scale_of_trained_encoder(context)
    assert report["encoding_scale"] == pytest.approx(expected, rel=1e-4)
    assert manifest_scale(context) == report["encoding_scale"]


def test_few_dev_queries_measure_no_scale(tmp_path: Path):
    context, report = run_training(tmp_path, epochs=1)

    assert report["encoding_scale"] is None
    assert manifest_scale(context) == 1.0


def test_no_dev_queries_measure_no_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_evaluator(*arguments: object) -> None:
        return None

    monkeypatch.setattr(TrainingTables, "dev_evaluator", no_evaluator)

    context, report = run_training(tmp_path, epochs=1)

    assert report["encoding_scale"] is None
    assert manifest_scale(context) == 1.0


def test_added_documents_have_the_measured_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fit, "MIN_ANSWERED_QUERIES", 3)
    monkeypatch.setattr(Generation, "text", RULES)
    context, report = run_training(tmp_path)
    scale = report["encoding_scale"]
    indexing = run_index(context, tmp_path / "indexed")
    retriever = open_retriever(
        context.output / "encoder", indexing.output / "index", context.settings["encoder"]
    )
    go_live(tmp_path, context, indexing)
    builder = GenerationBuilder(tmp_path / "live", "dsi")

    for number in (1, 2):
        builder.apply([Document(f"new{number}", "", f"ask{number} ask2")], up_to(number), {})
    builder.compact()

    assert scale != 1
    assert retriever.encoding_scale == scale
    (added_view,) = builder.searcher.views[1:]
    added = added_view.segment.retriever
    np.testing.assert_allclose(np.linalg.norm(added.index.vectors, axis=1), scale, rtol=1e-6)
    assert added.encoding_scale == scale
