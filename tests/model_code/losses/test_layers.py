"""Guards MLR's losses: values and gradients against float64 loops written from its equations 3 and 5 to 7, equality
with the ordinary contrastive loss for one layer, and indifference to the order of layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from model_code.losses.contrastive import contrastive_losses, multi_vector_losses, self_contrastive_losses

LAST = 1  # neither first nor last in the list


def e(score: Tensor) -> Tensor:
    return torch.exp(score)


def loop_losses(kind: str, queries, documents, temperature, relevant, negatives, allowed, alpha: float = 0.0) -> Tensor:
    """Equations 3, or 5 to 7, and equation 8 of HCE for the way back, pair by pair, in plain exponentials."""

    def score(query: Tensor, vector: Tensor) -> Tensor:
        return torch.dot(query, vector) / temperature

    def best(query: Tensor, document: Tensor) -> Tensor:
        return max(score(query, vector) for vector in document)

    losses = []
    for i in range(len(queries)):
        by_last = score(queries[i], documents[i, LAST])
        positive = by_last if kind == "self_contrastive" else best(queries[i], documents[i])
        to_documents, to_queries, layers = e(positive), e(by_last), 0
        for j in range(len(queries)):
            if j != i and not relevant[i, j]:
                to_documents = to_documents + e(best(queries[i], documents[j]))
            if j != i and not relevant[j, i]:
                to_queries = to_queries + e(score(queries[j], documents[i, LAST]))
        for n in range(len(negatives)):
            if allowed[i, n]:
                to_documents = to_documents + e(best(queries[i], negatives[n]))
        for vector in documents[i]:
            layers = layers + e(score(queries[i], vector))
        loss = -torch.log(e(positive) / to_documents) - torch.log(e(by_last) / to_queries)
        losses.append(loss - alpha * torch.log(e(by_last) / layers))
    return torch.stack(losses)


def example(seed: int, pairs: int = 5, extra: int = 3, layers: int = 3) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)

    def vectors(*shape: int) -> Tensor:
        return normalize(torch.randn(*shape, 4, generator=random, dtype=torch.float64), dim=-1).requires_grad_()

    return {
        "queries": vectors(pairs),
        "documents": vectors(pairs, layers),
        "relevant": torch.rand(pairs, pairs, generator=random) < 0.3,
        "negatives": vectors(extra, layers),
        "allowed": torch.rand(pairs, extra, generator=random) < 0.5,
    }


def losses_of(kind: str, last: int = LAST, alpha: float = 0.0, temperature: float = 0.1, **batch: Tensor) -> Tensor:
    if kind == "multi_vector":
        return multi_vector_losses(temperature=temperature, last=last, **batch)
    return self_contrastive_losses(temperature=temperature, last=last, regulariser=alpha, **batch)


KINDS = pytest.mark.parametrize("kind", ["multi_vector", "self_contrastive"])


@KINDS
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_values_and_gradients_are_those_of_the_equations(kind: str, seed: int, temperature: float):
    batch = example(seed)
    alpha = 0.0 if kind == "multi_vector" else 0.3
    tensors = [batch["queries"], batch["documents"], batch["negatives"]]
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)  # so that no two pairs can be mistaken for each other
    ours = losses_of(kind, alpha=alpha, temperature=temperature, **batch)
    loop = loop_losses(kind, temperature=temperature, alpha=alpha, **batch)
    torch.testing.assert_close(ours, loop, rtol=1e-10, atol=1e-10)
    gradients = torch.autograd.grad((weights * ours).sum(), tensors)
    expected = torch.autograd.grad((weights * loop).sum(), tensors)
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-9)


@KINDS
def test_one_layer_is_the_ordinary_loss_to_the_bit(kind: str):
    batch = {
        name: value if value.dtype == torch.bool else value.float() for name, value in example(0, layers=1).items()
    }
    plain = batch | {"documents": batch["documents"][:, 0], "negatives": batch["negatives"][:, 0]}
    ours = losses_of(kind, last=0, alpha=0.7, temperature=0.05, **batch)
    assert torch.equal(ours, contrastive_losses(temperature=0.05, **plain))


@KINDS
def test_the_order_of_layers_is_indifferent(kind: str):
    batch = example(1)
    order = [2, 0, 1]
    turned = batch | {name: batch[name][:, order] for name in ("documents", "negatives")}
    expected = losses_of(kind, alpha=0.2, **batch)
    torch.testing.assert_close(losses_of(kind, last=order.index(LAST), alpha=0.2, **turned), expected)


@KINDS
def test_masks_may_be_left_out(kind: str):
    batch = example(3)
    batch["relevant"][:], batch["allowed"][:] = False, True
    without = {name: batch[name] for name in ("queries", "documents", "negatives")}
    assert torch.equal(losses_of(kind, **without), losses_of(kind, **batch))
    nothing = without | {"negatives": torch.empty(0, 3, 4, dtype=torch.float64)}
    assert torch.equal(losses_of(kind, **nothing), losses_of(kind, **(nothing | {"negatives": None})))
