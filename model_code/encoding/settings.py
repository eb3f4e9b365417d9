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
        None, description='before a query, such as "query: "; null: as the base\'s folder says'
    )
    document: str | None = Field(
        None, description='before a document, such as "passage: "; null: the same'
    )


class EncoderSettings(Settings):
    """The base encoder and how texts are fed to it.

    >>> EncoderSettings().max_tokens
    128
    """

    base: str = Field(
        "sentence-transformers/all-MiniLM-L6-v2",
        min_length=1,
        description="a folder in the sentence-transformers layout, or a hub name",
    )
    max_tokens: int = Field(
        128, ge=3, description="longer texts are cut to so many tokens, two special ones included"
    )
    include_title: bool = Field(
        True, description="put the title (for docstrings: the qualified name) before the text"
    )
    pooling: Pooling | None = Field(
        None, description="how token vectors become one; null: as the base's folder says"
    )
    prompts: PromptSettings = Field(default_factory=PromptSettings)
    precision: Precision = Field(
        "auto",
        description="of the products when encoding; auto: bfloat16 where that is faster, else float32, by weights "
        "in half precision where the CPU has that and nothing is trained; an index keeps it",
    )
    device: str = Field("auto", description="auto (a GPU if there is one), cpu, cuda, cuda:1, ...")
