"""Words of any language.

Most scripts separate words by spaces. Chinese, Japanese and the scripts of South-East Asia do not.
In these scripts, every character with its combining marks counts as a word. Otherwise a whole text
would be one word, which could not be cut into passages or snippets. Finding the real words would
need a dictionary. Unicode's word boundaries (UAX 29) split Chinese in the same way.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterator
from functools import cache

AUTO = "auto"
"""Value of a language setting that selects the language of each word by its script."""

# Characters of scripts that put no blanks between words: Thai, Lao, Tibetan, Burmese, Khmer;
# Chinese characters, kana, Bopomofo, half-width kana.
UNSPACED_SCRIPTS = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0f40-\u0fbc\u1000-\u103f\u1050-\u109d\u1780-\u17d3"
    "\u2e80-\u2fd5\u3005-\u3007\u3021-\u3029\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u312f"
    "\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003fffd"
)
"""Scripts that are written without spaces, as ranges of a regular expression's character class."""

WORD_WITH_PUNCTUATION = re.compile(rf"[{UNSPACED_SCRIPTS}][^\w\s]*|[^\s{UNSPACED_SCRIPTS}]+")
SIMPLE_WORD = re.compile(r"\w+")
SENTENCE_BOUNDARY = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
SURROGATE = re.compile(r"[\ud800-\udfff]")

# Control characters except tab and line feed, marks of writing direction, invisible line ends, and
# surrogates.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

LAST_SIMPLE_CHARACTER = "\u02ff"
"""No character up to this one is a combining mark or belongs to a script without spaces.

Texts of these characters are split with simpler and faster patterns.
"""

# Soft hyphen, zero-width characters, and marks of writing direction.
IGNORABLE = "\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
"""Invisible characters within words, as ranges of a regular expression's character class."""

ASCII_SIGNS = "$%&+<=>@^|~#"
"""ASCII characters that are signs. Other ASCII punctuation only separates words."""

PUNCTUATION_SIGNS = "§¶†‡‰‱※"
"""Characters that people search for, although Unicode classifies them as punctuation."""

HALF_WIDTH_VOICE_MARKS = "\uff9e\uff9f"
EMOJI_MODIFIERS = "\U0001f3fb-\U0001f3ff"
FLAG_LETTERS = "\U0001f1e6-\U0001f1ff"

# The names of programming languages, such as C++ and C#.
NAME_SUFFIX = r"\+\+|#(?!\w)|＋＋|＃(?!\w)"
# A name that begins with a dot, such as .NET or .gitignore.
DOTTED_NAME = r"(?<![^\s(\[{\"'`])\.[A-Za-z]\w*"
# A number whose digits are grouped, such as 12,500 or 1.000.000.
GROUPED_NUMBER = r"\d{1,3}(?:,\d{3})+(?![\w,])|\d{1,3}(?:\.\d{3}){2,}(?![\w.])"
ASCII_SEARCH_WORD = re.compile(
    rf"{GROUPED_NUMBER}|\w+(?:{NAME_SUFFIX})?|[{re.escape(ASCII_SIGNS)}]+|{DOTTED_NAME}", re.ASCII
)


def escape_invisible(text: str) -> str:
    """Escape invisible characters that control a terminal or reverse the order of letters.

    They are escaped as in JSON (\\u001b), so that escaped JSON text keeps its meaning.

    >>> escape_invisible("a\\x1b[2Jb\\u202ec")
    'a\\\\u001b[2Jb\\\\u202ec'
    """
    return INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_message(text: str, nl: bool = True) -> None:
    """Print a command's output.

    All commands print with this function, because ids, titles and reasons may come from strangers
    and contain control characters.

    Args:
        text: The output.
        nl: Whether to end the line.
    """
    line_end = "\n" if nl else ""
    print(escape_invisible(text), end=line_end, flush=True)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each word, including the punctuation that touches it.

    >>> text = "sort a list!"
    >>> [text[start:end] for start, end in word_spans(text)]
    ['sort', 'a', 'list!']
    >>> text = "排序 list。"
    >>> [text[start:end] for start, end in word_spans(text)]
    ['排', '序', 'list。']
    """
    return [match.span() for match in WORD_WITH_PUNCTUATION.finditer(text)]


def join_words(text: str, spans: list[tuple[int, int]], start: int, end: int) -> str:
    """Return some words of a text, with single spaces where the text has white space.

    Args:
        text: The text.
        spans: The result of `word_spans(text)`.
        start: Number of the first word.
        end: Number of the word after the last one.

    >>> text = "a  b\\nc"
    >>> join_words(text, word_spans(text), 0, 3)
    'a b c'
    >>> join_words("排序算法", word_spans("排序算法"), 1, 3)
    '序算'
    """
    if start >= end:
        return ""
    first_character = spans[start][0]
    end_character = spans[end - 1][1]
    return " ".join(text[first_character:end_character].split())


def split_first_sentence(text: str) -> tuple[str, str]:
    """Return the first sentence or line of a text, and the rest.

    >>> split_first_sentence("Sort a list. In place.")
    ('Sort a list.', ' In place.')
    """
    stripped = text.strip()
    first = SENTENCE_BOUNDARY.split(stripped, maxsplit=1)[0]
    return " ".join(first.split()), stripped[len(first) :]


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, which end with a line feed or a carriage return.

    `str.splitlines` also splits at characters that may stand inside a line, such as the line
    separator U+2028, which word processors write.

    >>> split_lines("one\\u2028more\\r\\ntwo\\n")
    ['one\\u2028more', 'two']
    """
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]


def split_words(text: str) -> list[str]:
    """Return the words of a text: letters, digits and underscores with their combining marks.

    >>> split_words("Sort it, with sort_values!"), split_words("用Python排序")
    (['Sort', 'it', 'with', 'sort_values'], ['用', 'Python', '排', '序'])
    >>> split_words("हिन्दी")
    ['हिन्दी']
    """
    return _word_pattern(text).findall(text)


def word_matches(text: str) -> Iterator[re.Match[str]]:
    """Yield the words of `split_words` as matches, which have positions."""
    return _word_pattern(text).finditer(text)


def split_search_words(text: str) -> list[str]:
    """Return the words that a search can find. Unlike `split_words`, they include signs.

    Names such as C++, C# and .NET keep their signs, and numbers such as 12,500 keep their commas.
    Currency signs, emoji and arrows are words. Invisible characters do not end a word.

    >>> split_search_words("C++ costs 5 €, a >= b!")
    ['C++', 'costs', '5', '€', 'a', '>=', 'b']
    >>> split_search_words("boats ⛵👍🏽")
    ['boats', '⛵', '👍🏽']
    """
    return _search_word_pattern(text).findall(text)


def search_word_matches(text: str) -> Iterator[re.Match[str]]:
    """Yield the words of `split_search_words` as matches, which have positions."""
    return _search_word_pattern(text).finditer(text)


def _search_word_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern that finds search words in a text. It is much simpler for ASCII."""
    if text.isascii():
        return ASCII_SEARCH_WORD
    return _search_word_pattern_with_signs()


@cache
def _search_word_pattern_with_signs() -> re.Pattern[str]:
    """Compile the pattern of words and signs of all scripts.

    This is slow, so it is done when the first text needs it.
    """
    marks = f"{_combining_marks()}{IGNORABLE}{HALF_WIDTH_VOICE_MARKS}"
    signs = f"{_non_ascii_signs()}{PUNCTUATION_SIGNS}"
    # Skin tones, the variation selectors of text and emoji, and the frame of a key.
    modifiers = f"{EMOJI_MODIFIERS}\ufe0e\ufe0f\u20e3"
    emoji = f"[{signs}][{modifiers}]*"

    patterns = [
        GROUPED_NUMBER,
        # A character of a script without spaces.
        rf"[{UNSPACED_SCRIPTS}][{marks}]*",
        # A word of another script.
        rf"(?:[^\W{UNSPACED_SCRIPTS}]+[{marks}]*)+(?:{NAME_SUFFIX})?",
        # A flag, which consists of the two letters of a country.
        rf"[{FLAG_LETTERS}]{{2}}",
        # Emoji that zero-width joiners combine into one, such as families and professions.
        rf"{emoji}(?:\u200d{emoji})*",
        rf"[{re.escape(ASCII_SIGNS)}]+",
        DOTTED_NAME,
    ]
    return re.compile("|".join(patterns))


@cache
def _non_ascii_signs() -> str:
    """Return the symbols beyond ASCII, as ranges of a regular expression's character class.

    These are currency signs, mathematical and other symbols. Only parts of Unicode with symbols are
    searched, because searching all of it takes longer.
    """
    codes = []
    for code in (*range(0x80, 0x10000), *range(0x1D000, 0x1FC00)):
        if unicodedata.category(chr(code)) in ("Sc", "Sm", "So"):
            codes.append(code)
    return _character_ranges(codes)


@cache
def _combining_marks() -> str:
    """Return the combining marks, as ranges of a regular expression's character class.

    A combining mark changes the letter before it, such as an accent. Only parts of Unicode with
    such marks are searched, because searching all of it takes longer.
    """
    codes = []
    for code in (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0)):
        if unicodedata.category(chr(code)).startswith("M"):
            codes.append(code)
    return _character_ranges(codes)


def _character_ranges(codes: list[int]) -> str:
    """Return ascending character codes as ranges of a regular expression's character class.

    >>> _character_ranges([97, 98, 99, 120])
    'a-cx-x'
    """
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)


def _word_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern that finds words in a text. It is much simpler without combining marks."""
    if max(text, default="") <= LAST_SIMPLE_CHARACTER:
        return SIMPLE_WORD
    return _word_pattern_with_marks()


@cache
def _word_pattern_with_marks() -> re.Pattern[str]:
    """Compile the pattern of words with combining marks.

    This is slow, so it is done when the first text needs it.
    """
    # Joiners occur within words of Persian and of Indic scripts.
    marks = f"{_combining_marks()}\u200c\u200d"
    return re.compile(rf"[{UNSPACED_SCRIPTS}][{marks}]*|(?:[^\W{UNSPACED_SCRIPTS}]+[{marks}]*)+")


def is_valid_utf8(text: str) -> bool:
    """Return whether a text was decoded from valid UTF-8.

    Files are read with `surrogateescape`, which decodes invalid bytes as lone surrogates.

    >>> is_valid_utf8("café"), is_valid_utf8("caf\\udce9")
    (True, False)
    """
    return SURROGATE.search(text) is None
