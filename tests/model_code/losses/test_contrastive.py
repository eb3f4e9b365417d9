"""Test the bidirectional contrastive loss (HCE, equation 8).

Values and gradients are compared with loops in float64 under every mask, and with
sentence-transformers. Masks may be left out, and scores may be extreme.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from model_code.losses.contrastive import Contrast, contrastive_losses

PAIRS = 5
WIDTH = 4


def make_example(seed: int, extra: int = 3) -> tuple[Tensor, Tensor, Contrast]:
    """Return unit queries and documents (float64), with random masks and extra documents."""
    random = torch.Generator().manual_seed(seed)

    def unit_vectors(count: int) -> Tensor:
        vectors = torch.randn(count, WIDTH, generator=random, dtype=torch.float64)
        return normalize(vectors, dim=-1).requires_grad_()

    queries = unit_vectors(PAIRS)
    documents = unit_vectors(PAIRS)
    contrast = Contrast(
        relevant=torch.rand(PAIRS, PAIRS, generator=random) < 0.3,
        negatives=unit_vectors(extra),
        allowed=torch.rand(PAIRS, extra, generator=random) < 0.5,
    )
    return queries, documents, contrast


def loop_losses(
    queries: Tensor, documents: Tensor, temperature: float, contrast: Contrast
) -> Tensor:
    """Return equation 8, pair by pair, in plain exponentials."""
    relevant, negatives, allowed = contrast
    losses = []
    for i in range(len(queries)):
        positive = torch.exp(queries[i] @ documents[i] / temperature)
        to_documents = positive
        to_queries = positive
        for j in range(len(queries)):
            if j != i and not relevant[i, j]:
                to_documents = to_documents + torch.exp(queries[i] @ documents[j] / temperature)
            if j != i and not relevant[j, i]:
                to_queries = to_queries + torch.exp(queries[j] @ documents[i] / temperature)
        for e in range(len(negatives)):
            if allowed[i, e]:
                to_documents = to_documents + torch.exp(queries[i] @ negatives[e] / temperature)
        losses.append(-torch.log(positive / to_documents) - torch.log(positive / to_queries))
    return torch.stack(losses)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_values_and_gradients_equal_the_equation(seed: int, temperature: float):
    queries, documents, contrast = make_example(seed)
    inputs = [queries, documents, contrast.negatives]
    # Different weights, so that no two pairs can be mistaken for each other.
    weights = torch.arange(1.0, PAIRS + 1, dtype=torch.float64)

    losses = contrastive_losses(queries, documents, temperature, contrast)
    expected = loop_losses(queries, documents, temperature, contrast)

    torch.testing.assert_close(losses, expected, rtol=1e-10, atol=1e-10)
    gradients = torch.autograd.grad((weights * losses).sum(), inputs)
    expected_gradients = torch.autograd.grad((weights * expected).sum(), inputs)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-9, atol=1e-9)


def test_masks_may_be_left_out():
    queries, documents, contrast = make_example(3)
    no_pair = torch.zeros_like(contrast.relevant)
    every_negative = torch.ones_like(contrast.allowed)
    masked = Contrast(no_pair, contrast.negatives, every_negative)
    unmasked = Contrast(negatives=contrast.negatives)

    losses = contrastive_losses(queries, documents, 0.1, unmasked)

    assert torch.equal(losses, contrastive_losses(queries, documents, 0.1, masked))


def test_no_negatives_equal_none():
    queries, documents, contrast = make_example(3)
    empty = Contrast(negatives=contrast.negatives[:0])

    losses = contrastive_losses(queries, documents, 0.1, empty)

    assert torch.equal(losses, contrastive_losses(queries, documents, 0.1, Contrast()))


def test_everything_masked_gives_zero_and_finite_gradients():
    queries, documents, contrast = make_example(3)
    every_pair = torch.ones_like(contrast.relevant)
    no_negative = torch.zeros_like(contrast.allowed)
    contrast = Contrast(every_pair, contrast.negatives, no_negative)

    losses = contrastive_losses(queries, documents, 0.05, contrast)

    zeros = torch.zeros(PAIRS, dtype=torch.float64)
    torch.testing.assert_close(losses, zeros, atol=1e-12, rtol=0)
    for gradient in torch.autograd.grad(losses.sum(), [queries, contrast.negatives]):
        assert torch.isfinite(gradient).all()


def test_large_scores_do_not_overflow():
    vectors = torch.eye(3)

    # In float32, exp(1000) is infinite.
    losses = contrastive_losses(vectors, vectors.roll(1, 0), 0.001, Contrast())

    torch.testing.assert_close(losses, torch.full((3,), 2000.0))


def test_equals_sentence_transformers_in_both_directions():
    """MultipleNegativesRankingLoss averages the softmaxes of both directions, HCE adds them."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    queries, documents, contrast = make_example(6, extra=5)
    peer = MultipleNegativesRankingLoss(
        None,
        scale=20.0,
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )
    vectors = [queries, documents, contrast.negatives]
    expected = peer.compute_loss_from_embeddings(vectors, None)

    losses = contrastive_losses(queries, documents, 0.05, Contrast(negatives=contrast.negatives))

    torch.testing.assert_close(losses.mean() / 2, expected)
