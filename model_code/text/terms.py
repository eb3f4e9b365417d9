"""Terms of BM25: words reduced so that a search finds them whatever their ending or case."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import chain

import Stemmer

from model_code.text.words import AUTO, UNSPACED_SCRIPTS, split_words, word_matches

LANGUAGE_OF_SCRIPT = {
    "ARABIC": "arabic",
    "ARMENIAN": "armenian",
    "CYRILLIC": "russian",
    "DEVANAGARI": "hindi",
    "GREEK": "greek",
    "TAMIL": "tamil",
}
"""Stemmer of each script, by the first word of its characters' Unicode names."""

DEFAULT_LANGUAGE = "english"
"""Stemmer of all other scripts."""

IDENTIFIER_BOUNDARY = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
UNSPACED_CHARACTER = re.compile(rf"[{UNSPACED_SCRIPTS}]")
FIRST_UNSPACED_CHARACTER = "\u0e00"

MAX_CACHED_WORDS = 2**20
"""Words whose terms are cached; then the cache starts again."""

_stemmer = lru_cache(Stemmer.Stemmer)


class TermAnalyzer:
    """Reduces texts of one language to terms: lower-case stems and parts of identifiers.

    An identifier gives its parts and the whole. A word in a script without spaces is a character;
    each pair of neighbouring characters is a term as well.

    Args:
        language: A language of Snowball's stemmers, such as english or german. None: no stemming.
            "auto": for each word the language of its script, English for Latin letters; full-width
            characters then equal half-width ones.

    >>> TermAnalyzer("english").analyze("sorted DataFrame"), TermAnalyzer(None).analyze("read_csv")
    (['sort', 'data', 'frame', 'datafram'], ['read', 'csv', 'read_csv'])
    >>> TermAnalyzer("english").analyze("用Python排序")
    ['用', 'python', '排', '序', '排序']
    >>> auto = TermAnalyzer("auto")
    >>> auto.analyze("библиотеки lists") == auto.analyze("библиотека ｌｉｓｔ")
    True
    """

    def __init__(self, language: str | None) -> None:
        self.language = language
        self._word_terms = _WordTerms(language)

    def analyze(self, text: str) -> list[str]:
        """Return the terms of a text in its order, with repetitions."""
        if len(self._word_terms) >= MAX_CACHED_WORDS:
            self._word_terms = _WordTerms(self.language)
        words = split_words(text)
        terms = list(chain.from_iterable(map(self._word_terms.__getitem__, words)))

        if max(text, default="") >= FIRST_UNSPACED_CHARACTER:
            terms.extend(words[i] + words[i + 1] for i in _unspaced_pairs(words))
        return terms

    def query_terms(self, query: str) -> set[str]:
        """Return the terms that a reader looks for in a text.

        Neighbouring characters of an unspaced script count as pairs only, not each on its own.
        """
        words = split_words(query)
        paired_characters = set()
        for i in _unspaced_pairs(words):
            paired_characters.update((words[i], words[i + 1]))
        return set(self.analyze(query)) - paired_characters

    def locate(self, text: str) -> list[tuple[int, int, tuple[str, ...]]]:
        """Return the start, end and terms of each word, and of each pair of characters."""
        matches = list(word_matches(text))
        located = [(*match.span(), self._word_terms[match[0]]) for match in matches]
        for i in _unspaced_pairs([match[0] for match in matches]):
            first = matches[i]
            second = matches[i + 1]
            located.append((first.start(), second.end(), (first[0] + second[0],)))
        return located


@lru_cache(maxsize=8)
def get_analyzer(language: str | None) -> TermAnalyzer:
    """Return the analyzer of a language. It is shared, because it caches words."""
    return TermAnalyzer(language)


class _WordTerms(dict[str, tuple[str, ...]]):
    """The terms of single words; each is analysed on its first look-up."""

    def __init__(self, language: str | None) -> None:
        self.language = language

    def __missing__(self, word: str) -> tuple[str, ...]:
        plain = word
        if self.language == AUTO:
            plain = unicodedata.normalize("NFKC", word)

        parts = [part for part in IDENTIFIER_BOUNDARY.split(plain) if part]
        terms = [part.lower() for part in parts]
        if len(parts) > 1:
            terms.append(plain.lower())
        if self.language is not None:
            terms = _stemmer(self._language_of(word), 0).stemWords(terms)

        self[word] = tuple(terms)
        return self[word]

    def _language_of(self, word: str) -> str:
        if self.language != AUTO:
            return str(self.language)
        script, _, _ = unicodedata.name(word[0], "").partition(" ")
        return LANGUAGE_OF_SCRIPT.get(script, DEFAULT_LANGUAGE)


def _unspaced_pairs(words: list[str]) -> list[int]:
    """Return the numbers of the words that are, like their successor, unspaced characters."""
    is_unspaced = [UNSPACED_CHARACTER.match(word) is not None for word in words]
    return [i for i in range(len(words) - 1) if is_unspaced[i] and is_unspaced[i + 1]]
