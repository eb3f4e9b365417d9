"""The contrastive loss, in both directions, with in-batch and extra negatives (HCE, equation 8).

The query is contrasted with the batch's documents and with extra documents sampled for it (hard negatives); its
document is contrasted with the batch's queries only. A document known to be relevant to a query is never its negative.
"""

from __future__ import annotations

import torch
from torch import Tensor


def contrastive_losses(
    queries: Tensor,
    documents: Tensor,
    temperature: float,
    relevant: Tensor | None = None,
    negatives: Tensor | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """The loss of each of the B (query, document) pairs, both directions added: (B,).

    With S(q, d) = q.d / temperature and all sums without the masked pairs, pair i's loss is
        - log[ e^S(q_i, d_i) / ( sum_j e^S(q_i, d_j) + sum_e e^S(q_i, n_e) ) ]
        - log[ e^S(q_i, d_i) / sum_j e^S(q_j, d_i) ]

    queries, documents: (B, H), unit norm; row i of both is pair i.
    relevant: (B, B) bool, [i, j] = document j is relevant to query i; such j != i are left out (the diagonal: never).
    negatives: (E, H), extra documents n_e; allowed: (B, E) bool, [i, e] = n_e is a negative of query i (None: of all).

    >>> vectors = torch.eye(3)
    >>> contrastive_losses(vectors, vectors, temperature=1.0)  # twice log(1 + 2/e)
    tensor([1.1029, 1.1029, 1.1029])
    """
    scores = queries @ documents.T / temperature  # (B, B)
    positive = scores.diagonal()
    if relevant is not None:
        scores = scores.masked_fill(without_diagonal(relevant), -torch.inf)
    to_documents = scores
    if negatives is not None and len(negatives):
        extra = queries @ negatives.T / temperature  # (B, E)
        extra = extra if allowed is None else extra.masked_fill(~allowed, -torch.inf)
        to_documents = torch.cat([scores, extra], dim=1)
    return to_documents.logsumexp(dim=1) + scores.logsumexp(dim=0) - 2 * positive


def without_diagonal(mask: Tensor) -> Tensor:
    """A (B, B) mask with its diagonal cleared.

    >>> without_diagonal(torch.ones(2, 2, dtype=torch.bool)).tolist()
    [[False, True], [True, False]]
    """
    return mask & ~torch.eye(len(mask), dtype=torch.bool, device=mask.device)


def softmax_losses(scores: Tensor, positives: Tensor, outside: Tensor) -> Tensor:
    """- log[ e^s(i, positive_i) / sum_k e^s(i, k) ], k over the columns of row i that are not `outside`: (B,).

    scores: (B, K); positives: (B,) int64, a column each that is never outside; outside: (B, K) bool.

    >>> softmax_losses(torch.tensor([[2.0, 1.0, 9.0]]), torch.tensor([0]), torch.tensor([[False, False, True]]))
    tensor([0.3133])
    """
    positive = scores.gather(1, positives[:, None])  # (B, 1)
    return (scores.masked_fill(outside, -torch.inf).logsumexp(dim=1, keepdim=True) - positive).squeeze(1)
