"""Settings of the base encoder: the group `encoder` of `params.yaml`."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings

Pooling = Literal["mean", "cls"]
Precision = Literal["auto", "float32", "bfloat16"]


class PromptSettings(Settings):
    """What is put before texts, as E5, BGE and their like were trained to expect; null: as the
    base's folder says.
    """

    query: str | None = Field(
        None,
        description='Text before each query, such as "query: ". null: the prompt in the base encoder\'s folder.',
    )
    document: str | None = Field(
        None,
        description='Text before each document, such as "passage: ". null: the prompt in the base encoder\'s '
        "folder.",
    )


class EncoderSettings(Settings):
    """The base encoder and how texts are fed to it.

    >>> EncoderSettings().max_tokens
    128
    """

    base: str = Field(
        "sentence-transformers/all-MiniLM-L6-v2",
        min_length=1,
        description="Base encoder: a folder in the sentence-transformers layout, or a hub name.",
    )
    max_tokens: int = Field(
        128,
        ge=3,
        description="Longer texts are cut to this number of tokens, which includes two special ones.",
    )
    include_title: bool = Field(
        True,
        description="Put the title before the text. For docstrings the title is the qualified name.",
    )
    pooling: Pooling | None = Field(
        None,
        description="How token vectors become one vector. null: as the base encoder's folder says.",
    )
    prompts: PromptSettings = Field(default_factory=PromptSettings)
    precision: Precision = Field(
        "auto",
        description="Precision of matrix products in encoding; an index keeps it. auto: bfloat16 where that is "
        "faster, else float32, with half-precision weights for search where the CPU supports them.",
    )
    device: str = Field(
        "auto",
        description="Device of the encoder: auto (a GPU if there is one), cpu, cuda, cuda:1 and so on.",
    )
