"""Settings that decide how documents become passages."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings, require


class PassageSettings(Settings):
    """How documents are split into passages. A document is ranked by its best passage."""

    words: int = Field(
        150,
        ge=0,
        description="Window length in words; long words and code count as several. 150 words fit "
        "into 256 tokens. 0: one passage per document, cut at encoder.max_tokens.",
    )
    stride: int = Field(120, description="Words between the starts of two windows.")
    cut: Literal["words", "lines", "sections"] = Field(
        "words",
        description="How a document becomes passages. words: overlapping windows. lines: each "
        "line, with the first line before it. sections: windows that begin with their heading (`## "
        "Setup`) and cross none.",
    )

    def check(self) -> None:
        """Raise an error if the windows of words would leave text out between them."""
        if self.words == 0:
            return
        require(
            0 < self.stride <= self.words,
            f"stride is {self.stride}, but must be in 1..{self.words} (words), or text would be "
            "skipped",
        )
