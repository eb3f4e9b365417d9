"""Terms of BM25: words reduced to a form that does not depend on case, accents and endings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence, Set
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

# Where an identifier is split. Some of these characters come from folding, which turns ½ into 1⁄2
# and ⑴ into (1).
IDENTIFIER_BOUNDARY = re.compile(r"[_⁄/.,()]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
NAME_WITH_SIGN = re.compile(r"\.?(\w.*?)(?:\+\+|#)?", re.DOTALL)
GROUPED_NUMBER = re.compile(r"\d+(?:[.,]\d{3})+")
GROUP_SEPARATOR = re.compile("[.,]")
EMOJI_JOINER = "\u200d"
UNSPACED_CHARACTER = re.compile(rf"[{UNSPACED_SCRIPTS}]")
FIRST_UNSPACED_CHARACTER = "\u0e00"

MAX_CACHED_WORDS = 2**20
"""Number of words whose terms are cached. A full cache is emptied, which bounds its memory."""

_stemmer = lru_cache(Stemmer.Stemmer)


class TermAnalyzer:
    """Reduces texts of one language to terms: lower-case stems and parts of identifiers.

    Words are folded first, see `model_code.text.folding`. An identifier becomes several terms: its
    parts and the whole. The same holds for names such as C++, grouped numbers such as 12,500 and
    joined emoji. A sign such as € is a term. In scripts without spaces, each character is a term,
    and each pair of neighbouring characters is another one.

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
        """Return the terms of a text in its order, with repetitions.

        The pairs of neighbouring characters of scripts without spaces follow at the end.
        """
        if len(self._word_terms) >= MAX_CACHED_WORDS:
            self._word_terms = _WordTerms(self.language)
        words = split_search_words(text)
        terms = list(chain.from_iterable(map(self._word_terms.__getitem__, words)))

        if self._may_have_pairs(text):
            for i in _unspaced_pairs(words):
                terms.append(self._pair_term(words[i], words[i + 1]))
        return terms

    def whole_terms(self, text: str) -> list[str]:
        """Return one term per word of a text, without the terms of the word's parts.

        >>> TermAnalyzer("english").whole_terms("sorted DataFrame")
        ['sort', 'datafram']
        """
        terms = [self._word_terms[word] for word in split_search_words(text)]
        return [word_terms[-1] for word_terms in terms if word_terms]

    def stem(self, words: Sequence[str]) -> list[str]:
        """Return the stems of folded words. All words must be of the script of the first one."""
        return self._word_terms.stem(list(words))

    def query_terms(self, query: str) -> set[str]:
        """Return the terms of a query that are marked in a hit.

        Neighbouring characters of a script without spaces are marked as pairs only. A single one of
        them would match in unrelated words.
        """
        words = split_search_words(query)
        paired_characters: set[str] = set()
        for i in _unspaced_pairs(words):
            paired_characters.update(self._word_terms[words[i]])
            paired_characters.update(self._word_terms[words[i + 1]])
        return set(self.analyze(query)) - paired_characters

    def locate(self, text: str) -> list[tuple[int, int, tuple[str, ...]]]:
        """Return the start, the end and the terms of each word of a text.

        Each pair of neighbouring characters of a script without spaces is listed as well.
        """
        matches = list(search_word_matches(text))
        located: list[tuple[int, int, tuple[str, ...]]] = []
        for match in matches:
            located.append((match.start(), match.end(), self._word_terms[match[0]]))
        for i in _unspaced_pairs([match[0] for match in matches]):
            first = matches[i]
            second = matches[i + 1]
            pair_term = self._pair_term(first[0], second[0])
            located.append((first.start(), second.end(), (pair_term,)))
        return located

    def find(self, text: str, terms: Set[str]) -> list[tuple[int, int, str]]:
        """Return the start, the end and the term of each word of a text that has one of the terms.

        >>> TermAnalyzer("english").find("Sort a list, sorted.", {"sort"})
        [(0, 4, 'sort'), (13, 19, 'sort')]
        """
        found: list[tuple[int, int, str]] = []
        if self._may_have_pairs(text):
            for start, end, word_terms in self.locate(text):
                for term in terms.intersection(word_terms):
                    found.append((start, end, term))
            return found
        # Hits are searched for terms again and again, so nothing is made for words without one.
        for match in search_word_matches(text):
            word_terms = self._word_terms[match[0]]
            if not terms.isdisjoint(word_terms):
                for term in terms.intersection(word_terms):
                    found.append((match.start(), match.end(), term))
        return found

    def _may_have_pairs(self, text: str) -> bool:
        """Return whether a text may have pairs of characters of scripts without spaces.

        Most texts have no character of such a script, which this test finds out fast.
        """
        return not text.isascii() and max(text) >= FIRST_UNSPACED_CHARACTER

    def _pair_term(self, first: str, second: str) -> str:
        """Return the term of two neighbouring characters: their terms, joined."""
        return "".join((*self._word_terms[first], *self._word_terms[second]))


@lru_cache(maxsize=8)
def get_analyzer(language: str | None) -> TermAnalyzer:
    """Return the analyzer of a language. All callers share it, and so its cache of words."""
    return TermAnalyzer(language)


class _WordTerms(dict[str, tuple[str, ...]]):
    """A cache of the terms of single words. A word is analysed on its first look-up."""

    def __init__(self, language: str | None) -> None:
        self.language = language

    def __missing__(self, word: str) -> tuple[str, ...]:
        """Find and store the terms of a word: a grouped number, a name or a sign."""
        folded = fold_characters(word)
        name = NAME_WITH_SIGN.fullmatch(folded)
        if GROUPED_NUMBER.fullmatch(folded):
            groups = GROUP_SEPARATOR.split(folded)
            terms = (*groups, "".join(groups))
        elif name is not None:
            terms = self._name_terms(folded, name[1])
        else:
            terms = _sign_terms(word)
        self[word] = terms
        return terms

    def _name_terms(self, whole: str, name: str) -> tuple[str, ...]:
        """Return the terms of a folded word.

        These are the stems of its parts, the stem of the name if it has several parts, and the
        whole word if it has a sign.

        Args:
            whole: The word, such as C++ or read_csv.
            name: The word without a leading dot and without ++ or # at its end.
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
        """Return the stems of folded words, which must all be of one script."""
        if self.language is None or not words:
            return words
        return _stemmer(self._language_of(words[0]), 0).stemWords(words)

    def _language_of(self, word: str) -> str:
        """Return the language of a word's stemmer; with "auto" the script of the word decides."""
        if self.language != AUTO:
            return str(self.language)
        # The name of a character begins with its script, such as "CYRILLIC SMALL LETTER BE".
        script, _, _ = unicodedata.name(word[0], "").partition(" ")
        return LANGUAGE_OF_SCRIPT.get(script, DEFAULT_LANGUAGE)


def _sign_terms(sign: str) -> tuple[str, ...]:
    """Return the terms of a sign. The terms of joined emoji are the parts and the whole.

    >>> _sign_terms("€"), _sign_terms("👩🏽\u200d🚒")
    (('€',), ('👩', '🚒', '👩🚒'))
    """
    parts = [fold_characters(part) for part in sign.split(EMOJI_JOINER)]
    terms = [part for part in parts if part]
    if len(terms) > 1:
        terms.append("".join(terms))
    return tuple(terms)


def _unspaced_pairs(words: list[str]) -> list[int]:
    """Return the index of each word that starts a pair of characters of scripts without spaces."""
    is_unspaced = [UNSPACED_CHARACTER.match(word) is not None for word in words]
    return [i for i in range(len(words) - 1) if is_unspaced[i] and is_unspaced[i + 1]]
