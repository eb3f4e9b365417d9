"""Snippets: the part of a document that a hit shows. Also the check of query texts."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache

from model_code.settings import require
from model_code.text.markup import strip_markup
from model_code.text.terms import AUTO, get_analyzer
from model_code.text.words import is_valid_utf8, split_search_words, word_spans

MAX_SNIPPET_CHARACTERS = 480
"""Largest number of characters of the text in a snippet.

A limit in words alone would allow very long snippets of texts without blanks, such as encoded data.
"""

SENTENCE_END = re.compile(r"""[.!?…]["'”’)\]]*(?=\s)|[。！？][」』”’]*|\n""")


# English words that carry little meaning alone. They are not marked in hits.
_FUNCTION_WORD_LIST = """
    a about an and are as at be been but by can do does for from had has have how i if in into is
    it its me my no not of on or our should so than that the their them then there these they this
    those to us was we were what when where which who why will with would you your
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORD_LIST.split())


def require_queries(texts: Iterable[str]) -> None:
    """Check that query texts can be searched for.

    The vector of an empty text would be near to arbitrary documents.

    Raises:
        SettingsError: If a text is empty, or is not valid UTF-8.

    >>> require_queries(["sort an array", " "])
    Traceback (most recent call last):
    model_code.errors.SettingsError: text is empty; say what you are looking for
    """
    for text in texts:
        require(text.strip() != "", "text is empty; say what you are looking for")
        require(is_valid_utf8(text), f"the query {text[:40]!r} holds bytes that are no UTF-8")


def make_snippet(
    text: str,
    query: str,
    width: int = 32,
    language: str | None = AUTO,
    more_terms: Collection[str] = (),
) -> str:
    """Return about `width` words of a text around the words of a query.

    The window with the highest weight is shown. Each different query word in a window adds 1 / (its
    number of occurrences in the text) to the weight. So frequent words such as "the" hardly count.

    The snippet starts at the start of a sentence, and stops at the end of one, if all query words
    of the window then still fit. Otherwise "..." marks the start or the end. The snippet has at
    most `MAX_SNIPPET_CHARACTERS` characters of the text. Markup is removed, because places that
    show snippets do not render it.

    Args:
        text: The text. Its beginning is shown if it has none of the query's words.
        query: The query text.
        width: Number of words.
        language: Language of the words, see `TermAnalyzer`.
        more_terms: Further terms to look for, such as corrections of mistyped words.

    >>> make_snippet("one two three four five six seven eight", "six five", width=3)
    '... five six seven ...'
    >>> text = "A preface. Sort a list. It is stable. So much for lists."
    >>> make_snippet(text, "stable sort", width=8)
    'Sort a list. It is stable.'
    >>> make_snippet("Parameters\\n----------\\nx : the `array` to sort", "array")
    'Parameters x : the array to sort'
    """
    spans = word_spans(text)
    word_starts = [start for start, _ in spans]
    sentence_starts = _sentence_starts(text, word_starts)

    # Words are given by their number in the text from here on.
    found_terms = sorted(_find_terms(text, query, language, more_terms))
    matches: list[tuple[int, str]] = []
    for position, _, term in found_terms:
        matches.append((bisect_right(word_starts, position) - 1, term))
    matches.sort()

    # Some words before the first match are shown as well, so fewer words are left for matches.
    context_words = width // 8
    first_match, last_match = _best_window(matches, width - context_words)
    start, stop = _fit_to_sentences(
        first_match, last_match, width, context_words, len(spans), sentence_starts
    )
    if start == stop:
        return ""

    first_character = spans[start][0]
    end_character = spans[stop - 1][1]
    starts_with_sentence = start in sentence_starts
    stops_with_sentence = stop in sentence_starts
    if end_character - first_character > MAX_SNIPPET_CHARACTERS:
        shown_positions = [place for place, _, _ in found_terms if place >= first_character]
        first_position = shown_positions[0] if shown_positions else first_character
        cut_start, cut_end = _fit_to_characters(first_character, end_character, first_position)
        starts_with_sentence = starts_with_sentence and cut_start == first_character
        stops_with_sentence = stops_with_sentence and cut_end == end_character
        first_character = cut_start
        end_character = cut_end

    shown_text = text[first_character:end_character]
    snippet = strip_markup(shown_text, source=text)
    if not snippet:
        # A text that consists of markup is shown as it is.
        snippet = " ".join(shown_text.split())
    if not starts_with_sentence:
        snippet = f"... {snippet}"
    if not stops_with_sentence:
        snippet = f"{snippet} ..."
    return snippet


def _fit_to_characters(start: int, end: int, match_start: int) -> tuple[int, int]:
    """Cut a span to `MAX_SNIPPET_CHARACTERS` characters that include the start of a match.

    The span keeps its start if the match is near to it. Otherwise some characters before the match
    are kept.

    Args:
        start: Position of the first character of the span.
        end: Position after its last character. The span is longer than the limit.
        match_start: Position of the match.

    Returns:
        Start and end of the cut span.

    >>> _fit_to_characters(0, 3000, 0), _fit_to_characters(0, 3000, 2900)
    ((0, 480), (2520, 3000))
    """
    context = MAX_SNIPPET_CHARACTERS // 8
    last_start = end - MAX_SNIPPET_CHARACTERS
    if match_start - start > context:
        start = min(match_start - context, last_start)
    return start, start + MAX_SNIPPET_CHARACTERS


def _fit_to_sentences(
    first_match: int,
    last_match: int,
    width: int,
    context_words: int,
    word_count: int,
    sentence_starts: list[int],
) -> tuple[int, int]:
    """Choose the words of a snippet so that it starts and ends with a sentence if possible.

    Words are given by their number in the text.

    Args:
        first_match: First matching word to show.
        last_match: Last matching word to show.
        width: Largest number of words of the snippet.
        context_words: Number of words to show before the first match, if the start of its sentence
            is too far away.
        word_count: Number of words of the text.
        sentence_starts: Words that start sentences, then `word_count`; see `_sentence_starts`.

    Returns:
        The first word of the snippet, and the word after its last word.
    """
    start = max(border for border in sentence_starts if border <= first_match)
    if last_match - start >= width:
        # The sentence starts so far before the match that the matches would not fit.
        start = max(0, min(first_match - context_words, word_count - width))

    stop = min(start + width, word_count)
    earliest_stop = max(last_match, start + width // 2)
    sentence_ends = [border for border in sentence_starts if earliest_stop < border <= stop]
    if sentence_ends:
        stop = max(sentence_ends)

    if stop == word_count:
        # The text ends before `width` words, so earlier sentences may fit before the start.
        earlier_starts = [border for border in sentence_starts if stop - width <= border < start]
        if earlier_starts:
            start = min(earlier_starts)
    return start, stop


def find_marks(
    text: str, query: str, language: str | None = AUTO, more_terms: Collection[str] = ()
) -> tuple[tuple[int, int], ...]:
    """Return the spans to highlight in a text: all words with the stem of a query word.

    Function words such as "the" are left out if the query has other words. They occur everywhere,
    and marking them would distract from the words that matter.

    Args:
        text: The text.
        query: The query text.
        language: Language of the words, see `TermAnalyzer`.
        more_terms: Further terms to look for, such as corrections of mistyped words.

    >>> find_marks("the end of the list", "the list"), find_marks("to be", "to be?")
    (((15, 19),), ((0, 2), (3, 5)))
    >>> find_marks("Sort a list, sorted.", "LIST sort"), find_marks("排序算法，序", "排序算")
    (((0, 4), (7, 11), (13, 19)), ((0, 3),))
    """
    query_words = {word.casefold() for word in split_search_words(query)}
    unmarked_words = FUNCTION_WORDS if query_words - FUNCTION_WORDS else frozenset()

    marks: list[tuple[int, int]] = []
    for start, end, _ in sorted(_find_terms(text, query, language, more_terms)):
        if text[start:end].casefold() in unmarked_words:
            continue
        if marks and start < marks[-1][1]:
            # Terms of scripts without spaces are pairs of characters. Marks of pairs that overlap
            # are joined.
            previous_start, previous_end = marks[-1]
            marks[-1] = (previous_start, max(end, previous_end))
        else:
            marks.append((start, end))
    return tuple(marks)


def _find_terms(
    text: str, query: str, language: str | None, more_terms: Collection[str]
) -> list[tuple[int, int, str]]:
    """Return the start and end of each word of a text with a query term, and the term."""
    analyzer = get_analyzer(language)
    return analyzer.find(text, _query_terms(query, language).union(more_terms))


# All hits of a page are searched for the terms of one query.
@lru_cache(maxsize=16)
def _query_terms(query: str, language: str | None) -> frozenset[str]:
    return frozenset(get_analyzer(language).query_terms(query))


def _sentence_starts(text: str, word_starts: list[int]) -> list[int]:
    """Return the numbers of the words that start sentences, ascending, then the number of words.

    Args:
        text: The text.
        word_starts: Position of the first character of each word.
    """
    borders = {0, len(word_starts)}
    for sentence_end in SENTENCE_END.finditer(text):
        borders.add(bisect_left(word_starts, sentence_end.end()))
    return sorted(borders)


def _best_window(matches: list[tuple[int, str]], width: int) -> tuple[int, int]:
    """Return the numbers of the first and the last matching word of the best window.

    A window has `width` words and starts at a match. See `make_snippet` for its weight. Without
    matches, the window is the first word of the text.

    Args:
        matches: For each match, the number of its word and the matched term, ascending.
        width: Number of words of a window, at least 1.
    """
    if not matches:
        return 0, 0
    occurrences = Counter(term for _, term in matches)

    def window(i: int) -> list[tuple[int, str]]:
        """Return the matches in the window that starts at the i-th match."""
        end_word = matches[i][0] + width
        # A tuple of one item is less than all matches of that word.
        end = bisect_left(matches, (end_word,), lo=i)
        return matches[i:end]

    def weight(i: int) -> float:
        # The sum of floats depends on their order, so the terms are sorted.
        terms = sorted({term for _, term in window(i)})
        return sum(1 / occurrences[term] for term in terms)

    best_matches = window(max(range(len(matches)), key=weight))
    return best_matches[0][0], best_matches[-1][0]
