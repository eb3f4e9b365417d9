"""MLR in the dense trainer: which layers an encoder indexes, and the loss that compares them."""

from __future__ import annotations

from torch import Tensor

from model_code.encoding.encoder import Encoder, Features
from model_code.losses.contrastive import Contrast
from model_code.mlr.losses import multi_vector_losses, self_contrastive_losses
from model_code.mlr.settings import LayerSettings
from model_code.training.pair_loss import PairLoss


class LayerPairLoss(PairLoss):
    """Documents as a vector per layer, compared by one of MLR's losses."""

    def __init__(self, settings: LayerSettings, last_layer: int) -> None:
        """Choose the layers.

        Args:
            settings: Layers, pooling and the regulariser's weight.
            last_layer: Number of the encoder's last layer.

        Raises:
            SettingsError: If the encoder has no such layer.
        """
        self.settings = settings
        self.numbers = settings.layer_numbers(last_layer)
        self.last_position = self.numbers.index(last_layer)

    def encode_documents(self, encoder: Encoder, features: Features) -> Tensor:
        """Return a unit vector per layer, (B, m, H)."""
        return encoder.layers_forward(features, self.numbers)

    def losses(
        self, queries: Tensor, documents: Tensor, temperature: float, contrast: Contrast
    ) -> Tensor:
        """Return the loss of each pair, (B,), by the settings' pooling; see `PairLoss.losses`."""
        if self.settings.pooling == "self_contrastive":
            return self_contrastive_losses(
                queries,
                documents,
                temperature,
                contrast,
                last=self.last_position,
                regulariser=self.settings.regulariser,
            )
        return multi_vector_losses(
            queries, documents, temperature, contrast, last=self.last_position
        )


def make_pair_loss(encoder: Encoder, settings: LayerSettings) -> PairLoss:
    """Return the contrastive part of the objective: MLR's if the settings name layers."""
    if settings.numbers:
        return LayerPairLoss(settings, encoder.depth)
    return PairLoss()


def set_indexed_layers(encoder: Encoder, settings: LayerSettings) -> None:
    """Make `encoder` index documents by the layers that the settings ask for.

    Only multi-vector pooling indexes several layers. Self-contrastive pooling uses several layers
    only in training. Its documents are then indexed with one vector, as by any encoder.

    Raises:
        SettingsError: If the encoder has no such layer.
    """
    numbers = settings.layer_numbers(encoder.depth)
    if settings.pooling == "multi_vector" and len(numbers) > 1:
        encoder.layers = numbers
    else:
        encoder.layers = ()
