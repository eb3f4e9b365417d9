"""Guards the cross-entropy over document ids against a float64 double loop, value and gradient."""

from __future__ import annotations

import pytest
import torch

from model_code.dsi.trainer import document_losses

SCALE = 20.0
KNOWN = [{1}, {4, 0, 6}, {2}, {3, 5}]  # documents known to answer each query; its own is among them or not
OWN = [1, 4, 2, 0]


def example() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    queries = torch.nn.functional.normalize(torch.randn(4, 5, generator=generator, dtype=torch.float64), dim=1)
    return queries.requires_grad_(), torch.randn(7, 5, generator=generator, dtype=torch.float64).requires_grad_()


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
    pairs = torch.tensor([(row, document) for row, known in enumerate(KNOWN) for document in sorted(known)]).T
    losses = document_losses(queries, vectors, torch.tensor(OWN), SCALE, pairs if masked else None)
    expected = torch.stack(loop(queries, vectors, masked))
    torch.testing.assert_close(losses, expected)
    found = torch.autograd.grad(losses.sum(), [queries, vectors])
    for mine, theirs in zip(found, torch.autograd.grad(expected.sum(), [queries, vectors]), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_no_shape_depends_on_what_the_tensors_hold():
    """A GPU would have to be waited for; "meta" tensors hold nothing, and refuse what needs it."""
    known = torch.zeros(2, 5, dtype=torch.int64, device="meta")
    documents = torch.zeros(4, dtype=torch.int64, device="meta")
    queries, vectors = torch.zeros(4, 3, device="meta"), torch.zeros(7, 3, device="meta")
    assert document_losses(queries, vectors, documents, SCALE, known).shape == (4,)
