"""From token features to weights over the vocabulary: masked max-pool, elu1p, and the k largest at little memory.

With features x_t (D) of a text's real tokens, decoder rows e_v (D) and biases b_v, the weight of vocabulary entry v is
elu1p( max_t x_t.e_v + b_v ) (Zhou et al., Semi-Parametric Retrieval via Binary Token Index, section 3). Padding takes
no part in the maximum: the published code lets it, and so a text's weights depend on its neighbours in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 2048  # vocabulary entries scored at once: with 512 tokens a block of logits stays in a core's cache


def elu1p(logits: Tensor) -> Tensor:
    """x + 1 from 0 on, e^x below: positive, smooth and increasing.

    >>> elu1p(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0.3679, 1.0000, 3.0000])
    """
    return torch.nn.functional.elu(logits) + 1


def best_logits(features: Tensor, mask: Tensor, decoder: Tensor, bias: Tensor) -> Tensor:
    """max_t x_t.e_v + b_v over each text's real tokens: (B, V), from blocks of the vocabulary.

    features: (B, T, D); mask: (B, T), 0 for padding; decoder: (V, D); bias: (V,).
    """
    padding = (mask == 0).unsqueeze(-1)
    blocks = [
        (features @ decoder[start : start + BLOCK].T).masked_fill(padding, -torch.inf).amax(dim=1)
        for start in range(0, len(decoder), BLOCK)
    ]
    return torch.cat(blocks, dim=1) + bias


def chosen_logits(features: Tensor, mask: Tensor, decoder: Tensor, bias: Tensor, chosen: Tensor) -> Tensor:
    """`best_logits` at the entries `chosen` (B, k) of each text only: (B, k), in float32 or wider.

    What the backward pass keeps is (B, T, k), not (B, T, V); values and gradients are those of the dense path.
    """
    with torch.autocast(features.device.type, enabled=False):
        wide = features if features.dtype == torch.float64 else features.float()
        logits = torch.bmm(wide, decoder[chosen].to(wide.dtype).transpose(1, 2))  # (B, T, k)
        return logits.masked_fill((mask == 0).unsqueeze(-1), -torch.inf).amax(dim=1) + bias[chosen]


def largest(logits: Tensor, blocked: Tensor, k: int, first: Tensor | None = None) -> Tensor:
    """The entries of the k largest logits (B, V) that are not `blocked` (V,) bool, ascending: (B, k) int64.

    k: at most as many as are not blocked; they are not counted here, as a GPU would have to be waited for.
    first: (B, n) int64, entries that come before all others unless they are blocked.

    >>> largest(torch.tensor([[5.0, 1.0, 3.0, 2.0]]), torch.tensor([True, False, False, False]), k=2)
    tensor([[2, 3]])
    """
    if first is not None:
        logits = logits.scatter(1, first, torch.finfo(logits.dtype).max)
    return logits.masked_fill(blocked, -torch.inf).topk(k, dim=1).indices.sort(dim=1).values
