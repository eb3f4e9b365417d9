"""How documents become passages."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings, require


class PassageSettings(Settings):
    """How documents become passages, each of which is encoded; a document is ranked by its best
    one.
    """

    words: int = Field(
        150,
        ge=0,
        description="a longer document becomes windows of so many words, long words and code counting as several: 150 "
        "fit 256 tokens; 0: one passage per document, cut at encoder.max_tokens",
    )
    stride: int = Field(120, description="words between the starts of two windows")
    cut: Literal["words", "lines", "sections"] = Field(
        "words",
        description="lines: each line after the first is a passage with the first before it, as in lists; sections: "
        "windows do not cross headings (`## Setup`) and begin with theirs",
    )

    def check(self) -> None:
        """Refuse windows that skip text."""
        fits = self.words == 0 or 0 < self.stride <= self.words
        require(
            fits,
            f"stride is {self.stride}, but must be in 1..{self.words} (words), or text would be skipped",
        )
