"""Documents that several layers of an encoder represent (MLR, section 3): a vector per layer, searched by the best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from model_code.encoding.bert import Bert
from model_code.encoding.settings import LayerSettings

if TYPE_CHECKING:
    from model_code.encoding.encoder import Encoder


def hidden_states(backbone: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """The token vectors (B, T, H) after the embeddings (number 0) and after each layer; the last as the model gives it.

    T5 gives its last layer through a final norm, and its inner layers without one.
    """
    wanted = {} if isinstance(backbone, Bert) else {"output_hidden_states": True}  # `Bert` always has them
    output = backbone(input_ids=ids, attention_mask=mask, **wanted)
    return (*output.hidden_states[: backbone.config.num_hidden_layers], output.last_hidden_state)


def represent_documents(encoder: Encoder, settings: LayerSettings) -> None:
    """Have `encoder` index documents by the layers that `settings` ask for; SettingsError if it has no such layer.

    Where that is the last one alone, it is an ordinary encoder. Self-contrastive pooling uses its layers in training
    only: what it searches is an ordinary encoder, too.
    """
    numbers = settings.chosen(encoder.depth)
    encoder.layers = numbers if settings.pooling == "multi_vector" and len(numbers) > 1 else ()
