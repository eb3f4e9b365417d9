"""The contrastive loss of (query, document) pairs, in both directions (HCE, equation 8).

A query is contrasted with the documents of its batch and with extra documents that were sampled as
hard negatives. A document is contrasted with the queries of its batch only. A document that is
known to be relevant to a query is never its negative.

Documents are one vector each here. `model_code.mlr.losses` scores documents of several vectors and
adds the same two directions with `bidirectional_losses`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Contrast(NamedTuple):
    """Extra negatives of a batch of B pairs, and masks of the pairs that are not negatives.

    The documents of the other pairs in the batch are negatives by default.

    Attributes:
        relevant: Mask of the pairs that are left out of both softmaxes, (B, B) bool. `[i, j]` is
            true if document j is relevant to query i. The diagonal is ignored. None: no pair is
            left out.
        negatives: Vectors of the extra documents, (E, H), or (E, m, H) if a document has m vectors.
            None: no extra documents.
        allowed: Mask of the extra documents that are negatives of each query, (B, E) bool. None:
            all extra documents are negatives of all queries.
    """

    relevant: Tensor | None = None
    negatives: Tensor | None = None
    allowed: Tensor | None = None


def contrastive_losses(
    queries: Tensor, documents: Tensor, temperature: float | Tensor, contrast: Contrast
) -> Tensor:
    """Return the contrastive loss of each pair, both directions added (HCE, equation 8).

    With S(q, d) = q.d / temperature, and without the pairs that `contrast` leaves out, the loss of
    pair i is

        - log[ e^S(q_i, d_i) / ( sum_j e^S(q_i, d_j) + sum_e e^S(q_i, n_e) ) ]
        - log[ e^S(q_i, d_i) / sum_j e^S(q_j, d_i) ]

    Args:
        queries: Unit vectors of the queries, (B, H).
        documents: Unit vectors of the documents, (B, H). Row i is the document of query i.
        temperature: Divisor of the scores.
        contrast: Masks and the extra documents n_e, (E, H).

    Returns:
        Losses, (B,).

    >>> vectors = torch.eye(3)
    >>> contrastive_losses(vectors, vectors, 1.0, Contrast())  # twice log(1 + 2/e)
    tensor([1.1029, 1.1029, 1.1029])
    """
    scores = queries @ documents.T / temperature

    negative_scores = None
    if contrast.negatives is not None:
        negative_scores = queries @ contrast.negatives.T / temperature

    return bidirectional_losses(scores, scores, negative_scores, contrast)


def bidirectional_losses(
    to_documents: Tensor,
    to_queries: Tensor,
    negative_scores: Tensor | None,
    contrast: Contrast,
) -> Tensor:
    """Add the softmax losses of both directions, with the diagonal as the positives.

    The directions may use different scores. To rank the documents of a query, MLR uses several
    vectors of each document. To rank the queries of a document, it uses the last layer's vector.

    Args:
        to_documents: Scores, (B, B). The softmax of query i is over row i, with all documents.
        to_queries: Scores, (B, B). The softmax of document i is over column i, with all queries.
        negative_scores: Scores of the extra documents, (B, E). They are further columns of
            `to_documents`.
        contrast: Masks; see `Contrast`.

    Returns:
        Losses, (B,).
    """
    positives = to_documents.diagonal() + to_queries.diagonal()

    # Pairs are left out of a softmax by a score of -inf, which adds nothing to it.
    if contrast.relevant is not None:
        left_out = contrast.relevant.clone().fill_diagonal_(False)
        to_documents = to_documents.masked_fill(left_out, -torch.inf)
        to_queries = to_queries.masked_fill(left_out, -torch.inf)

    if negative_scores is not None:
        if contrast.allowed is not None:
            negative_scores = negative_scores.masked_fill(~contrast.allowed, -torch.inf)
        to_documents = torch.cat([to_documents, negative_scores], dim=1)

    return to_documents.logsumexp(dim=1) + to_queries.logsumexp(dim=0) - positives


def softmax_losses(scores: Tensor, positives: Tensor, outside: Tensor) -> Tensor:
    """Return the softmax loss of each row, in one direction.

        - log[ e^s(i, positive_i) / sum_k e^s(i, k) ],   k = columns of row i that are not outside

    Args:
        scores: B rows of K scores, (B, K).
        positives: The positive column of each row, (B,) int64. It is never outside.
        outside: Mask of the columns that are left out of a row's softmax, (B, K) bool.

    Returns:
        Losses, (B,).

    >>> outside = torch.tensor([[False, False, True]])
    >>> softmax_losses(torch.tensor([[2.0, 1.0, 9.0]]), torch.tensor([0]), outside)
    tensor([0.3133])
    """
    positive_scores = scores.gather(1, positives[:, None])
    normalizers = scores.masked_fill(outside, -torch.inf).logsumexp(dim=1, keepdim=True)
    return (normalizers - positive_scores).squeeze(1)
