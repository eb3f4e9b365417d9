"""Test MLR's losses (equations 3 and 5 to 7).

Values and gradients are compared with loops in float64 under every mask. With one layer, the
losses equal the contrastive loss. The order of layers makes no difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from model_code.losses.contrastive import Contrast, contrastive_losses
from model_code.mlr.losses import multi_vector_losses, self_contrastive_losses

PAIRS = 5
EXTRA = 3
WIDTH = 4
LAYERS = 3
# Neither the first nor the last position, so that a fixed index would be noticed.
LAST = 1
every_pooling = pytest.mark.parametrize("pooling", ["multi_vector", "self_contrastive"])


@dataclass
class Example:
    queries: Tensor
    documents: Tensor
    contrast: Contrast


def make_example(seed: int, layers: int = LAYERS, dtype: torch.dtype = torch.float64) -> Example:
    """Return unit vectors per layer, with random masks and extra documents."""
    random = torch.Generator().manual_seed(seed)

    def unit_vectors(*shape: int) -> Tensor:
        vectors = torch.randn(*shape, WIDTH, generator=random, dtype=torch.float64)
        return normalize(vectors, dim=-1).to(dtype).requires_grad_()

    queries = unit_vectors(PAIRS)
    documents = unit_vectors(PAIRS, layers)
    contrast = Contrast(
        relevant=torch.rand(PAIRS, PAIRS, generator=random) < 0.3,
        negatives=unit_vectors(EXTRA, layers),
        allowed=torch.rand(PAIRS, EXTRA, generator=random) < 0.5,
    )
    return Example(queries, documents, contrast)


def losses_of(
    pooling: str,
    example: Example,
    last: int = LAST,
    regulariser: float = 0.0,
    temperature: float = 0.1,
) -> Tensor:
    batch = (example.queries, example.documents, temperature, example.contrast)
    if pooling == "multi_vector":
        return multi_vector_losses(*batch, last=last)
    return self_contrastive_losses(*batch, last=last, regulariser=regulariser)


def loop_losses(
    pooling: str, example: Example, regulariser: float = 0.0, temperature: float = 0.1
) -> Tensor:
    """Return the losses of the equations, pair by pair, in plain exponentials."""
    queries = example.queries
    documents = example.documents
    relevant, negatives, allowed = example.contrast

    def score(query: Tensor, vector: Tensor) -> Tensor:
        return torch.dot(query, vector) / temperature

    def best_score(query: Tensor, document: Tensor) -> Tensor:
        return max(score(query, vector) for vector in document)

    losses = []
    for i in range(PAIRS):
        by_last = score(queries[i], documents[i, LAST])
        positive = by_last
        if pooling == "multi_vector":
            positive = best_score(queries[i], documents[i])

        to_documents = torch.exp(positive)
        to_queries = torch.exp(by_last)
        for j in range(PAIRS):
            if j != i and not relevant[i, j]:
                to_documents = to_documents + torch.exp(best_score(queries[i], documents[j]))
            if j != i and not relevant[j, i]:
                to_queries = to_queries + torch.exp(score(queries[j], documents[i, LAST]))
        for e in range(EXTRA):
            if allowed[i, e]:
                to_documents = to_documents + torch.exp(best_score(queries[i], negatives[e]))

        layers = sum(torch.exp(score(queries[i], vector)) for vector in documents[i])
        loss = -torch.log(torch.exp(positive) / to_documents)
        loss = loss - torch.log(torch.exp(by_last) / to_queries)
        loss = loss - regulariser * torch.log(torch.exp(by_last) / layers)
        losses.append(loss)
    return torch.stack(losses)


@pytest.mark.parametrize(
    ("pooling", "regulariser"), [("multi_vector", 0.0), ("self_contrastive", 0.3)]
)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_values_and_gradients_equal_the_equations(
    pooling: str, regulariser: float, seed: int, temperature: float
):
    example = make_example(seed)
    inputs = [example.queries, example.documents, example.contrast.negatives]
    # Different weights, so that no two pairs can be mistaken for each other.
    weights = torch.arange(1.0, PAIRS + 1, dtype=torch.float64)
    options = {"regulariser": regulariser, "temperature": temperature}

    losses = losses_of(pooling, example, **options)
    expected = loop_losses(pooling, example, **options)

    torch.testing.assert_close(losses, expected, rtol=1e-10, atol=1e-10)
    gradients = torch.autograd.grad((weights * losses).sum(), inputs)
    expected_gradients = torch.autograd.grad((weights * expected).sum(), inputs)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-9, atol=1e-9)


@every_pooling
def test_one_layer_equals_the_contrastive_loss(pooling: str):
    example = make_example(0, layers=1, dtype=torch.float32)
    documents = example.documents[:, 0]
    contrast = example.contrast._replace(negatives=example.contrast.negatives[:, 0])

    losses = losses_of(pooling, example, last=0, regulariser=0.7, temperature=0.05)

    assert torch.equal(losses, contrastive_losses(example.queries, documents, 0.05, contrast))


@every_pooling
def test_the_order_of_layers_is_indifferent(pooling: str):
    example = make_example(1)
    order = [2, 0, 1]
    negatives = example.contrast.negatives[:, order]
    turned = Example(
        example.queries,
        example.documents[:, order],
        example.contrast._replace(negatives=negatives),
    )

    losses = losses_of(pooling, turned, last=order.index(LAST), regulariser=0.2)

    torch.testing.assert_close(losses, losses_of(pooling, example, regulariser=0.2))


@every_pooling
def test_masks_may_be_left_out(pooling: str):
    example = make_example(3)
    contrast = example.contrast
    no_pair = torch.zeros_like(contrast.relevant)
    every_negative = torch.ones_like(contrast.allowed)
    masked = Contrast(no_pair, contrast.negatives, every_negative)
    unmasked = Contrast(negatives=contrast.negatives)

    losses = losses_of(pooling, Example(example.queries, example.documents, unmasked))

    expected = losses_of(pooling, Example(example.queries, example.documents, masked))
    assert torch.equal(losses, expected)


@every_pooling
def test_no_negatives_equal_none(pooling: str):
    example = make_example(3)
    empty = Contrast(negatives=example.contrast.negatives[:0])

    losses = losses_of(pooling, Example(example.queries, example.documents, empty))

    expected = losses_of(pooling, Example(example.queries, example.documents, Contrast()))
    assert torch.equal(losses, expected)
