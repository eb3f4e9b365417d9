"""The syntax of queries that people type: phrases, excluded words and words of the title.

| typed | a hit must |
|---|---|
| `"leap year"` | contain these words in this order, in its title or text |
| `-car`, `-"used car"` | not contain the word in any of its forms, or the phrase |
| `title:river`, `title:"river bank"` | have the word in its title |
| `-title:river` | not have the word in its title |

Everything else is searched as text, even if it resembles the syntax:

- an unclosed quote;
- a dash within a word, or before a blank, a number, a single letter or another dash;
- a query that has excluded words only.

People also search for commands, in which a dash begins a flag and excludes nothing. So a word after
a dash is not excluded in two cases:

- The query contains a typical flag such as `-r` or `--force`. No such word is excluded then.
- A document contains the word with its dash, such as `find -name`.

A phrase after a dash is always excluded, because no flag begins with a quotation mark.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from model_code.text.folding import fold_characters, fold_letters
from model_code.text.terms import get_analyzer
from model_code.text.words import ASCII_SIGNS, UNSPACED_SCRIPTS, split_search_words

# German and Danish books quote »like this«, and Japanese has corner brackets.
OPEN_QUOTES = '"“”„‟«»＂「『'
CLOSE_QUOTES = '"“”«»＂」』'
# A part of a query: a phrase or a word, with optional `-` and `title:` before it. The dash and the
# colon may be the wide characters of East Asian fonts. The part begins after a blank, an invisible
# character or an opening bracket, or at the start of the query. It does not begin directly after a
# line break, because a dash at the start of a line is usually the bullet of a list.
OPERAND = re.compile(
    rf"""(?:(?<=[^\S\n])|(?<=[\ufeff\u200b])|(?<=\s\()|(?<=\A\()|\A)
    (?P<exclude>[-－])?(?P<title>title[:：])?
    (?:[{OPEN_QUOTES}](?P<phrase>[^{OPEN_QUOTES}{CLOSE_QUOTES}]+)[{CLOSE_QUOTES}](?!\w)
      |(?P<word>[^\s{OPEN_QUOTES}]+))""",
    re.IGNORECASE | re.VERBOSE,
)
# A word that a dash before it can exclude: at least two characters, the first one a letter. A
# single letter is more likely a flag such as `-x`. But in a script without blanks between words,
# such as Chinese, a single character is a word and can be excluded.
EXCLUDABLE_WORD = re.compile(rf"[^\W\d_][\w'’-]*\w|[{UNSPACED_SCRIPTS}]")
# The flag of a command: a long flag such as `--force`, a single letter or digit such as `-r`, or a
# flag with a value such as `-std=`. A single character is a flag only if it is ASCII, because other
# scripts have words of one character: `-犬` excludes the Chinese word for dog.
COMMAND_FLAG = re.compile(r"(?<!\S)(?:--\w|-[A-Za-z0-9_](?![\w-])|-[\w-]+=)")
TRAILING_PUNCTUATION = ".,;:!?)"
UNSPACED_CHARACTER = re.compile(f"[{UNSPACED_SCRIPTS}]")

# Characters between the words of a phrase: anything but letters, digits and signs.
GAP = rf"[^\w{re.escape(ASCII_SIGNS)}]+"


@dataclass(frozen=True)
class TextCondition:
    """A condition on the words of a document.

    Attributes:
        words: A word or a phrase.
        is_excluded: Whether documents must not contain the words. Otherwise they must.
        in_title: Whether only the title is searched for the words.
        is_exact: Whether the words must occur in this form and order. Otherwise any form of a word
            counts, such as its plural.
        literal: An excluded word with its dash, such as `-name`. If a document contains this text,
            the dash belongs to a command such as `find -name`, and the word is not excluded. Empty
            unless a single word is excluded.
    """

    words: str
    is_excluded: bool = False
    in_title: bool = False
    is_exact: bool = True
    literal: str = ""


@dataclass(frozen=True)
class ParsedQuery:
    """A query without its syntax.

    Attributes:
        text: The text to search for. It includes the words of phrases and of `title:`, but no
            excluded words.
        conditions: Conditions that every hit must meet.
    """

    text: str
    conditions: tuple[TextCondition, ...] = ()


def parse_query(text: str, flags: Collection[str] = ()) -> ParsedQuery:
    """Separate the text of a query from its conditions.

    Args:
        text: The query as typed.
        flags: Words with a dash, such as `-name`, that documents contain. They are searched as
            text, and exclude nothing.

    >>> parse_query('bank -"river bank" title:money')
    ... # doctest: +NORMALIZE_WHITESPACE
    ParsedQuery(text='bank money', conditions=(TextCondition(words='river bank', is_excluded=True,
    in_title=False, is_exact=True, literal=''), TextCondition(words='money', is_excluded=False,
    in_title=True, is_exact=False, literal='')))
    >>> parse_query('re-index 5" pipes, an "open quote, -1 and tar -x')
    ParsedQuery(text='re-index 5" pipes, an "open quote, -1 and tar -x', conditions=())
    >>> parse_query('ls -r -"used car" -car').text
    'ls -r -car'
    """
    is_command = COMMAND_FLAG.search(text) is not None
    conditions: list[TextCondition] = []
    # The text to search for, in pieces: the query without excluded words and without syntax.
    searched_pieces: list[str] = []
    end_of_last = 0
    for match in OPERAND.finditer(text):
        condition = _read_condition(match, is_command)
        if condition is None or condition.literal in flags:
            continue
        conditions.append(condition)
        searched_pieces.append(text[end_of_last : match.start()])
        if not condition.is_excluded:
            searched_pieces.append(condition.words)
        end_of_last = match.end()
    searched_pieces.append(text[end_of_last:])

    if not conditions:
        return ParsedQuery(text)
    searched_text = " ".join("".join(searched_pieces).split())
    if not split_search_words(searched_text):
        # The query has excluded words only, so that no text to search for remains.
        return ParsedQuery(text)
    return ParsedQuery(searched_text, tuple(conditions))


def _read_condition(match: re.Match[str], is_command: bool) -> TextCondition | None:
    """Return the condition of a matched part of a query, or None if the part is plain text.

    Args:
        match: A match of `OPERAND`: a phrase or a word.
        is_command: Whether the query has a flag such as `-r`. A dash then excludes no single word.
    """
    is_excluded = match["exclude"] is not None
    in_title = match["title"] is not None
    if match["phrase"] is not None:
        if not split_search_words(match["phrase"]):
            return None
        return TextCondition(match["phrase"], is_excluded, in_title)

    word = match["word"].rstrip(TRAILING_PUNCTUATION)
    if in_title:
        if not split_search_words(word):
            return None
        return TextCondition(word, is_excluded, in_title, is_exact=False)
    # Without `title:`, a single word is a condition only if the dash before it excludes it.
    can_be_excluded = not is_command and _is_excludable(word)
    if not is_excluded or not can_be_excluded:
        return None
    return TextCondition(word, is_excluded, is_exact=False, literal=f"-{word}")


def _is_excludable(word: str) -> bool:
    """Return whether a word after a dash can be excluded, unlike a number or the letter of a flag.

    >>> _is_excludable("car"), _is_excludable("犬"), _is_excludable("x"), _is_excludable("2020")
    (True, True, False, False)
    """
    # The vowel signs of Indic scripts are marks. They are left out, because `\w` does not match
    # them.
    letters = "".join(character for character in word if not _is_mark(character))
    return EXCLUDABLE_WORD.fullmatch(letters) is not None


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


class ConditionMatcher:
    """Checks whether documents meet a condition.

    Args:
        condition: The condition.
        language: Language of the words, see `TermAnalyzer`.

    >>> matcher = ConditionMatcher(TextCondition("creme brulee"), "auto")
    >>> matcher.meets("Desserts", "Crème, brûlée"), matcher.meets("Brûlée", "crème")
    (True, False)
    """

    def __init__(self, condition: TextCondition, language: str | None) -> None:
        """Prepare the search for the words of a condition."""
        self.condition = condition
        self._analyzer = get_analyzer(language)
        words = split_search_words(condition.words)
        # Several words that are typed as one, such as `e-mail`, are searched as a phrase, too.
        self._is_phrase = condition.is_exact or len(words) > 1
        self._phrase = _phrase_pattern(fold_text(word) for word in words)
        # The word with its dash, as a command such as `find -name` has it.
        self._literal = re.compile(rf"(?<!\S){re.escape(condition.literal)}(?!\w)", re.IGNORECASE)

    @property
    def terms(self) -> list[str]:
        """The terms of the words in a BM25 index, such as stems.

        Every document that contains the words has these terms there.
        """
        return self._analyzer.whole_terms(self.condition.words)

    def meets(self, title: str, text: str) -> bool:
        """Return whether a document meets the condition."""
        return self.contains(title, text) != self.condition.is_excluded

    def contains(self, title: str, text: str) -> bool:
        """Return whether the title or the text of a document contains the words.

        Only the title is searched if the condition says so.
        """
        searched_texts = [title] if self.condition.in_title else [title, text]
        if self._is_phrase:
            return any(self._phrase.search(fold_text(searched)) for searched in searched_texts)

        wanted_terms = set(self.terms)
        for searched in searched_texts:
            if wanted_terms.issubset(self._analyzer.analyze(searched)):
                return True
        return False

    def contains_literal(self, text: str) -> bool:
        """Return whether a text contains the word with its dash, as typed."""
        return self._literal.search(text) is not None


def fold_text(text: str) -> str:
    """Return a text in lower case, without accents and invisible characters."""
    return fold_letters(fold_characters(text))


def _phrase_pattern(folded_words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds words in this order in a folded text.

    Between two words of scripts with blanks, white space or punctuation is required. If one of the
    two words belongs to a script without blanks, such as Chinese, they may also touch.
    """
    pattern = ""
    previous = ""
    for word in folded_words:
        # Whether the characters on both sides of the gap belong to scripts with blanks.
        both_spaced = _is_spaced(previous[-1:]) and _is_spaced(word[:1])
        if both_spaced and previous:
            pattern += GAP
        elif both_spaced:
            # The first word of the phrase must not continue a word of the text.
            pattern += r"(?<!\w)"
        elif previous:
            pattern += r"\W*"
        pattern += re.escape(word)
        previous = word
    if _is_spaced(previous[-1:]):
        pattern += r"(?!\w)"
    return re.compile(pattern)


def _is_spaced(character: str) -> bool:
    """Return whether a character is a letter or digit of a script that separates words by blanks.

    An empty string stands for the missing character before the first word. The result is then True.
    """
    if not character:
        return True
    return character.isalnum() and UNSPACED_CHARACTER.match(character) is None
