"""Settings of the base encoder: the group `encoder` of `params.yaml`."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings

Pooling = Literal["mean", "cls"]
Precision = Literal["auto", "float32", "bfloat16"]


class PromptSettings(Settings):
    """Texts put before queries and documents. E5, BGE and similar encoders expect such texts."""

    query: str | None = Field(
        None,
        description='Text before each query, such as "query: ". null: as the folder of the base '
        "encoder states.",
    )
    document: str | None = Field(
        None,
        description='Text before each document, such as "passage: ". null: as the folder of the '
        "base encoder states.",
    )


class EncoderSettings(Settings):
    """The base encoder, and how texts are passed to it.

    >>> EncoderSettings().max_tokens
    128
    """

    base: str = Field(
        "sentence-transformers/all-MiniLM-L6-v2",
        min_length=1,
        description="Pretrained encoder to start from: a folder in the sentence-transformers "
        "layout, or the name of a hub repository.",
    )
    max_tokens: int = Field(
        128,
        ge=3,
        description="Longest text that is encoded, in tokens, two special ones included. Longer "
        "texts are cut.",
    )
    include_title: bool = Field(
        True,
        description="Put the title (for docstrings: the qualified name) before the text.",
    )
    pooling: Pooling | None = Field(
        None,
        description="How token vectors become one vector. null: as the folder of the base encoder "
        "states.",
    )
    prompts: PromptSettings = Field(default_factory=PromptSettings)
    precision: Precision = Field(
        "auto",
        description="Precision of matrix products when encoding. auto: bfloat16 where that is "
        "faster, otherwise float32. With float32, search uses weights in half precision where "
        "the CPU supports it. An index records its precision.",
    )
    device: str = Field(
        "auto",
        description="Where texts are encoded and encoders are trained: cpu, cuda, cuda:1, ... "
        "auto: a GPU if there is one.",
    )
