"""The contrastive loss, in both directions, with in-batch and extra negatives (HCE, equation 8), of
one or more layers.

The query is contrasted with the batch's documents and with extra documents sampled for it (hard
negatives); its document is contrasted with the batch's queries only. A document known to be
relevant to a query is never its negative.

A document of several layers (MLR, equations 3 and 5 to 7) is m vectors; a query is one, the last
layer's. Where documents compete for a query, each is as good as its best layer. The way back, on
which queries compete for a document (MLR has none), stays with the last layer, which is what
single-vector search uses. With m = 1 all three losses are one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Contrast(NamedTuple):
    """What B pairs are contrasted with beside each other, E documents of one vector or of m, and
    what is left out.

    relevant: (B, B) bool, [i, j] = document j is relevant to query i; such j != i are left out (the
    diagonal: never). negatives: (E, H) or (E, m, H), extra documents; allowed: (B, E) bool, [i, e]
    = a negative of query i (None: all).
    """

    relevant: Tensor | None = None
    negatives: Tensor | None = None
    allowed: Tensor | None = None


def contrastive_losses(
    queries: Tensor, documents: Tensor, temperature: float, contrast: Contrast
) -> Tensor:
    """The loss of each of the B (query, document) pairs, both directions added: (B,).

    With S(q, d) = q.d / temperature and all sums without the masked pairs, pair i's loss is
        - log[ e^S(q_i, d_i) / ( sum_j e^S(q_i, d_j) + sum_e e^S(q_i, n_e) ) ]
        - log[ e^S(q_i, d_i) / sum_j e^S(q_j, d_i) ]

    queries, documents: (B, H), unit norm; row i of both is pair i. contrast: the masks, and the
    extra documents n_e.

    >>> vectors = torch.eye(3)
    >>> contrastive_losses(vectors, vectors, 1.0, Contrast())  # twice log(1 + 2/e)
    tensor([1.1029, 1.1029, 1.1029])
    """
    scores = queries @ documents.T / temperature  # (B, B)
    extra = None if contrast.negatives is None else contrast.negatives[:, None]  # (E, 1, H)
    return _both_ways(queries, scores, scores, temperature, contrast._replace(negatives=extra))


def softmax_losses(scores: Tensor, positives: Tensor, outside: Tensor) -> Tensor:
    """- log[ e^s(i, positive_i) / sum_k e^s(i, k) ], k over the columns of row i that are not
    `outside`: (B,).

    scores: (B, K); positives: (B,) int64, a column each that is never outside; outside: (B, K)
    bool.

    >>> softmax_losses(torch.tensor([[2.0, 1.0, 9.0]]), torch.tensor([0]), torch.tensor([[False, False, True]]))
    tensor([0.3133])
    """
    positive = scores.gather(1, positives[:, None])  # (B, 1)
    return (
        scores.masked_fill(outside, -torch.inf).logsumexp(dim=1, keepdim=True) - positive
    ).squeeze(1)


def multi_vector_losses(
    queries: Tensor, documents: Tensor, temperature: float, contrast: Contrast, last: int
) -> Tensor:
    """MLR's equation 3, for search in all m vectors, and the way back by the last layer, added:
    (B,).

    With S(q, r) = q.r / temperature, f(q, d) = max_l S(q, d_l), and L the last layer, pair i's loss
    is
        - log[ e^f(q_i, d_i) / ( sum_j e^f(q_i, d_j) + sum_e e^f(q_i, n_e) ) ]
        - log[ e^S(q_i, d_iL) / sum_j e^S(q_j, d_iL) ]

    queries: (B, H); documents: (B, m, H), unit norm per layer, the last layer's at `last`; row i of
    both is pair i.

    >>> queries, documents = torch.eye(2), torch.stack([torch.eye(2), torch.eye(2).flip(0)], dim=1)
    >>> multi_vector_losses(queries, documents, 1.0, Contrast(), last=0)  # log 2, as f is 1 for both; log(1 + 1/e)
    tensor([1.0064, 1.0064])
    """
    scores = layer_scores(queries, documents, temperature)  # (B, B, m)
    return _both_ways(queries, scores.amax(dim=2), scores[..., last], temperature, contrast)


def self_contrastive_losses(
    queries: Tensor,
    documents: Tensor,
    temperature: float,
    contrast: Contrast,
    last: int,
    regulariser: float,
) -> Tensor:
    """MLR's equation 7, for search by the last layer alone, and the way back by the last layer,
    added: (B,).

    The positive must win by its last layer against every layer of the others (equation 5) and of
    its own (equation 6). With S, f and L as in `multi_vector_losses`, pair i's loss is
        - log[ e^S(q_i, d_iL) / ( e^S(q_i, d_iL) + sum_{j != i} e^f(q_i, d_j) + sum_e e^f(q_i, n_e) ) ]
        - regulariser * log[ e^S(q_i, d_iL) / sum_l e^S(q_i, d_il) ]
        - log[ e^S(q_i, d_iL) / sum_j e^S(q_j, d_iL) ]

    regulariser: alpha, 0.01 to 1 in the paper. The other arguments: see `multi_vector_losses`.

    >>> queries, documents = torch.eye(2), torch.stack([torch.eye(2), torch.eye(2).flip(0)], dim=1)
    >>> self_contrastive_losses(queries, documents, 1.0, Contrast(), last=0, regulariser=0.0)
    tensor([1.0064, 1.0064])
    >>> self_contrastive_losses(queries, documents, 1.0, Contrast(), last=0, regulariser=1.0)  # + log(1 + 1/e)
    tensor([1.3197, 1.3197])
    """
    scores = layer_scores(queries, documents, temperature)  # (B, B, m)
    by_last = scores[..., last]
    diagonal = torch.eye(len(queries), dtype=torch.bool, device=queries.device)
    to_documents = torch.where(diagonal, by_last, scores.amax(dim=2))
    losses = _both_ways(queries, to_documents, by_last, temperature, contrast)
    own_layers = scores.diagonal(dim1=0, dim2=1).T  # (B, m)
    return losses + regulariser * (own_layers.logsumexp(dim=1) - own_layers[:, last])


def layer_scores(queries: Tensor, documents: Tensor, temperature: float) -> Tensor:
    """Each query's score with each layer of each document: (B, D, m), from (B, H) and (D, m, H)."""
    products = queries @ documents.flatten(0, 1).T  # (B, D * m), one product of matrices
    return products.view(len(queries), *documents.shape[:2]) / temperature


def _both_ways(
    queries: Tensor,
    to_documents: Tensor,
    to_queries: Tensor,
    temperature: float,
    contrast: Contrast,
) -> Tensor:
    """Rows of `to_documents` and columns of `to_queries`, both (B, B), as softmaxes with the
    diagonal as target.

    Of the negatives (E, m, H) the best layers compete in the rows, too.
    """
    relevant, negatives, allowed = contrast
    positive = to_documents.diagonal() + to_queries.diagonal()
    if relevant is not None:
        masked = relevant.clone().fill_diagonal_(False)
        to_documents, to_queries = (
            scores.masked_fill(masked, -torch.inf) for scores in (to_documents, to_queries)
        )
    if negatives is not None and len(negatives):
        extra = layer_scores(queries, negatives, temperature).amax(dim=2)  # (B, E)
        extra = extra if allowed is None else extra.masked_fill(~allowed, -torch.inf)
        to_documents = torch.cat([to_documents, extra], dim=1)
    return to_documents.logsumexp(dim=1) + to_queries.logsumexp(dim=0) - positive
