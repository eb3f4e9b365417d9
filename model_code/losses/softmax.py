"""Cross-entropy of one positive among the columns that count, the form of every loss that ranks by given scores."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_losses(scores: Tensor, positives: Tensor, outside: Tensor) -> Tensor:
    """- log[ e^s(i, positive_i) / sum_k e^s(i, k) ], k over the columns of row i that are not `outside`: (B,).

    scores: (B, K); positives: (B,) int64, a column each that is never outside; outside: (B, K) bool.

    >>> softmax_losses(torch.tensor([[2.0, 1.0, 9.0]]), torch.tensor([0]), torch.tensor([[False, False, True]]))
    tensor([0.3133])
    """
    own = scores.gather(1, positives[:, None])  # (B, 1)
    return (scores.masked_fill(outside, -torch.inf).logsumexp(dim=1, keepdim=True) - own).squeeze(1)
