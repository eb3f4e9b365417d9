"""Words of any language: where blanks part them, and in scripts that are written without blanks, a
character each.

Chinese, Japanese and the scripts of South-East Asia put no blank between words. Cut at blanks
alone, a text of theirs is one word, which makes one passage, no span and no snippet of it. A
character, with the marks upon it, is as much as can be told without a dictionary; Unicode's word
boundaries (UAX 29) part Chinese in the same places.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache

AUTO = "auto"  # a language: that of each word's script
# Thai, Lao, Tibetan, Burmese, Khmer; Chinese characters, kana, Bopomofo, half-width kana
UNSPACED_SCRIPTS = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0f40-\u0fbc\u1000-\u103f\u1050-\u109d\u1780-\u17d3"
    "\u2e80-\u2fd5\u3005-\u3007\u3021-\u3029\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u312f"
    "\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003fffd"
)
PIECE = re.compile(rf"[{UNSPACED_SCRIPTS}][^\w\s]*|[^\s{UNSPACED_SCRIPTS}]+")
SIMPLE = re.compile(r"\w+")
# C0 and C1 but for tab and line feed, marks of direction, invisible line ends, no UTF-8
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
LAST_SIMPLE = "\u02ff"  # up to here no character is a mark, or of a script without blanks


def escape_invisible(text: str) -> str:
    """The text as a terminal may be sent it: what would command it, or turn the order of letters
    round, as an escape.

    The escapes are those of JSON, which stays what it is.

    >>> escape_invisible("a\\x1b[2Jb\\u202ec")
    'a\\\\u001b[2Jb\\\\u202ec'
    """
    return UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_message(text: str, nl: bool = True) -> None:
    """Print what a command has to tell: all of it passes here, ids, titles and reasons that others
    wrote, too.

    nl: end the line.
    """
    print(escape_invisible(text), end="\n" if nl else "", flush=True)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text begin and end, with the punctuation that no blank parts from them.

    >>> [text[start:end] for text in ["sort a list!", "排序 list。"] for start, end in word_spans(text)]
    ['sort', 'a', 'list!', '排', '序', 'list。']
    """
    return [match.span() for match in PIECE.finditer(text)]


def join_words(text: str, places: list[tuple[int, int]], start: int, end: int) -> str:
    """The words from `start` up to `end` at their places, apart by single blanks where there are
    any.

    >>> join_words("a  b\\nc", word_spans("a  b\\nc"), 0, 3), join_words("排序算法", word_spans("排序算法"), 1, 3)
    ('a b c', '序算')
    """
    return " ".join(text[places[start][0] : places[end - 1][1]].split()) if start < end else ""


def split_first_sentence(text: str) -> tuple[str, str]:
    """The first sentence or line of a text, and the rest.

    >>> split_first_sentence("Sort a list. In place.")
    ('Sort a list.', ' In place.')
    """
    first, *_ = SENTENCE.split(text.strip(), maxsplit=1)
    return " ".join(first.split()), text.strip()[len(first) :]


def split_words(text: str) -> list[str]:
    """The letters, digits and underscores of a text, as words without punctuation; their marks
    belong to them.

    >>> split_words("Sort it, with sort_values!"), split_words("用Python排序"), split_words("हिन्दी")
    (['Sort', 'it', 'with', 'sort_values'], ['用', 'Python', '排', '序'], ['हिन्दी'])
    """
    return _pattern_of(text).findall(text)


def word_matches(text: str) -> Iterator[re.Match[str]]:
    """The same words where they stand."""
    return _pattern_of(text).finditer(text)


def _pattern_of(text: str) -> re.Pattern[str]:
    return SIMPLE if max(text, default="") <= LAST_SIMPLE else _pattern()


@cache
def _pattern() -> re.Pattern[str]:
    """That of words with marks, made when first a text needs it."""
    every = map(chr, (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0)))
    marks = re.escape(
        "".join(letter for letter in every if unicodedata.category(letter).startswith("M"))
    )
    marks += "\u200c\u200d"  # joiners, which stand within words of Persian and of Indic scripts
    return re.compile(rf"[{UNSPACED_SCRIPTS}][{marks}]*|(?:[^\W{UNSPACED_SCRIPTS}]+[{marks}]*)+")


_SURROGATE = re.compile(r"[\ud800-\udfff]")


def is_valid_utf8(text: str) -> bool:
    """Whether every byte of the text was UTF-8: readers decode another one as a lone surrogate.

    >>> is_valid_utf8("café"), is_valid_utf8("caf\\udce9")
    (True, False)
    """
    return _SURROGATE.search(text) is None
