"""The semi-parametric loss of SVDR.

E(x) are the learned weights of a text, and T(x) is the 0/1 vector of its tokens. The loss of a
query q and a relevant passage p is

    L(E(q), E(p)) + 1/2 L(E(q), T(p)) + 1/2 L(T(q), E(p)),

where each L is contrastive in both directions (Zhou et al., Semi-Parametric Retrieval via Binary
Token Index, section 4).

Scores are inner products, which grow with the number of tokens that two texts share. They are so
large that the softmax of an untrained encoder would be saturated. So each term divides its scores
by a separate scale, which `quarter_deviation` measures before training.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model_code.losses.contrastive import Contrast, contrastive_losses

TERM_WEIGHTS = {"full": 1.0, "beta": 0.5, "alpha": 0.5}
"""Weight of each term in the loss, by the name of the search with the same scores."""
# Lower limit of a scale. It avoids a division by 0 if all scores are equal.
MIN_SCALE = 1e-6


class TextViews(NamedTuple):
    """Two representations of n texts over V vocabulary entries.

    Attributes:
        weights: E(x), the learned weights, (n, V).
        tokens: T(x), 1 at each text's own tokens, (n, V).
    """

    weights: Tensor
    tokens: Tensor


def term_pairs(queries: TextViews, documents: TextViews) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the query vectors and the document vectors that each term of the loss multiplies.

    Each text has two vectors over the vocabulary: learned weights E, and T with a 1 at each of its
    tokens. The loss has three terms, one for each way in which a query q may be searched. The
    score of a document d is

        "full"     E(q).E(d)    learned weights on both sides
        "beta"     E(q).T(d)    documents are only tokenised, so indexing needs no encoder
        "alpha"    T(q).E(d)    queries are only tokenised, so searching needs no encoder

    Each term trains the search of SVDR that has the same name and the same scores.

    Returns:
        By the name of the term, the matrix of the queries (B, V) and that of the documents (P, V).
    """
    return {
        "full": (queries.weights, documents.weights),
        "beta": (queries.weights, documents.tokens),
        "alpha": (queries.tokens, documents.weights),
    }


def semi_parametric_losses(
    queries: TextViews,
    documents: TextViews,
    scales: Tensor,
    relevant: Tensor | None = None,
    allowed: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the three terms of the loss for each pair of a query and its relevant document.

    A term is a contrastive loss in both directions: the query must find its document among
    documents, and the document its query among queries. The terms are not multiplied by their
    weights yet.

    Args:
        queries: The B queries.
        documents: The relevant document of each query, then E extra negatives.
        scales: Divisors of the terms' scores, in the order of `TERM_WEIGHTS`, (3,).
        relevant: Mask of the relevant pairs, (B, B) bool; see `Contrast`.
        allowed: Mask of the allowed extra negatives, (B, E) bool; see `Contrast`.

    Returns:
        Losses, (B,), by the name of the term.
    """
    pair_count = len(queries.weights)
    losses = {}
    pairs = term_pairs(queries, documents)
    for name, scale in zip(pairs, scales, strict=True):
        query_rows, document_rows = pairs[name]
        relevant_documents = document_rows[:pair_count]
        contrast = Contrast(relevant, document_rows[pair_count:], allowed)
        losses[name] = contrastive_losses(query_rows, relevant_documents, scale, contrast)
    return losses


def add_terms(losses: dict[str, Tensor]) -> Tensor:
    """Return the loss of each pair, (B,): the weighted sum of its three terms."""
    weighted = [TERM_WEIGHTS[name] * loss for name, loss in losses.items()]
    return torch.stack(weighted).sum(dim=0)


def quarter_deviation(scores: Tensor, relevant: Tensor | None = None) -> Tensor:
    """Return a quarter of the standard deviation of the scores of non-relevant pairs.

    A softmax of scores that are divided by this scale is not saturated at the start of training.

    Args:
        scores: Scores of B queries and P documents, (B, P).
        relevant: Whether a query and one of the first B documents are relevant, (B, B) bool. The
            diagonal counts as relevant in any case. None: no pair is relevant.

    Returns:
        A scalar without gradient, at least `MIN_SCALE`. It is 1 if there are fewer than two
        non-relevant pairs.
    """
    scores = scores.detach()
    is_relevant = torch.zeros_like(scores, dtype=torch.bool)
    if relevant is not None:
        diagonal = torch.eye(len(relevant), dtype=torch.bool, device=scores.device)
        is_relevant[:, : len(relevant)] = relevant | diagonal

    others = scores[~is_relevant]
    if len(others) < 2:
        return scores.new_ones(())
    return (others.std() / 4).clamp(min=MIN_SCALE)
