"""Settings of the base encoder, the group `encoder` of `params.yaml`, and of a retriever's group
`layers`.
"""

from __future__ import annotations

from typing import Literal

from model_code.settings import Constant, Field, Settings, require

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


class LayerSettings(Settings):
    """Which hidden states represent a document, and how they become what is searched (MLR, sections
    3.1 to 3.3).
    """

    numbers: tuple[int, ...] = Field(
        (),
        description="of hidden states (0: the embeddings; 6: the output of layer 6); the last is always among them; "
        "empty: the last alone, an ordinary encoder",
    )
    pooling: Literal["self_contrastive", "multi_vector"] = Field(
        "self_contrastive",
        description="multi_vector keeps a vector per layer and ranks by the best; self_contrastive trains on "
        "all and searches by the last",
    )
    regulariser: float = Constant(
        0.1,
        ge=0,
        description="alpha, weight of the self-contrastive loss's last-layer term; 1 was worse",
    )

    def check(self) -> None:
        """Refuse layers that are none."""
        require(
            all(number >= 0 for number in self.numbers),
            f"layer numbers count from 0, not {list(self.numbers)}",
        )
        require(
            len(set(self.numbers)) == len(self.numbers),
            f"numbers {list(self.numbers)} names a layer twice",
        )

    def chosen(self, last: int) -> tuple[int, ...]:
        """The layers that represent a document where layer `last` is the last: ascending, `last`
        among them.

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
