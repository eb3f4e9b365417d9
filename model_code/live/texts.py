"""Texts: how those of documents are cut, what those of queries must be, and which part of a document is shown."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from model_code.corpus.cleaning import is_whole
from model_code.corpus.passages import Cut, cut
from model_code.corpus.settings import PassageSettings
from model_code.settings import require


@dataclass(frozen=True)
class TextRules:
    """`encoder.include_title` and the group `passages` of the build's settings; the encoder itself cuts at its tokens.

    >>> TextRules(include_title=True, words=2, stride=1).passages("T", "a b c")
    ['T a b', 'T b c']
    """

    include_title: bool
    words: int
    stride: int
    cut: Cut = "words"

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


def require_queries(texts: Iterable[str]) -> None:
    """SettingsError if a text is empty, whose vector would be near to arbitrary documents, or holds broken bytes.

    >>> require_queries(["sort an array", " "])
    Traceback (most recent call last):
    model_code.errors.SettingsError: text is empty; say what you are looking for
    """
    for text in texts:
        require(text.strip() != "", "text is empty; say what you are looking for")
        require(is_whole(text), f"the query {text[:40]!r} holds bytes that are no UTF-8")


WORD = re.compile(r"\w+")


def snippet(text: str, query: str, width: int = 24) -> str:
    """About `width` words of `text` around the query's words; the beginning if it has none of them.

    Each window counts every query word once, a word less the more often the text has it: so "the" hardly matters.

    >>> snippet("one two three four five six seven eight", "six five", width=3)
    '... five six seven ...'
    """
    words, wanted = text.split(), set(WORD.findall(query.casefold()))
    places = [
        (place, term)
        for place, word in enumerate(" ".join(words).casefold().split(" "))
        for term in ({word} if word.isalnum() else set(WORD.findall(word))) & wanted
    ]
    lead = width // 8
    start = max(0, min(_best_start(places, width - lead) - lead, len(words) - width))
    shown = words[start : start + width]
    return " ".join((["..."] if start else []) + shown + (["..."] if start + width < len(words) else []))


def _best_start(places: list[tuple[int, str]], width: int) -> int:
    """The first matching place whose window of `width` words weighs most; 0 without any match."""
    count = Counter(term for _, term in places)
    best, best_weight = 0, 0.0
    for i, (start, _) in enumerate(places):
        end = bisect_left(places, (start + width,), lo=i)
        seen = {term for _, term in places[i:end]}
        weight = sum(1 / count[term] for term in sorted(seen))
        if weight > best_weight:
            best, best_weight = start, weight
    return best
