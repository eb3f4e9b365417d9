"""Settings of MLR: the group `layers` of a dense retriever."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings, require


class LayerSettings(Settings):
    """The encoder layers that represent a document, and how search uses them (MLR, section 3)."""

    numbers: tuple[int, ...] = Field(
        (),
        description="Numbers of hidden states: 0 is the embeddings, 6 the output of layer 6. The "
        "last layer is always added. Empty: the last layer alone, an ordinary encoder.",
    )
    pooling: Literal["self_contrastive", "multi_vector"] = Field(
        "self_contrastive",
        description="multi_vector: index a vector per layer and rank by the best one. "
        "self_contrastive: train on all layers and search with the last one.",
    )
    regulariser: float = Field(
        0.1,
        ge=0,
        description="Weight of the self-contrastive loss's last-layer term (alpha in MLR, 0.01 to "
        "1 there).",
    )

    def check(self) -> None:
        """Refuse negative and repeated layer numbers."""
        require(
            all(number >= 0 for number in self.numbers),
            f"numbers is {list(self.numbers)}, but layers are numbered from 0",
        )
        require(
            len(set(self.numbers)) == len(self.numbers),
            f"numbers is {list(self.numbers)}, which names a layer twice",
        )

    def layer_numbers(self, last: int) -> tuple[int, ...]:
        """Return the layers that represent a document, ascending and with the last one.

        Args:
            last: Number of the encoder's last layer.

        Raises:
            SettingsError: If a number is above `last`.

        >>> LayerSettings(numbers=(6, 4)).layer_numbers(6)
        (4, 6)
        >>> LayerSettings(numbers=(4,)).layer_numbers(6)
        (4, 6)
        >>> LayerSettings().layer_numbers(6)
        (6,)
        """
        require(
            all(number <= last for number in self.numbers),
            f"numbers is {list(self.numbers)}, which names a layer above the encoder's last, "
            f"which is {last}; "
            f"choose among 0 (the embeddings) to {last}",
        )
        return tuple(sorted({*self.numbers, last}))
