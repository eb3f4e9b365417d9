"""Guards the cross-entropy over document ids against a float64 double loop, value and gradient;
what the loop reads of the group `document_vectors`; and start vectors and mean queries against
plain loops.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.trainer import document_losses, loop_settings
from model_code.dsi.vectors import document_means, mean_by_owner
from model_code.training.settings import TrainingSettings

SCALE = 20.0
# documents known to answer each query; its own is among them or not
KNOWN = [{1}, {4, 0, 6}, {2}, {3, 5}]
OWN = [1, 4, 2, 0]


def example() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    queries = torch.nn.functional.normalize(
        torch.randn(4, 5, generator=generator, dtype=torch.float64), dim=1
    )
    return queries.requires_grad_(), torch.randn(
        7, 5, generator=generator, dtype=torch.float64
    ).requires_grad_()


def loop(queries: torch.Tensor, vectors: torch.Tensor, masked: bool) -> list[torch.Tensor]:
    losses = []
    for query, own, known in zip(queries, OWN, KNOWN, strict=True):
        total = torch.zeros((), dtype=torch.float64)
        for document, vector in enumerate(vectors):
            if document == own or not masked or document not in known:
                total = total + torch.exp(SCALE * torch.sum(query * vector))
        losses.append(-torch.log(torch.exp(SCALE * torch.sum(query * vectors[own])) / total))
    return losses


@pytest.mark.parametrize("masked", [False, True])
def test_against_a_double_loop(masked: bool):
    queries, vectors = example()
    pairs = torch.tensor(
        [(row, document) for row, known in enumerate(KNOWN) for document in sorted(known)]
    ).T
    losses = document_losses(queries, vectors, torch.tensor(OWN), SCALE, pairs if masked else None)
    expected = torch.stack(loop(queries, vectors, masked))
    torch.testing.assert_close(losses, expected)
    found = torch.autograd.grad(losses.sum(), [queries, vectors])
    for mine, theirs in zip(
        found, torch.autograd.grad(expected.sum(), [queries, vectors]), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_no_shape_depends_on_what_the_tensors_hold():
    """A GPU would have to be waited for; "meta" tensors hold nothing, and refuse what needs it."""
    known = torch.zeros(2, 5, dtype=torch.int64, device="meta")
    documents = torch.zeros(4, dtype=torch.int64, device="meta")
    queries, vectors = torch.zeros(4, 3, device="meta"), torch.zeros(7, 3, device="meta")
    assert document_losses(queries, vectors, documents, SCALE, known).shape == (4,)


def test_loop_settings_override_epochs_and_negatives():
    shared = TrainingSettings(
        epochs=9,
        batch_size=8,
        negatives="bm25",
        negatives_per_query=3,
        hierarchy_weight=0.0,
        batches="siblings",
        learning_rate=1e-5,
    )
    loop = loop_settings(DocumentVectorSettings(epochs=2, batch_size=10), shared, pairs=105)
    assert (loop.epochs, loop.batch_size, loop.evaluate_every, loop.checkpoint_every) == (
        2,
        10,
        10,
        10,
    )
    assert (loop.learning_rate, loop.frozen_layers, loop.needs_hierarchy) == (5e-4, None, False)
    joint = loop_settings(DocumentVectorSettings(train_encoder=True), shared, pairs=1)
    assert (
        joint.learning_rate,
        joint.frozen_layers,
        joint.checkpoint_every,
        joint.evaluate_every,
    ) == (1e-5, 3, 50, 1)


def test_document_means_against_a_loop():
    random = np.random.default_rng(0)
    documents = np.array([2, 0, 1, 2, 0, 2])
    passages = random.standard_normal((6, 4)).astype(np.float32)
    means = document_means(passages, documents, 3)
    for document in range(3):
        total = sum(
            passages[row].astype(np.float64) for row in range(6) if documents[row] == document
        )
        np.testing.assert_allclose(means[document], total / np.linalg.norm(total), rtol=1e-6)
    assert means.dtype == np.float32


def test_mean_queries_against_a_loop():
    random = np.random.default_rng(1)
    vectors = random.standard_normal((5, 3)).astype(np.float32)
    rows, documents = random.integers(0, 5, 12), random.integers(0, 6, 12)
    documents[documents == 2] = 4  # without queries
    means, counts = mean_by_owner(vectors[rows], documents, 7)
    for document in range(7):
        own = [
            vectors[row].astype(np.float64)
            for row, of in zip(rows, documents, strict=True)
            if of == document
        ]
        assert counts[document] == len(own)
        np.testing.assert_allclose(
            means[document], np.mean(own, axis=0) if own else np.zeros(3), rtol=1e-6
        )
