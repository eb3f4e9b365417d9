"""Settings of the base encoder, the group `encoder` of `params.yaml`, and of a retriever's group `layers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_code.settings import require

Pooling = Literal["mean", "cls"]
Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class EncoderSettings:
    """The base encoder and how texts are fed to it.

    base: a folder in the sentence-transformers layout, or a hub name.
    max_tokens: longer texts are cut to this many tokens, special tokens included (64 to 512 are sensible).
    include_title: put the title (for docstrings: the qualified name) in front of the text.
    pooling: how token vectors become one; None reads it from the base's folder.
    precision: of the matrix products when encoding; "auto" is bfloat16 where the hardware has it, else float32, by
      weights in half precision where the CPU has that and nothing is trained. An index keeps the setting, so that a
      live collection encodes queries and later documents as its own were encoded.
    device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ...

    >>> EncoderSettings().max_tokens
    128
    """

    base: str = "sentence-transformers/all-MiniLM-L6-v2"
    max_tokens: int = 128
    include_title: bool = True
    pooling: Pooling | None = None
    precision: Precision = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        """Refuse an encoder without a name or without room for a word."""
        require(bool(self.base), "base must name a folder or a hub model, but is empty")
        require(self.max_tokens >= 3, f"max_tokens is {self.max_tokens}; at least 3 are needed (two are special)")


@dataclass(frozen=True)
class LayerSettings:
    """Which hidden states represent a document, and how they become what is searched (MLR, sections 3.1 to 3.3).

    numbers: of hidden states (0: the embeddings; 6: the output of layer 6); the last layer is always among them,
      whether it is named or not. Empty: the last alone, an ordinary encoder.
    pooling: "self_contrastive" trains on all of them and searches by the last layer's vector; "multi_vector" keeps one
      vector per layer and ranks by the best of them.
    regulariser: alpha, weight of the self-contrastive loss's own last-layer term.
    """

    numbers: tuple[int, ...] = ()
    pooling: Literal["self_contrastive", "multi_vector"] = "self_contrastive"
    regulariser: float = 0.1

    def __post_init__(self) -> None:
        """Check ranges."""
        require(all(number >= 0 for number in self.numbers), f"layer numbers count from 0, not {list(self.numbers)}")
        require(len(set(self.numbers)) == len(self.numbers), f"numbers {list(self.numbers)} names a layer twice")
        require(self.regulariser >= 0, f"regulariser is {self.regulariser}, but must be at least 0")

    def chosen(self, last: int) -> tuple[int, ...]:
        """The layers that represent a document where layer `last` is the last: ascending, `last` among them.

        SettingsError if a number is above `last`.

        >>> LayerSettings(numbers=(6, 4)).chosen(6), LayerSettings(numbers=(4,)).chosen(6), LayerSettings().chosen(6)
        ((4, 6), (4, 6), (6,))
        """
        require(
            all(number <= last for number in self.numbers),
            f"numbers {list(self.numbers)} names a layer above the encoder's last, which is {last}; "
            f"choose among 0 (the embeddings) to {last}",
        )
        return tuple(sorted({*self.numbers, last}))
