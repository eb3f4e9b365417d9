"""A start for encoders without a masked-language-model head, solved in closed form from sample passages.

(1) Decoder rows e_v are the word embeddings, centred and scaled to unit norm. (2) A matrix W is the ridge regression of
each token's last hidden state onto the decoder row of that token. (3) The logit of entry v at a token is
scale * cos(W h, e_v) + b_v, where b_v starts at idf_v + bias: rare tokens are worth more, and no token is on at random.
Nothing random is left of an untrained head, and no warm-up is needed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


class ClosedFormHead(nn.Module):
    """Hidden states (..., H) -> features scale * W h / |W h| (..., H), to be multiplied with unit decoder rows."""

    def __init__(self, hidden: int, scale: float) -> None:
        super().__init__()
        self.transform = nn.Linear(hidden, hidden, bias=False)
        self.scale = scale

    def forward(self, hidden: Tensor) -> Tensor:
        """The features of hidden states."""
        turned = self.transform(hidden)
        wide = turned if turned.dtype == torch.float64 else turned.float()  # norms in bfloat16 lose the third digit
        return self.scale * normalize(wide, dim=-1)


def decoder_rows(embeddings: Tensor, used: Tensor) -> Tensor:
    """Word embeddings (V, H) minus their mean over the `used` (V,) bool ones, scaled to unit norm.

    >>> decoder_rows(torch.tensor([[3., 0.], [1., 0.], [9., 9.]]), torch.tensor([True, True, False]))[:2]
    tensor([[ 1.,  0.],
            [-1.,  0.]])
    """
    return normalize(embeddings - embeddings[used].mean(dim=0), dim=1)


def ridge_transform(pairs: Iterable[tuple[Tensor, Tensor]], ridge: float) -> Tensor:
    """The W that minimises sum |W h - e|^2 + penalty |W|^2, in float64: (D, H).

    pairs: hidden states (n, H) and decoder rows (n, D) of the same tokens, part by part.
    ridge: the penalty as a share of the mean square of the hidden states' components, summed over all tokens.
    """
    gram: Tensor | None = None
    cross: Tensor | None = None
    for hidden, rows in pairs:
        hidden, rows = hidden.double(), rows.double()
        gram = hidden.T @ hidden if gram is None else gram + hidden.T @ hidden  # (H, H)
        cross = hidden.T @ rows if cross is None else cross + hidden.T @ rows  # (H, D)
    if gram is None or cross is None:
        raise ValueError("ridge_transform needs at least one token")
    penalty = ridge * gram.diagonal().mean()
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram + penalty * eye, cross).T  # (D, H)
