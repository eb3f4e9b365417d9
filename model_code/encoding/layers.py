"""What an encoder makes of a document's layers (MLR, section 3): several vectors, or one mixed from them.

Mixed are the layers' pooled vectors as they come, each divided by that layer's mean norm, which was measured once and
is a constant from then on. So a layer counts by its weight and not by its scale (T5's inner layers are residual
streams, whose norms grow with depth), and the mix stays linear in the token vectors: sentence-transformers'
WeightedLayerPooling in front of its Pooling gives the same vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from model_code.encoding.bert import Bert

LayerPooling = Literal["average", "mix", "multi_vector"]
RATE = 100.0  # the mix's logits are so many times their parameter: under Adam they learn so many times as fast


class Layers(nn.Module):
    """Layers `numbers`, ascending, the last one among them, and what becomes of their vectors.

    >>> layers = Layers((1, 2), "average", scales=torch.tensor([4.0, 2.0]))
    >>> layers.weights()
    tensor([0.3333, 0.6667])
    """

    def __init__(self, numbers: Sequence[int], pooling: LayerPooling, scales: Tensor | None = None) -> None:
        """scales: (m,) the mean norm of each layer's pooled vectors; needed but for "multi_vector"."""
        super().__init__()
        self.numbers, self.pooling = tuple(numbers), pooling
        self.register_buffer("scales", scales)
        zeros = torch.zeros(len(self.numbers))  # MLR's scalar mix starts as the average
        self.logits = nn.Parameter(zeros) if pooling == "mix" else None

    @property
    def vectors_per_passage(self) -> int:
        """Number of vectors that a passage is indexed by."""
        return len(self.numbers) if self.pooling == "multi_vector" else 1

    def shares(self) -> Tensor:
        """Share of each layer's vectors, brought to unit scale, in the mix: (m,), summing to 1."""
        logits = torch.zeros_like(self.scales) if self.logits is None else self.logits
        return (RATE * logits).softmax(dim=0)

    def weights(self) -> Tensor:
        """What each layer's pooled vector is multiplied by: (m,), summing to 1 as WeightedLayerPooling has it."""
        weights = self.shares() / self.scales
        return weights / weights.sum()

    def mix(self, pooled: Tensor) -> Tensor:
        """One vector (B, H) of the layers' pooled ones (B, m, H), neither projected nor normalised yet."""
        return (pooled * self.weights()[:, None]).sum(dim=1)  # no matrix product: autocast would round it to bfloat16

    def to_json(self) -> dict[str, Any]:
        """All that `from_json` needs."""
        tensors = {"scales": self.scales, "logits": self.logits}
        lists = {name: tensor.detach().tolist() for name, tensor in tensors.items() if tensor is not None}
        return {"numbers": list(self.numbers), "pooling": self.pooling, **lists}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Layers:
        """Read what `to_json` gave, bit for bit."""
        scales = torch.tensor(values["scales"]) if "scales" in values else None
        layers = cls(values["numbers"], values["pooling"], scales)
        if layers.logits is not None:
            layers.logits.data.copy_(torch.tensor(values["logits"]))
        return layers


def hidden_states(backbone: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """The token vectors (B, T, H) after the embeddings (number 0) and after each layer; the last as the model gives it.

    T5 gives its last layer through a final norm, and its inner layers without one.
    """
    wanted = {} if isinstance(backbone, Bert) else {"output_hidden_states": True}  # `Bert` always has them
    output = backbone(input_ids=ids, attention_mask=mask, **wanted)
    return (*output.hidden_states[: backbone.config.num_hidden_layers], output.last_hidden_state)
