"""Words that people type: unfinished ones are completed, and one typo is tolerated.

An index holds stems and no words. So many possible words are stemmed, and their stems are looked
up. To complete a word, each common ending is appended to its letters. To correct a word, each edit
of one letter is applied (Norvig, 2007, How to Write a Spelling Corrector). This needs no further
data in the index. So an index after any changes answers like an index that is built again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from model_code.text.folding import fold_characters, fold_letters
from model_code.text.terms import IDENTIFIER_BOUNDARY, TermAnalyzer
from model_code.text.words import split_search_words

# Smallest number of letters of an unfinished word that is completed.
MIN_PREFIX_LETTERS = 2
# Largest number of terms that complete an unfinished word.
MAX_COMPLETIONS = 16
# Largest number of letters of a word that is completed or corrected. The time grows with the square
# of the length.
MAX_TYPED_LETTERS = 64
# Smallest number of letters of a word in which a typo is tolerated. One edit turns a shorter word
# into too many other words.
MIN_TYPO_LETTERS = 5

# Word endings of languages with Latin letters that stemmers remove, separated by blanks.
ENDINGS = (
    "ability able ably ally ance ances ation ations ative edly ement ements ence ences ered ering "
    "fully fulness ibility ible ical ically ied ies ility ing ingly ings ion ions ious isation "
    "ised ising ities ity ive ively ization ized izing less lessly ment ments ness nesses ology "
    "ously ship ships tion tions "
    "erung erungen heit heiten igkeit isch keit keiten lich liche licher schaft ungen "
    "aison ement ements euse euses issement ique iques iste istes ité "
    "amiento ación aciones ador idad mente"
)

ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "абвгдежзийклмнопрстуфхцчшщъыьэюяєіїґў",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "אבגדהוזחטיךכלםמןנסעףפץצקרשת",
    "ءابةتثجحخدذرزسشصضطظعغفقكلمنهوىي",
)


def _tails_of_endings() -> tuple[str, ...]:
    """Return the texts that may complete a word: common endings, and the last parts of them."""
    # Short endings, which `ENDINGS` leaves out, and their last parts.
    tails = {"", "s", "es", "e", "ed", "d", "er", "ers", "r", "rs", "y", "ly", "en", "n"}
    for ending in ENDINGS.split():
        folded = fold_letters(fold_characters(ending))
        tails.update(folded[start:] for start in range(len(folded)))
    return tuple(sorted(tails))


TAILS = _tails_of_endings()


class UnfinishedWord(NamedTuple):
    """A query whose last word may be unfinished.

    Attributes:
        finished_text: The text before the last word; the whole text if `word` is empty.
        word: The last word, as typed. It is empty if the last word is finished or cannot be
            completed.
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
    no_unfinished_word = UnfinishedWord(text, "")
    words = split_search_words(text)
    if not words:
        return no_unfinished_word

    last_word = words[-1]
    # The last word may be unfinished only if nothing follows it, not even a blank or a sign.
    is_at_end = text.endswith(last_word)
    # A word such as "c++" ends with a sign, and no longer word begins with it.
    ends_with_letter = fold_characters(last_word)[-1:].isalnum()
    has_length = MIN_PREFIX_LETTERS <= len(last_word) <= MAX_TYPED_LETTERS
    if not is_at_end or not ends_with_letter or not has_length:
        return no_unfinished_word
    return UnfinishedWord(text.removesuffix(last_word), last_word)


def completed_stems(
    word: str,
    analyzer: TermAnalyzer,
    terms_with_prefix: Callable[[str], Mapping[str, int]],
    document_frequency: Callable[[str], int],
) -> list[str]:
    """Return the terms of an index that may complete an unfinished word, the most frequent first.

    A term is the stem of a word. The parts of an identifier are terms too, so the last part of the
    unfinished word is completed as well.

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
    identifier_parts = [part for part in IDENTIFIER_BOUNDARY.split(folded) if part]
    last_part = identifier_parts[-1]

    # Terms that may complete the word, with the number of passages that contain each.
    frequencies: dict[str, int] = {}
    for prefix in {fold_letters(folded), fold_letters(last_part)}:
        if len(prefix) < MIN_PREFIX_LETTERS:
            continue
        frequencies.update(terms_with_prefix(prefix))

        # A stem may be shorter than the typed letters: a word that begins with "embankm" is
        # "embankment", and its stem is "embank". So possible whole words are stemmed as well.
        possible_words = [prefix + tail for tail in TAILS]
        for stem in set(analyzer.stem(possible_words)):
            frequency = document_frequency(stem)
            if frequency:
                frequencies[stem] = frequency

    most_frequent_first = sorted(frequencies, key=lambda term: (-frequencies[term], term))
    return most_frequent_first[:MAX_COMPLETIONS]


def corrected_stem(
    word: str, analyzer: TermAnalyzer, document_frequency: Callable[[str], int]
) -> str | None:
    """Return the most frequent term of the index that one edit makes of a word, or None.

    An edit inserts, deletes or replaces a letter, or swaps two neighbouring letters. The first
    letter is not edited, because people rarely mistype it.

    Args:
        word: A word that the index does not know, as typed.
        analyzer: Analyzer of the index.
        document_frequency: Returns the number of passages that contain a term.
    """
    folded = fold_letters(fold_characters(word))
    if not MIN_TYPO_LETTERS <= len(folded) <= MAX_TYPED_LETTERS or not folded.isalpha():
        return None

    edited_words = sorted(_edits(folded))
    stems = set(analyzer.stem(edited_words))
    frequencies = {stem: document_frequency(stem) for stem in stems if len(stem) > 1}
    # Of equally frequent stems, the first in the alphabet is taken.
    best = max(sorted(frequencies), key=frequencies.__getitem__, default=None)
    if best is None or frequencies[best] == 0:
        return None
    return best


def _edits(word: str) -> Iterable[str]:
    """Yield the words that one edit makes of a word, without edits of its first letter.

    Letters are inserted and replaced from the alphabet of the word's last letter.

    >>> one_edit_words = set(_edits("grapes"))
    >>> [word in one_edit_words for word in ("grape", "grpaes", "grades", "grapples")]
    [True, True, True, False]
    """
    alphabet = next((letters for letters in ALPHABETS if word[-1] in letters), "")
    for position in range(1, len(word) + 1):
        head = word[:position]
        tail = word[position:]
        # Insert a letter.
        for letter in alphabet:
            yield head + letter + tail
        if tail:
            # Delete a letter, then replace it.
            yield head + tail[1:]
            for letter in alphabet:
                yield head + letter + tail[1:]
        if len(tail) > 1:
            # Swap two neighbouring letters.
            yield head + tail[1] + tail[0] + tail[2:]
