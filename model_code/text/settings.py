"""Settings that decide how documents become passages."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings, require


class PassageSettings(Settings):
    """How documents are split into passages. A document is ranked by its best passage."""

    words: int = Field(
        150,
        ge=0,
        description="longer documents are split into windows of this many words; long words and code count as several, so "
        "that 150 fit into 256 tokens; 0: one passage per document, cut at encoder.max_tokens",
    )
    stride: int = Field(120, description="words between the starts of two windows")
    cut: Literal["words", "lines", "sections"] = Field(
        "words",
        description="lines: each line after the first is a passage that starts with the first line, for lists; sections: "
        "windows do not cross headings (`## Setup`) and start with their heading",
    )

    def check(self) -> None:
        """Refuse windows that skip text."""
        if self.words == 0:
            return
        require(
            0 < self.stride <= self.words,
            f"stride is {self.stride}, but must be in 1..{self.words} (words), or text would be "
            "skipped",
        )
