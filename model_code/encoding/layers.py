"""Documents that several layers of an encoder represent (MLR, section 3): a vector per layer, searched by the best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from model_code.encoding.bert import Bert
from model_code.encoding.settings import LayerSettings
from model_code.errors import FreshetError

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

    Self-contrastive pooling uses its layers in training only: what it searches is an ordinary encoder.
    """
    encoder.layers = indexed_layers(encoder, settings)


def require_represented(encoder: Encoder, settings: LayerSettings) -> None:
    """FreshetError unless `represent_documents` has prepared `encoder` for these settings."""
    if encoder.layers != indexed_layers(encoder, settings):
        raise FreshetError(
            f"the encoder indexes documents by layers {list(encoder.layers) or [encoder.depth]}, which are not those "
            f"of {settings}; call represent_documents(encoder, layers) first"
        )


def indexed_layers(encoder: Encoder, settings: LayerSettings) -> tuple[int, ...]:
    """The layers that documents are searched by, ascending; empty if that is the last one alone."""
    numbers = settings.chosen(encoder.depth)
    return numbers if settings.pooling == "multi_vector" and len(numbers) > 1 else ()
