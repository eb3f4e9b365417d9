"""How a document becomes the texts that its encoder sees: the same for what is added as for what was built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from model_code.corpus.passages import cut
from model_code.corpus.settings import PassageSettings


@dataclass(frozen=True)
class TextRules:
    """`encoder.include_title` and the group `passages` of the build's settings; the encoder itself cuts at its tokens.

    >>> TextRules(include_title=True, words=2, stride=1).passages("T", "a b c")
    ['T a b', 'T b c']
    """

    include_title: bool
    words: int
    stride: int
    cut: Literal["words", "lines"] = "words"

    @classmethod
    def stated(cls, include_title: bool, passages: PassageSettings) -> TextRules:
        """The rules of a build with these settings."""
        return cls(include_title, passages.words, passages.stride, passages.cut)

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> TextRules:
        """The rules that `facts` wrote."""
        return cls(**mapping)

    def facts(self) -> dict[str, Any]:
        """The rules as plain values, for a manifest."""
        return asdict(self)

    def count(self, text: str) -> int:
        """How many passages a text becomes."""
        return len(self._cut(text))

    def passages(self, title: str, text: str) -> list[str]:
        """The texts of a document's passages, in their order; as `corpus.tables.passage_texts` composes them."""
        return [f"{title} {own}".strip() if self.include_title else own for own in self._cut(text)]

    def _cut(self, text: str) -> list[str]:
        return cut(text, self.words, self.stride, self.cut)
