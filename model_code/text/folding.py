"""Folding: one form for characters that people type in several ways.

Search compares folded words, so that `creme` finds `crème` and `Strasse` finds `Straße`. Words are
folded before they are stemmed. So the forms of a word with and without accents always have the same
stem. In return, some stemmers remove endings with accents less well.
"""

from __future__ import annotations

import re
import unicodedata

from model_code.text.words import IGNORABLE

LETTERS = str.maketrans(
    {
        "ß": "ss",
        "æ": "ae",
        "œ": "oe",
        "ø": "o",
        "đ": "d",
        "ð": "d",
        "þ": "th",
        "ł": "l",
        "ħ": "h",
        "ŧ": "t",
        "ŋ": "n",
        "ı": "i",
    }
)
"""Latin letters that Unicode does not decompose into a letter and an accent."""

# Accents of Latin, Greek and Cyrillic letters; vowel points of Hebrew and Arabic; the Arabic letter
# tatweel, which only stretches words. Marks of Indic scripts, Thai and kana are kept, because they
# change the letter.
ACCENTS = (
    "\u0300-\u0305\u0307\u0309-\u036f\u0483-\u0487"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20f0\ufe20-\ufe2f"
)
# The breve and the diaeresis, except where they make another Cyrillic letter: й, ў and ї are kept.
SEPARATE_LETTERS = "(?<![иИуУ])\u0306|(?<![іІ])\u0308"
APOSTROPHE_LETTERS = "\u02bb-\u02bf"
VARIATION_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
SKIN_TONES = "\U0001f3fb-\U0001f3ff"

DROPPED = re.compile(
    f"[{ACCENTS}{IGNORABLE}{APOSTROPHE_LETTERS}{VARIATION_SELECTORS}{SKIN_TONES}]"
    f"|{SEPARATE_LETTERS}"
)


def fold_characters(word: str) -> str:
    """Return a word without accents, vowel points and invisible characters.

    Full-width characters become ordinary characters, and ligatures become letters. Case is kept,
    because identifiers such as DataFrame are split where the case changes.

    >>> fold_characters("Crème"), fold_characters("ＡＢＣ"), fold_characters("so\u00adft")
    ('Creme', 'ABC', 'soft')
    >>> fold_characters("ёлка"), fold_characters("чай")
    ('елка', 'чай')
    """
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFKD", word)
    return unicodedata.normalize("NFKC", DROPPED.sub("", decomposed))


def fold_letters(word: str) -> str:
    """Return a word in lower case, with basic letters in place of letters such as ß and æ.

    >>> fold_letters("STRAẞE"), fold_letters("Œuvre")
    ('strasse', 'oeuvre')
    """
    lower = word.lower()
    return lower if lower.isascii() else lower.translate(LETTERS)
