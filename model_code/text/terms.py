"""Terms of BM25: words as a search for them should find them, whatever their ending or the case of
an identifier.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import chain

import Stemmer

from model_code.text.words import AUTO, UNSPACED_SCRIPTS, split_words, word_matches

OF_SCRIPTS = {
    "ARABIC": "arabic",
    "ARMENIAN": "armenian",
    "CYRILLIC": "russian",
    "DEVANAGARI": "hindi",
    "GREEK": "greek",
    "TAMIL": "tamil",
}

BOUNDARY = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
CHARACTER = re.compile(rf"[{UNSPACED_SCRIPTS}]")
FIRST_UNSPACED = "\u0e00"
_stemmer = lru_cache(Stemmer.Stemmer)
MOST = 2**20  # words that are remembered; then the memory begins anew


class TermAnalyzer:
    """The terms of texts in one language: lower case, stems, parts of identifiers.

    language: of Snowball's stemmers, such as english or german; None: words stay whole; "auto":
    each word's is that of its script, English for Latin letters, and full width counts as half. An
    identifier counts as its parts and as a whole. Of scripts without blanks it is the characters,
    and each pair of neighbours.

    >>> TermAnalyzer("english").analyze("sorted DataFrame"), TermAnalyzer(None).analyze("read_csv")
    (['sort', 'data', 'frame', 'datafram'], ['read', 'csv', 'read_csv'])
    >>> TermAnalyzer("english").analyze("用Python排序")
    ['用', 'python', '排', '序', '排序']
    >>> TermAnalyzer("auto").analyze("библиотеки lists") == TermAnalyzer("auto").analyze("библиотека ｌｉｓｔ")
    True
    """

    def __init__(self, language: str | None) -> None:
        self.language, self._word_terms = language, _WordTerms(language)

    def analyze(self, text: str) -> list[str]:
        """The terms of a text, in its order; a term comes as often as the text has it."""
        if len(self._word_terms) >= MOST:
            self._word_terms = _WordTerms(self.language)
        tokens = split_words(text)
        terms = list(chain.from_iterable(map(self._word_terms.__getitem__, tokens)))
        if max(text, default="") < FIRST_UNSPACED:
            return terms
        return terms + [tokens[i] + tokens[i + 1] for i in _neighbours(tokens)]

    def query_terms(self, query: str) -> set[str]:
        """The terms that a reader looks for: of characters that stand together the pairs, not each
        alone.
        """
        tokens = split_words(query)
        return set(self.analyze(query)) - {
            tokens[place] for i in _neighbours(tokens) for place in (i, i + 1)
        }

    def locate(self, text: str) -> list[tuple[int, int, tuple[str, ...]]]:
        """Where each word begins and ends, and its terms; a pair of characters is a word, too."""
        hits = list(word_matches(text))
        alone = [(*match.span(), self._word_terms[match[0]]) for match in hits]
        pairs = _neighbours([match[0] for match in hits])
        return alone + [
            (hits[i].start(), hits[i + 1].end(), (hits[i][0] + hits[i + 1][0],)) for i in pairs
        ]


@lru_cache(maxsize=8)
def get_analyzer(language: str | None) -> TermAnalyzer:
    """The terms of a language; shared, as they remember words."""
    return TermAnalyzer(language)


class _WordTerms(dict[str, tuple[str, ...]]):
    """The terms of single words, each analysed once."""

    def __init__(self, language: str | None) -> None:
        self.language = language

    def __missing__(self, word: str) -> tuple[str, ...]:
        plain = unicodedata.normalize("NFKC", word) if self.language == AUTO else word
        parts = [part for part in BOUNDARY.split(plain) if part]
        forms = [part.lower() for part in parts] + ([plain.lower()] if len(parts) > 1 else [])
        self[word] = tuple(
            forms
            if self.language is None
            else _stemmer(self._language_of(word), 0).stemWords(forms)
        )
        return self[word]

    def _language_of(self, word: str) -> str:
        if self.language != AUTO:
            return str(self.language)
        return OF_SCRIPTS.get(unicodedata.name(word[0], "").partition(" ")[0], "english")


def _neighbours(tokens: list[str]) -> list[int]:
    """The places of words that are, like the next, characters of a script without blanks."""
    alone = [CHARACTER.match(word) is not None for word in tokens]
    return [i for i in range(len(tokens) - 1) if alone[i] and alone[i + 1]]
