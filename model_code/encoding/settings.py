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
        description='text before each query, such as "query: "; null: as the base\'s folder states',
    )
    document: str | None = Field(
        None,
        description='text before each document, such as "passage: "; '
        "null: as the base's folder states",
    )


class EncoderSettings(Settings):
    """The base encoder, and how texts are passed to it.

    >>> EncoderSettings().max_tokens
    128
    """

    base: str = Field(
        "sentence-transformers/all-MiniLM-L6-v2",
        min_length=1,
        description="a folder in the sentence-transformers layout, or the name of a hub repository",
    )
    max_tokens: int = Field(
        128, ge=3, description="longer texts are cut to this many tokens, two special ones included"
    )
    include_title: bool = Field(
        True,
        description="whether the title (for docstrings: the qualified name) is put before the text",
    )
    pooling: Pooling | None = Field(
        None, description="how token vectors become one vector; null: as the base's folder states"
    )
    prompts: PromptSettings = Field(default_factory=PromptSettings)
    precision: Precision = Field(
        "auto",
        description="precision of products when encoding; auto: bfloat16 where that is faster, "
        "else float32 (with weights in half precision for search, where the CPU supports it); an "
        "index records it",
    )
    device: str = Field("auto", description="auto (a GPU if there is one), cpu, cuda, cuda:1, ...")
