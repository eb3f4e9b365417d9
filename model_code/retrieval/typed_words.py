"""Words that people type: unfinished ones are completed, and one typo is tolerated.

An index holds stems and no words. So a stem is looked up for every form that the typed word may
have: for each ending that may follow its letters, or for each word that one edit makes of it
(Norvig, 2007, How to Write a Spelling Corrector). Nothing has to be stored for that, and an index
after any changes answers like one that is built again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from model_code.text.folding import fold_characters, fold_letters
from model_code.text.terms import IDENTIFIER_BOUNDARY, TermAnalyzer
from model_code.text.words import split_search_words

MIN_PREFIX_LETTERS = 2
MAX_COMPLETIONS = 16
MIN_TYPO_LETTERS = 5
"""Letters of a word from which a typo is tolerated. Shorter words are near to too many others."""

ENDINGS = (
    "ability able ably ally ance ances ation ations ative edly ement ements ence ences ered ering "
    "fully fulness ibility ible ical ically ied ies ility ing ingly ings ion ions ious isation "
    "ised ising ities ity ive ively ization ized izing less lessly ment ments ness nesses ology "
    "ously ship ships tion tions "
    "erung erungen heit heiten igkeit isch keit keiten lich liche licher schaft ungen "
    "aison ement ements euse euses issement ique iques iste istes ité "
    "amiento ación aciones ador idad mente"
)
"""Endings of words in languages with Latin letters, which stemmers cut. Blanks separate them."""

ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "абвгдежзийклмнопрстуфхцчшщъыьэюяєіїґў",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "אבגדהוזחטיךכלםמןנסעףפץצקרשת",
    "ءابةتثجحخدذرزسشصضطظعغفقكلمنهوىي",
)


def _tails_of_endings() -> tuple[str, ...]:
    """Return what may follow the letters typed so far: an ending, or the rest of one."""
    tails = {"", "s", "es", "e", "ed", "d", "er", "ers", "r", "rs", "y", "ly", "en", "n"}
    for ending in ENDINGS.split():
        folded = fold_letters(fold_characters(ending))
        tails.update(folded[start:] for start in range(len(folded)))
    return tuple(sorted(tails))


TAILS = _tails_of_endings()


class UnfinishedWord(NamedTuple):
    """A query whose last word may be unfinished.

    Attributes:
        finished_text: The words before it.
        word: The word, as typed. Empty if there is none, or if it cannot be completed.
    """

    finished_text: str
    word: str


def split_unfinished_word(text: str) -> UnfinishedWord:
    """Separate the last word of a text if a person may still be typing it.

    >>> split_unfinished_word("river embankm").word
    'embankm'
    >>> split_unfinished_word("river ").word
    ''
    """
    words = split_search_words(text)
    if not words or not text.endswith(words[-1]) or len(words[-1]) < MIN_PREFIX_LETTERS:
        return UnfinishedWord(text, "")
    last_word = words[-1]
    if not fold_characters(last_word)[-1:].isalnum():
        return UnfinishedWord(text, "")
    return UnfinishedWord(text.removesuffix(last_word), last_word)


def completed_stems(
    word: str,
    analyzer: TermAnalyzer,
    terms_with_prefix: Callable[[str], Mapping[str, int]],
    document_frequency: Callable[[str], int],
) -> list[str]:
    """Return the terms of an index whose words begin with an unfinished word.

    Args:
        word: The unfinished word, as typed.
        analyzer: Analyzer of the index.
        terms_with_prefix: Returns the index's terms that begin with a text, with their numbers of
            passages.
        document_frequency: Returns the number of passages that contain a term.

    Returns:
        At most `MAX_COMPLETIONS` terms, those of the most passages first.
    """
    folded = fold_characters(word)
    last_part = [part for part in IDENTIFIER_BOUNDARY.split(folded) if part][-1]
    found: dict[str, int] = {}
    for prefix in {fold_letters(folded), fold_letters(last_part)}:
        if len(prefix) < MIN_PREFIX_LETTERS:
            continue
        found.update(terms_with_prefix(prefix))
        # "embankm" begins no stem, but "embankment" has the stem "embank".
        for stem in set(analyzer.stem([prefix + tail for tail in TAILS])):
            frequency = document_frequency(stem)
            if frequency:
                found[stem] = frequency
    by_frequency = sorted(found, key=lambda term: (-found[term], term))
    return by_frequency[:MAX_COMPLETIONS]


def corrected_stem(
    word: str, analyzer: TermAnalyzer, document_frequency: Callable[[str], int]
) -> str | None:
    """Return the most frequent term that a word becomes by one edit, or None.

    An edit inserts, deletes or replaces a letter, or swaps two neighbours. The first letter stays,
    because people rarely mistype it.

    Args:
        word: A word that the index does not know, as typed.
        analyzer: Analyzer of the index.
        document_frequency: Returns the number of passages that contain a term.
    """
    folded = fold_letters(fold_characters(word))
    if len(folded) < MIN_TYPO_LETTERS or not folded.isalpha():
        return None
    stems = set(analyzer.stem(sorted(_edits(folded))))
    frequencies = {stem: document_frequency(stem) for stem in stems if len(stem) > 1}
    best = max(sorted(frequencies), key=frequencies.__getitem__, default=None)
    if best is None or not frequencies[best]:
        return None
    return best


def _edits(word: str) -> Iterable[str]:
    """Yield the words that one edit after the first letter makes of a word.

    >>> {"grape", "grpaes", "grades", "grapples"}.intersection(_edits("grapes")) == {
    ...     "grape", "grpaes", "grades"}
    True
    """
    alphabet = next((letters for letters in ALPHABETS if word[-1] in letters), "")
    for position in range(1, len(word) + 1):
        head = word[:position]
        tail = word[position:]
        for letter in alphabet:
            yield head + letter + tail
        if tail:
            yield head + tail[1:]
            for letter in alphabet:
                yield head + letter + tail[1:]
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]
