"""What an encoder makes of a document's layers (MLR, section 3): several vectors, or one mixed from them.

Mixed are the layers' pooled vectors as they come, each divided by that layer's mean norm, which was measured once and
is a constant from then on. So a layer counts by its weight and not by its scale (T5's inner layers are residual
streams, whose norms grow with depth), and the mix stays linear in the token vectors: sentence-transformers'
WeightedLayerPooling in front of its Pooling gives the same vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from model_code.encoding.bert import Bert
from model_code.encoding.settings import LayerSettings
from model_code.errors import FreshetError

if TYPE_CHECKING:
    from model_code.encoding.encoder import Encoder

LayerPooling = Literal["average", "mix", "multi_vector"]
SAMPLE = 256  # texts that the layers' scales are measured on
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


def represent_documents(encoder: Encoder, settings: LayerSettings, texts: Sequence[str]) -> None:
    """Have `encoder` index documents by the layers that `settings` ask for; SettingsError if it has no such layer.

    Self-contrastive pooling uses its layers in training only: what it searches is an ordinary encoder. texts: the
    corpus's passages, of which some tell how the layers' norms differ.
    """
    encoder.layers = None
    numbers = _indexed(encoder, settings)
    if len(numbers) == 1:
        return
    scales = None if settings.pooling == "multi_vector" else layer_scales(encoder, numbers, texts)
    encoder.layers = Layers(numbers, settings.pooling, scales).to(encoder.device)


def require_represented(encoder: Encoder, settings: LayerSettings) -> None:
    """FreshetError unless `represent_documents` has prepared `encoder` for these settings."""
    found = (encoder.depth,) if encoder.layers is None else encoder.layers.numbers
    if found != _indexed(encoder, settings) or (encoder.layers and encoder.layers.pooling != settings.pooling):
        raise FreshetError(
            f"the encoder indexes documents by layers {list(found)}, which are not those of {settings}; "
            "call represent_documents(encoder, layers, texts) first"
        )


def _indexed(encoder: Encoder, settings: LayerSettings) -> tuple[int, ...]:
    """The layers that documents are searched by."""
    numbers = settings.chosen(encoder.depth)
    return (encoder.depth,) if settings.pooling == "self_contrastive" else numbers


def layer_scales(encoder: Encoder, numbers: Sequence[int], texts: Sequence[str]) -> torch.Tensor:
    """Mean norm of each layer's pooled vectors, (m,), over at most `SAMPLE` texts spread evenly."""
    sample = texts[:: max(1, -(-len(texts) // SAMPLE))]
    with torch.no_grad():
        norms = [encoder.pooled_layers(encoder.tokenize([text]), numbers).norm(dim=-1) for text in sample]
    return torch.cat(norms).mean(dim=0).cpu()
