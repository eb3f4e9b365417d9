"""Contrastive losses of documents that are represented by several layers (MLR, section 3).

A document d has m vectors d_l, one per layer. A query q has one vector, from the last layer. The
score of one layer is S(q, d_l) = q.d_l / temperature. The score of a document is the score of its
best layer (equation 2):

    f(q, d) = max_l S(q, d_l)

In the losses of MLR, documents compete for a query. Both losses here add the other direction, in
which queries compete for a document. This direction uses only the last layer of the document, like
a search with one vector per document. With m = 1 both losses equal
`model_code.losses.contrastive.contrastive_losses`.

Vectors have unit norm here, unlike in the paper. Each layer has to be normalised by its own norm,
or the layer with the largest norm would win every comparison; and the softmaxes need a temperature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model_code.losses.contrastive import Contrast, bidirectional_losses


def layer_scores(queries: Tensor, documents: Tensor, temperature: float) -> Tensor:
    """Score every layer of every document for every query.

    Args:
        queries: Vectors of the queries, (B, H).
        documents: Vectors of the m layers of each document, (D, m, H).
        temperature: Divisor of the scores.

    Returns:
        Scores, (B, D, m).
    """
    # All layers are scored in one product of matrices, which is faster than one per document.
    products = queries @ documents.flatten(0, 1).T
    document_count, layer_count = documents.shape[:2]
    return products.view(len(queries), document_count, layer_count) / temperature


def best_layer_scores(
    queries: Tensor, documents: Tensor | None, temperature: float
) -> Tensor | None:
    """Score every document for every query by the document's best layer (MLR, equation 2).

    A document has one vector per encoder layer. Its score f(q, d) for a query is the largest score
    of these vectors.

    Args:
        queries: Vectors of the B queries, (B, H).
        documents: Vectors of the m layers of each of the D documents, (D, m, H). None: there are no
            documents.
        temperature: Divisor of the scores.

    Returns:
        Scores, (B, D). None if `documents` is None.
    """
    if documents is None:
        return None
    return layer_scores(queries, documents, temperature).amax(dim=2)


def multi_vector_losses(
    queries: Tensor, documents: Tensor, temperature: float, contrast: Contrast, last: int
) -> Tensor:
    """Return the loss that trains for search in all m vectors (MLR, equation 3).

    Pair i of the batch has the query q_i and the document d_i. The symbols are

        d_iL     vector of the last layer of d_i
        n_e      extra document e, a negative of q_i
        S(q, r)  score of a query and one layer: q.r / temperature
        f(q, d)  score of a query and the best layer of a document: max_l S(q, d_l)

    The loss of pair i is the sum of two terms. In the first, d_i competes with other documents for
    q_i. In the second, q_i competes with other queries for d_i:

        - log[ e^f(q_i, d_i) / ( sum_j e^f(q_i, d_j) + sum_e e^f(q_i, n_e) ) ]
        - log[ e^S(q_i, d_iL) / sum_j e^S(q_j, d_iL) ]

    Args:
        queries: Unit vectors of the queries, (B, H).
        documents: Unit vectors of the m layers of each document, (B, m, H). Row i is the document
            of query i.
        temperature: Divisor of the scores.
        contrast: Masks and the extra documents n_e, (E, m, H).
        last: Position of the last layer among the m.

    Returns:
        Losses, (B,).

    >>> queries = torch.eye(2)
    >>> documents = torch.stack([torch.eye(2), torch.eye(2).flip(0)], dim=1)
    >>> multi_vector_losses(queries, documents, 1.0, Contrast(), last=0)  # log 2 + log(1 + 1/e)
    tensor([1.0064, 1.0064])
    """
    scores = layer_scores(queries, documents, temperature)
    negative_scores = best_layer_scores(queries, contrast.negatives, temperature)
    return bidirectional_losses(scores.amax(dim=2), scores[..., last], negative_scores, contrast)


def self_contrastive_losses(
    queries: Tensor,
    documents: Tensor,
    temperature: float,
    contrast: Contrast,
    last: int,
    regulariser: float,
) -> Tensor:
    """Return the loss that trains for search by the last layer alone (MLR, equation 7).

    Pair i of the batch has the query q_i and the document d_i. The symbols are

        d_il     vector of layer l of d_i; the last layer is L
        n_e      extra document e, a negative of q_i
        S(q, r)  score of a query and one layer: q.r / temperature
        f(q, d)  score of a query and the best layer of a document: max_l S(q, d_l)

    The loss of pair i is the sum of three terms:

    1. The last layer of d_i should score higher than every layer of the other documents
       (equation 5):

           - log[ e^S(q_i, d_iL)
                  / ( e^S(q_i, d_iL) + sum_{j != i} e^f(q_i, d_j) + sum_e e^f(q_i, n_e) ) ]

    2. The last layer of d_i should score higher than its other layers (equation 6):

           - regulariser * log[ e^S(q_i, d_iL) / sum_l e^S(q_i, d_il) ]

    3. q_i should score higher for the last layer of d_i than the other queries of the batch. This
       term is not in the paper:

           - log[ e^S(q_i, d_iL) / sum_j e^S(q_j, d_iL) ]

    Args:
        queries: Unit vectors of the queries, (B, H).
        documents: Unit vectors of the m layers of each document, (B, m, H). Row i is the document
            of query i.
        temperature: Divisor of the scores.
        contrast: Masks and the extra documents n_e, (E, m, H).
        last: Position of the last layer among the m.
        regulariser: Weight alpha of equation 6, 0.01 to 1 in the paper.

    Returns:
        Losses, (B,).

    >>> queries = torch.eye(2)
    >>> documents = torch.stack([torch.eye(2), torch.eye(2).flip(0)], dim=1)
    >>> self_contrastive_losses(queries, documents, 1.0, Contrast(), last=0, regulariser=0.0)
    tensor([1.0064, 1.0064])
    >>> # The regulariser adds log(1 + 1/e).
    >>> self_contrastive_losses(queries, documents, 1.0, Contrast(), last=0, regulariser=1.0)
    tensor([1.3197, 1.3197])
    """
    scores = layer_scores(queries, documents, temperature)
    last_scores = scores[..., last]
    # A query's own document counts by its last layer, and any other document by its best layer.
    is_positive = torch.eye(len(queries), dtype=torch.bool, device=queries.device)
    to_documents = torch.where(is_positive, last_scores, scores.amax(dim=2))
    negative_scores = best_layer_scores(queries, contrast.negatives, temperature)
    losses = bidirectional_losses(to_documents, last_scores, negative_scores, contrast)

    # The scores of the m layers of each query's own document, (B, m).
    positive_layers = scores.diagonal(dim1=0, dim2=1).T
    last_layer_losses = positive_layers.logsumexp(dim=1) - positive_layers[:, last]
    return losses + regulariser * last_layer_losses
