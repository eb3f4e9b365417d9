"""Terms of BM25: words as a search for them should find them, whatever their ending or the case of an identifier."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from typing import Any

from model_code.words import UNSPACED, words

BOUNDARY = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
CHARACTER = re.compile(rf"[{UNSPACED}]")
FIRST_UNSPACED = "\u0e00"
MOST = 2**20  # words that are remembered; then the memory begins anew


class Terms:
    """The terms of texts in one language: lower case, stems, parts of identifiers.

    language: of Snowball's stemmers, such as english or german; None: words stay whole. An identifier counts as its
    parts and as a whole. Of scripts without blanks it is the characters, and each pair of neighbours.

    >>> Terms("english").of("sorted DataFrame"), Terms(None).of("read_csv")
    (['sort', 'data', 'frame', 'datafram'], ['read', 'csv', 'read_csv'])
    >>> Terms("english").of("用Python排序")
    ['用', 'python', '排', '序', '排序']
    """

    def __init__(self, language: str | None) -> None:
        self.language, self._known = language, _Known(language)

    def of(self, text: str) -> list[str]:
        """The terms of a text, in its order; a term comes as often as the text has it."""
        if len(self._known) >= MOST:
            self._known = _Known(self.language)
        found = words(text)
        terms = list(chain.from_iterable(map(self._known.__getitem__, found)))
        return terms + _pairs(found) if max(text, default="") >= FIRST_UNSPACED else terms


class _Known(dict[str, tuple[str, ...]]):
    """The terms of single words, each analysed once."""

    def __init__(self, language: str | None) -> None:
        self.language = language

    def __missing__(self, word: str) -> tuple[str, ...]:
        parts = [part for part in BOUNDARY.split(word) if part]
        forms = [part.lower() for part in parts] + ([word.lower()] if len(parts) > 1 else [])
        terms = forms if self.language is None else _stemmer(self.language).stemWords(forms)
        self[word] = tuple(terms)
        return self[word]


def _pairs(found: list[str]) -> list[str]:
    """Each two neighbours of a script without blanks."""
    alone = [CHARACTER.match(word) is not None for word in found]
    return [found[i] + found[i + 1] for i in range(len(found) - 1) if alone[i] and alone[i + 1]]


@lru_cache
def _stemmer(language: str) -> Any:
    import Stemmer

    return Stemmer.Stemmer(language, 0)
