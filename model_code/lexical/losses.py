"""The semi-parametric loss of SVDR, and the beta loss of the first stage.

Zhou et al., Semi-Parametric Retrieval via Binary Token Index, section 4: with E(x) the learned weights of a text and
T(x) the 0/1 vector of its own tokens,

    L(E(q), E(p)) + 1/2 L(E(q), T(p)) + 1/2 L(T(q), E(p)),

where each L is contrastive in both directions. Scores are plain inner products, as large as weights times the tokens
two texts share, so an untrained encoder's softmax is saturated: each term may divide its scores by a scale of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from model_code.losses.contrastive import contrastive_losses
from model_code.losses.softmax import softmax_losses

SHARES = {"full": 1.0, "beta": 0.5, "alpha": 0.5}  # of each term in the loss


class Views(NamedTuple):
    """n texts seen both ways, over the same V entries: learned weights E(x) (n, V), and own tokens T(x) (n, V)."""

    weights: Tensor
    tokens: Tensor


def dense(entries: Tensor, weights: Tensor, size: int) -> Tensor:
    """(n, k) entries and weights as rows of a (n, size) tensor, with gradient to the weights.

    >>> dense(torch.tensor([[0, 2]]), torch.tensor([[1.0, 5.0]]), 4)
    tensor([[1., 0., 5., 0.]])
    """
    return weights.new_zeros(len(entries), size).scatter(1, entries, weights)


def term_pairs(
    queries: Views, documents: Views, terms: Sequence[str] = tuple(SHARES)
) -> dict[str, tuple[Tensor, Tensor]]:
    """The two sides of each of `terms`: "full" E(q), E(p); "beta" E(q), T(p); "alpha" T(q), E(p)."""
    pairs = {
        "full": (queries.weights, documents.weights),
        "beta": (queries.weights, documents.tokens),
        "alpha": (queries.tokens, documents.weights),
    }
    return {term: pairs[term] for term in terms}


def semi_parametric_losses(
    queries: Views,
    documents: Views,
    scales: Tensor,
    relevant: Tensor | None = None,
    allowed: Tensor | None = None,
    terms: Sequence[str] = tuple(SHARES),
) -> dict[str, Tensor]:
    """Each term's loss of each of the B pairs, both directions added, without its share: {term: (B,)}.

    queries: B texts; documents: the B positives, then E extra negatives. scales: one per term, divide its scores.
    relevant: (B, B) bool and allowed: (B, E) bool, as in `contrastive_losses`. terms: all, or those to train by.
    """
    batch = len(queries.weights)
    losses = {}
    for (name, (left, right)), scale in zip(term_pairs(queries, documents, terms).items(), scales, strict=True):
        losses[name] = contrastive_losses(left, right[:batch], scale, relevant, right[batch:], allowed)
    return losses


def total(losses: dict[str, Tensor]) -> Tensor:
    """The terms of a pair added by their shares: (B,)."""
    return torch.stack([SHARES[name] * loss for name, loss in losses.items()]).sum(dim=0)


def beta_losses(scores: Tensor, positives: Tensor, excluded: Tensor, scale: Tensor | float) -> Tensor:
    """The loss of each of B queries against the fixed tokens of P passages, query to passage only: (B,).

    scores: (B, P), E(q).T(p); positives: (B,) int64, each query's passage.
    excluded: (B, P) bool, passages that answer the query too, so are no negatives (the positive itself may be).

    >>> beta_losses(torch.tensor([[2.0, 0.0, 9.0]]), torch.tensor([0]), torch.tensor([[True, False, True]]), 2.0)
    tensor([0.3133])
    """
    return softmax_losses(scores / scale, positives, excluded.scatter(1, positives[:, None], False))


def quarter_deviation(scores: Tensor, relevant: Tensor | None = None) -> Tensor:
    """A quarter of the standard deviation of the scores of non-relevant pairs, for the softmax to start unsaturated.

    scores: (B, P); relevant: (B, B) bool for the first B columns. Never below 1e-6. No gradient.
    """
    scores = scores.detach()
    own = torch.zeros_like(scores, dtype=torch.bool)
    if relevant is not None:
        own[:, : len(relevant)] = relevant | torch.eye(len(relevant), dtype=torch.bool, device=scores.device)
    others = scores[~own]
    if len(others) < 2:
        return scores.new_ones(())
    return (others.std() / 4).clamp(min=1e-6)
