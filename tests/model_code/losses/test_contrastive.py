"""Guards the bidirectional contrastive losses, of one layer (HCE's equation 8) and of several
(MLR's equations 3 and 5 to 7): values and gradients against float64 loops under every mask,
equality of all three where there is one layer, and indifference to the order of layers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from model_code.losses.contrastive import (
    Contrast,
    contrastive_losses,
    multi_vector_losses,
    self_contrastive_losses,
)

LAST = 1  # neither first nor last in the list
KINDS = ["multi_vector", "self_contrastive"]
SEVERAL = pytest.mark.parametrize("kind", KINDS)


def loop_losses(
    queries,
    documents,
    temperature,
    relevant,
    negatives,
    allowed,
    kind: str = "one",
    alpha: float = 0.0,
) -> Tensor:
    """The equations, pair by pair, in plain exponentials: documents (B, m, H), of which one layer
    speaks for "one".
    """
    last, e = (0 if documents.shape[1] == 1 else LAST), torch.exp

    def score(query: Tensor, vector: Tensor) -> Tensor:
        return torch.dot(query, vector) / temperature

    def best(query: Tensor, document: Tensor) -> Tensor:
        return max(score(query, vector) for vector in document)

    losses = []
    for i in range(len(queries)):
        by_last = score(queries[i], documents[i, last])
        positive = best(queries[i], documents[i]) if kind == "multi_vector" else by_last
        to_documents, to_queries, layers = e(positive), e(by_last), 0
        for j in range(len(queries)):
            if j != i and not relevant[i, j]:
                to_documents = to_documents + e(best(queries[i], documents[j]))
            if j != i and not relevant[j, i]:
                to_queries = to_queries + e(score(queries[j], documents[i, last]))
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
        return normalize(
            torch.randn(*shape, 4, generator=random, dtype=torch.float64), dim=-1
        ).requires_grad_()

    return {
        "queries": vectors(pairs),
        "documents": vectors(pairs, layers),
        "relevant": torch.rand(pairs, pairs, generator=random) < 0.3,
        "negatives": vectors(extra, layers),
        "allowed": torch.rand(pairs, extra, generator=random) < 0.5,
    }


def single(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch of one layer."""
    return batch | {name: batch[name][:, 0] for name in ("documents", "negatives")}


def given(queries: Tensor, documents: Tensor, **contrast: Tensor | None) -> dict[str, Any]:
    """A batch as the losses take it."""
    return {"queries": queries, "documents": documents, "contrast": Contrast(**contrast)}


def losses_of(
    kind: str, last: int = LAST, alpha: float = 0.0, temperature: float = 0.1, **batch: Tensor
) -> Tensor:
    if kind == "one":
        return contrastive_losses(temperature=temperature, **given(**single(batch)))
    if kind == "multi_vector":
        return multi_vector_losses(temperature=temperature, last=last, **given(**batch))
    return self_contrastive_losses(
        temperature=temperature, last=last, regulariser=alpha, **given(**batch)
    )


@pytest.mark.parametrize("kind", ["one", *KINDS])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_values_and_gradients_are_those_of_the_equations(kind: str, seed: int, temperature: float):
    batch = example(seed, layers=1 if kind == "one" else 3)
    options = {
        "kind": kind,
        "temperature": temperature,
        "alpha": 0.3 if kind == "self_contrastive" else 0.0,
    }
    tensors = [batch["queries"], batch["documents"], batch["negatives"]]
    # so that no two pairs can be mistaken for each other
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    ours, loop = losses_of(**options, **batch), loop_losses(**options, **batch)
    torch.testing.assert_close(ours, loop, rtol=1e-10, atol=1e-10)
    gradients = torch.autograd.grad((weights * ours).sum(), tensors)
    expected = torch.autograd.grad((weights * loop).sum(), tensors)
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-9)


@SEVERAL
def test_one_layer_is_the_ordinary_loss_to_the_bit(kind: str):
    batch = example(0, layers=1)
    batch |= {name: batch[name].float() for name in ("queries", "documents", "negatives")}
    ours = losses_of(kind, last=0, alpha=0.7, temperature=0.05, **batch)
    assert torch.equal(ours, contrastive_losses(temperature=0.05, **given(**single(batch))))


@SEVERAL
def test_the_order_of_layers_is_indifferent(kind: str):
    batch = example(1)
    order = [2, 0, 1]
    turned = batch | {name: batch[name][:, order] for name in ("documents", "negatives")}
    expected = losses_of(kind, alpha=0.2, **batch)
    torch.testing.assert_close(
        losses_of(kind, last=order.index(LAST), alpha=0.2, **turned), expected
    )


@pytest.mark.parametrize("kind", ["one", *KINDS])
def test_masks_may_be_left_out(kind: str):
    batch = example(3, layers=1 if kind == "one" else 3)
    loss = (
        losses_of
        if kind != "one"
        else lambda kind, **batch: contrastive_losses(temperature=0.1, **given(**batch))
    )
    batch = single(batch) if kind == "one" else batch
    batch["relevant"][:], batch["allowed"][:] = False, True
    without = {name: batch[name] for name in ("queries", "documents", "negatives")}
    assert torch.equal(loss(kind, **without), loss(kind, **batch))
    nothing = without | {"negatives": batch["negatives"][:0]}
    assert torch.equal(loss(kind, **nothing), loss(kind, **(nothing | {"negatives": None})))


def test_everything_masked_gives_zero_and_finite_gradients():
    batch = single(example(3, layers=1))
    batch["relevant"][:], batch["allowed"][:] = True, False
    losses = contrastive_losses(temperature=0.05, **given(**batch))
    torch.testing.assert_close(losses, torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0)
    gradients = torch.autograd.grad(losses.sum(), [batch["queries"], batch["negatives"]])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_large_scores_do_not_overflow():
    vectors = torch.eye(3)
    # float32, exp(1000) is infinite
    losses = contrastive_losses(vectors, vectors.roll(1, 0), 0.001, Contrast())
    torch.testing.assert_close(losses, torch.full((3,), 2000.0))


def test_equals_sentence_transformers_in_both_directions():
    """A foreign oracle: MultipleNegativesRankingLoss with a softmax per direction, which it
    averages where HCE adds.
    """
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    batch = single(example(6, pairs=5, extra=5, layers=1))
    peer = MultipleNegativesRankingLoss(
        None,
        scale=20.0,
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )
    theirs = peer.compute_loss_from_embeddings(
        [batch["queries"], batch["documents"], batch["negatives"]], None
    )
    ours = contrastive_losses(
        batch["queries"], batch["documents"], 0.05, Contrast(negatives=batch["negatives"])
    )
    torch.testing.assert_close(ours.mean() / 2, theirs)
