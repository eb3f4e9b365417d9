"""Test the cross-entropy over document ids, its loop settings, start vectors and mean queries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.trainer import document_losses, loop_settings
from model_code.dsi.vectors import document_means, mean_by_owner
from model_code.training.settings import TrainingSettings

SCALE = 20.0
# The documents known to answer each query. The fourth query's own document is not among them.
KNOWN_DOCUMENTS = [{1}, {4, 0, 6}, {2}, {3, 5}]
OWN_DOCUMENTS = [1, 4, 2, 0]


def example() -> tuple[torch.Tensor, torch.Tensor]:
    """Return four unit queries and seven document vectors, float64."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    queries = torch.nn.functional.normalize(queries, dim=1)
    vectors = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    return queries.requires_grad_(), vectors.requires_grad_()


def loop_losses(queries: torch.Tensor, vectors: torch.Tensor, masked: bool) -> torch.Tensor:
    """Return the loss of each query by a double loop, in plain exponentials."""
    losses = []
    for query, own_document, known_documents in zip(
        queries, OWN_DOCUMENTS, KNOWN_DOCUMENTS, strict=True
    ):
        scores = [torch.exp(SCALE * torch.sum(query * vector)) for vector in vectors]
        total = torch.zeros((), dtype=torch.float64)
        for document, score in enumerate(scores):
            is_other_answer = document != own_document and document in known_documents
            if not (masked and is_other_answer):
                total = total + score
        losses.append(-torch.log(scores[own_document] / total))
    return torch.stack(losses)


@pytest.mark.parametrize("masked", [False, True])
def test_losses_and_gradients_equal_a_double_loop(masked: bool):
    queries, vectors = example()
    pairs = None
    if masked:
        pairs = torch.tensor([[0, 1, 1, 1, 2, 3, 3], [1, 0, 4, 6, 2, 3, 5]])

    losses = document_losses(queries, vectors, torch.tensor(OWN_DOCUMENTS), SCALE, pairs)

    expected = loop_losses(queries, vectors, masked)
    torch.testing.assert_close(losses, expected)
    gradients = torch.autograd.grad(losses.sum(), [queries, vectors])
    expected_gradients = torch.autograd.grad(expected.sum(), [queries, vectors])
    torch.testing.assert_close(gradients, expected_gradients)


def test_no_shape_depends_on_tensor_values():
    """The host would have to wait for the GPU. Operations that read values of "meta" tensors fail."""
    known = torch.zeros(2, 5, dtype=torch.int64, device="meta")
    documents = torch.zeros(4, dtype=torch.int64, device="meta")
    queries = torch.zeros(4, 3, device="meta")
    vectors = torch.zeros(7, 3, device="meta")

    losses = document_losses(queries, vectors, documents, SCALE, known)

    assert losses.shape == (4,)


@pytest.fixture
def training_settings() -> TrainingSettings:
    return TrainingSettings(
        epochs=9,
        batch_size=8,
        negatives="bm25",
        negatives_per_query=3,
        hierarchy_weight=0.0,
        batches="siblings",
        learning_rate=1e-5,
    )


def test_loop_settings_override_those_of_training(training_settings: TrainingSettings):
    document_vectors = DocumentVectorSettings(epochs=2, batch_size=10)

    loop = loop_settings(document_vectors, training_settings, pairs=105)

    assert loop.epochs == 2
    assert loop.batch_size == 10
    assert loop.evaluate_every == 10
    assert loop.checkpoint_every == 10
    assert loop.learning_rate == 5e-4
    assert loop.frozen_layers is None
    assert loop.needs_hierarchy is False


def test_joint_training_keeps_the_encoder_settings(training_settings: TrainingSettings):
    document_vectors = DocumentVectorSettings(train_encoder=True)

    loop = loop_settings(document_vectors, training_settings, pairs=1)

    assert loop.learning_rate == 1e-5
    assert loop.frozen_layers == 3
    assert loop.checkpoint_every == 50
    assert loop.evaluate_every == 1


def test_document_means_equal_a_loop():
    rng = np.random.default_rng(0)
    documents = np.array([2, 0, 1, 2, 0, 2])
    passages = rng.standard_normal((6, 4)).astype(np.float32)

    means = document_means(passages, documents, 3)

    for document in range(3):
        total = np.zeros(4)
        for owner, passage in zip(documents, passages, strict=True):
            if owner == document:
                total += passage.astype(np.float64)
        np.testing.assert_allclose(means[document], total / np.linalg.norm(total), rtol=1e-6)
    assert means.dtype == np.float32


def test_mean_queries_equal_a_loop():
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((5, 3)).astype(np.float32)
    rows = rng.integers(0, 5, 12)
    documents = rng.integers(0, 6, 12)
    # Documents 2 and 6 have no queries.
    documents[documents == 2] = 4

    means, counts = mean_by_owner(vectors[rows], documents, 7)

    for document in range(7):
        queries = vectors[rows[documents == document]].astype(np.float64)
        expected = np.zeros(3)
        if len(queries) > 0:
            expected = queries.mean(axis=0)
        assert counts[document] == len(queries)
        np.testing.assert_allclose(means[document], expected, rtol=1e-6)
