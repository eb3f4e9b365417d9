"""Guards the bidirectional contrastive loss: values and gradients against float64 loops written from HCE's equation 8
under every mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from model_code.losses.contrastive import contrastive_losses


def loop_losses(queries, documents, temperature, relevant, negatives, allowed) -> list[Tensor]:
    """Equation 8, pair by pair, in plain exponentials."""

    def e(query: Tensor, document: Tensor) -> Tensor:
        return torch.exp(torch.dot(query, document) / temperature)

    losses = []
    for i in range(len(queries)):
        own = e(queries[i], documents[i])
        to_documents, to_queries = own, own
        for j in range(len(queries)):
            if j != i and not relevant[i, j]:
                to_documents = to_documents + e(queries[i], documents[j])
            if j != i and not relevant[j, i]:
                to_queries = to_queries + e(queries[j], documents[i])
        for n in range(len(negatives)):
            if allowed[i, n]:
                to_documents = to_documents + e(queries[i], negatives[n])
        losses.append(-torch.log(own / to_documents) - torch.log(own / to_queries))
    return losses


def example(seed: int, pairs: int = 6, extra: int = 4) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)

    def vectors(n: int) -> Tensor:
        return normalize(torch.randn(n, 5, generator=random, dtype=torch.float64), dim=1).requires_grad_()

    return {
        "queries": vectors(pairs),
        "documents": vectors(pairs),
        "relevant": torch.rand(pairs, pairs, generator=random) < 0.3,
        "negatives": vectors(extra),
        "allowed": torch.rand(pairs, extra, generator=random) < 0.5,
    }


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_values_and_gradients_are_those_of_the_equation(seed: int, temperature: float):
    batch = example(seed)
    tensors = [batch["queries"], batch["documents"], batch["negatives"]]
    weights = torch.arange(1.0, 7.0, dtype=torch.float64)  # so that no two pairs can be mistaken for each other
    ours = contrastive_losses(temperature=temperature, **batch)
    loop = torch.stack(loop_losses(temperature=temperature, **batch))
    torch.testing.assert_close(ours, loop, rtol=1e-10, atol=1e-10)
    gradients = torch.autograd.grad((weights * ours).sum(), tensors)
    expected = torch.autograd.grad((weights * loop).sum(), tensors)
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-9)


def test_everything_masked_gives_zero_and_finite_gradients():
    batch = example(3)
    batch["relevant"][:], batch["allowed"][:] = True, False
    losses = contrastive_losses(temperature=0.05, **batch)
    torch.testing.assert_close(losses, torch.zeros(6, dtype=torch.float64), atol=1e-12, rtol=0)
    assert all(
        torch.isfinite(g).all() for g in torch.autograd.grad(losses.sum(), [batch["queries"], batch["negatives"]])
    )


@pytest.mark.parametrize("absent", [None, torch.empty(0, 5, dtype=torch.float64)])
def test_no_extra_negatives(absent):
    batch = example(4)
    plain = contrastive_losses(batch["queries"], batch["documents"], 1.0, batch["relevant"])
    given = contrastive_losses(batch["queries"], batch["documents"], 1.0, batch["relevant"], absent)
    assert torch.equal(plain, given)


def test_extra_negatives_without_mask_are_negatives_of_all():
    batch = example(5)
    batch["allowed"][:] = True
    masked = contrastive_losses(temperature=1.0, **batch)
    del batch["allowed"]
    assert torch.equal(contrastive_losses(temperature=1.0, **batch), masked)


def test_large_scores_do_not_overflow():
    vectors = torch.eye(3)
    losses = contrastive_losses(vectors, vectors.roll(1, 0), temperature=0.001)  # float32, exp(1000) is infinite
    torch.testing.assert_close(losses, torch.full((3,), 2000.0))


def test_equals_sentence_transformers_in_both_directions():
    """A foreign oracle: MultipleNegativesRankingLoss with a softmax per direction, which it averages where HCE adds."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    batch = example(6, pairs=5, extra=5)
    peer = MultipleNegativesRankingLoss(
        None, scale=20.0, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )
    theirs = peer.compute_loss_from_embeddings([batch["queries"], batch["documents"], batch["negatives"]], None)
    ours = contrastive_losses(batch["queries"], batch["documents"], 0.05, negatives=batch["negatives"])
    torch.testing.assert_close(ours.mean() / 2, theirs)
