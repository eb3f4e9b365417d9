"""Terms of BM25: words reduced so that a search finds them whatever their ending or case."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import Stemmer

from model_code.text.folding import fold_characters, fold_letters
from model_code.text.words import (
    AUTO,
    UNSPACED_SCRIPTS,
    search_word_matches,
    split_search_words,
)

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

# Folding makes several characters of some, as 1⁄2 of ½ and (1) of ⑴.
IDENTIFIER_BOUNDARY = re.compile(r"[_⁄/.,()]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
NAME_WITH_SIGN = re.compile(r"\.?(\w.*?)(?:\+\+|#)?", re.DOTALL)
GROUPED_NUMBER = re.compile(r"\d+(?:[.,]\d{3})+")
GROUP_SEPARATOR = re.compile("[.,]")
EMOJI_JOINER = "\u200d"
UNSPACED_CHARACTER = re.compile(rf"[{UNSPACED_SCRIPTS}]")
FIRST_UNSPACED_CHARACTER = "\u0e00"

MAX_CACHED_WORDS = 2**20
"""Words whose terms are cached; then the cache starts again."""

_stemmer = lru_cache(Stemmer.Stemmer)


class TermAnalyzer:
    """Reduces texts of one language to terms: lower-case stems and parts of identifiers.

    Words are folded first, see `model_code.text.folding`. An identifier gives its parts and the
    whole, and so do names such as C++, grouped numbers and joined emoji. A sign is a term. A word
    in a script without spaces is a character; each pair of neighbours is a term as well.

    Args:
        language: A language of Snowball's stemmers, such as english or german. None: no stemming.
            "auto": for each word the language of its script, English for Latin letters.

    >>> TermAnalyzer("english").analyze("sorted DataFrame"), TermAnalyzer(None).analyze("read_csv")
    (['sort', 'data', 'frame', 'datafram'], ['read', 'csv', 'read_csv'])
    >>> TermAnalyzer("english").analyze("用Python排序")
    ['用', 'python', '排', '序', '排序']
    >>> auto = TermAnalyzer("auto")
    >>> auto.analyze("библиотеки lists") == auto.analyze("библиотека ｌｉｓｔ")
    True
    >>> auto.analyze("C++ für 5 €"), auto.analyze("Straße, crème")
    (['c', 'c++', 'fur', '5', '€'], ['strass', 'creme'])
    """

    def __init__(self, language: str | None) -> None:
        self.language = language
        self._word_terms = _WordTerms(language)

    def analyze(self, text: str) -> list[str]:
        """Return the terms of a text in its order, with repetitions."""
        if len(self._word_terms) >= MAX_CACHED_WORDS:
            self._word_terms = _WordTerms(self.language)
        words = split_search_words(text)
        terms = list(chain.from_iterable(map(self._word_terms.__getitem__, words)))

        if not text.isascii() and max(text) >= FIRST_UNSPACED_CHARACTER:
            terms.extend(self._pair_term(words[i], words[i + 1]) for i in _unspaced_pairs(words))
        return terms

    def whole_terms(self, text: str) -> list[str]:
        """Return the term of each word of a text, without those of its parts.

        >>> TermAnalyzer("english").whole_terms("sorted DataFrame")
        ['sort', 'datafram']
        """
        terms = [self._word_terms[word] for word in split_search_words(text)]
        return [word_terms[-1] for word_terms in terms if word_terms]

    def stem(self, words: Sequence[str]) -> list[str]:
        """Return the stems of folded words, which all are of one script."""
        return self._word_terms.stem(list(words))

    def query_terms(self, query: str) -> set[str]:
        """Return the terms that a reader looks for in a text.

        Neighbouring characters of an unspaced script count as pairs only, not each on its own.
        """
        words = split_search_words(query)
        paired_characters: set[str] = set()
        for i in _unspaced_pairs(words):
            paired_characters.update(self._word_terms[words[i]])
            paired_characters.update(self._word_terms[words[i + 1]])
        return set(self.analyze(query)) - paired_characters

    def locate(self, text: str) -> list[tuple[int, int, tuple[str, ...]]]:
        """Return the start, end and terms of each word, and of each pair of characters."""
        matches = list(search_word_matches(text))
        located = [(*match.span(), self._word_terms[match[0]]) for match in matches]
        for i in _unspaced_pairs([match[0] for match in matches]):
            first = matches[i]
            second = matches[i + 1]
            located.append((first.start(), second.end(), (self._pair_term(first[0], second[0]),)))
        return located

    def _pair_term(self, first: str, second: str) -> str:
        return "".join((*self._word_terms[first], *self._word_terms[second]))


@lru_cache(maxsize=8)
def get_analyzer(language: str | None) -> TermAnalyzer:
    """Return the analyzer of a language. It is shared, because it caches words."""
    return TermAnalyzer(language)


class _WordTerms(dict[str, tuple[str, ...]]):
    """The terms of single words; each is analysed on its first look-up."""

    def __init__(self, language: str | None) -> None:
        self.language = language

    def __missing__(self, word: str) -> tuple[str, ...]:
        folded = fold_characters(word)
        if GROUPED_NUMBER.fullmatch(folded):
            digits = GROUP_SEPARATOR.split(folded)
            self[word] = (*digits, "".join(digits))
            return self[word]
        name = NAME_WITH_SIGN.fullmatch(folded)
        terms = _sign_terms(word) if name is None else self._name_terms(folded, name[1])
        self[word] = terms
        return terms

    def _name_terms(self, whole: str, name: str) -> tuple[str, ...]:
        """Return the terms of a folded word.

        Args:
            whole: The word, such as C++ or read_csv.
            name: The same without its signs.
        """
        parts = [part for part in IDENTIFIER_BOUNDARY.split(name) if part]
        terms = [fold_letters(part) for part in parts]
        if len(parts) > 1:
            terms.append(fold_letters(name))
        terms = self.stem(terms)
        if whole != name:
            terms.append(fold_letters(whole))
        return tuple(terms)

    def stem(self, words: list[str]) -> list[str]:
        """Return the stems of folded words of one script."""
        if self.language is None or not words:
            return words
        return _stemmer(self._language_of(words[0]), 0).stemWords(words)

    def _language_of(self, word: str) -> str:
        if self.language != AUTO:
            return str(self.language)
        script, _, _ = unicodedata.name(word[0], "").partition(" ")
        return LANGUAGE_OF_SCRIPT.get(script, DEFAULT_LANGUAGE)


def _sign_terms(sign: str) -> tuple[str, ...]:
    """Return the terms of a sign. Joined emoji give their parts and the whole.

    >>> _sign_terms("€"), _sign_terms("👩🏽\u200d🚒")
    (('€',), ('👩', '🚒', '👩🚒'))
    """
    parts = [fold_characters(part) for part in sign.split(EMOJI_JOINER)]
    terms = [part for part in parts if part]
    if len(terms) > 1:
        terms.append("".join(terms))
    return tuple(terms)


def _unspaced_pairs(words: list[str]) -> list[int]:
    """Return the numbers of the words that are, like their successor, unspaced characters."""
    is_unspaced = [UNSPACED_CHARACTER.match(word) is not None for word in words]
    return [i for i in range(len(words) - 1) if is_unspaced[i] and is_unspaced[i + 1]]
