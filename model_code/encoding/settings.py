"""Settings of the encoder that every retriever starts from: the group `encoder` of `params.yaml`."""

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
