"""The loss of atomic document ids: a query classifies its document among all documents (IncDSI, section 3, stage 1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def document_losses(
    queries: Tensor, vectors: Tensor, documents: Tensor, logit_scale: float, known: Tensor | None = None
) -> Tensor:
    """The cross-entropy of each of B queries over all n documents: (B,).

    With S(q, d) = logit_scale * q.v_d, query i's loss is
        - log[ e^S(q_i, d_i) / sum_d e^S(q_i, d) ],   d = all documents but the others known to answer q_i

    queries: (B, H). vectors: (n, H), of any norm. documents: (B,) int64, the number of each query's document.
    known: (2, m) int64, rows i of the batch and documents known to answer q_i. They are left out of query i's sum,
      except its own document, which may be among them or not. Published without: a query that several documents answer
      would push each of them away in turn.

    >>> vectors = torch.eye(3)
    >>> document_losses(vectors[:1], vectors, torch.tensor([0]), logit_scale=1.0)  # log(1 + 2/e)
    tensor([0.5514])
    >>> document_losses(vectors[:1], vectors, torch.tensor([0]), 1.0, known=torch.tensor([[0, 0], [0, 2]]))
    tensor([0.3133])
    """
    scores = (logit_scale * queries) @ vectors.T  # (B, n)
    if known is not None:
        scores = scores.masked_fill(_others(known, documents, scores), -torch.inf)
    return cross_entropy(scores, documents, reduction="none")


def _others(known: Tensor, documents: Tensor, scores: Tensor) -> Tensor:
    """Which documents other than its own answer each query: (B, n) bool, by steps that no GPU has to be waited for."""
    rows, columns = known
    others = torch.zeros_like(scores, dtype=torch.bool)
    others.view(-1).index_fill_(0, rows * scores.shape[1] + columns, True)
    return others.scatter_(1, documents[:, None], False)
