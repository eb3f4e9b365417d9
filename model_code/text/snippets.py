"""Texts: what those of queries must be, and which part of a document is shown."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator

from model_code.settings import require
from model_code.text.terms import AUTO, get_analyzer
from model_code.text.words import is_valid_utf8, join_words, word_spans


def require_queries(texts: Iterable[str]) -> None:
    """SettingsError if a text is empty, whose vector would be near to arbitrary documents, or holds
    broken bytes.

    >>> require_queries(["sort an array", " "])
    Traceback (most recent call last):
    model_code.errors.SettingsError: text is empty; say what you are looking for
    """
    for text in texts:
        require(text.strip() != "", "text is empty; say what you are looking for")
        require(is_valid_utf8(text), f"the query {text[:40]!r} holds bytes that are no UTF-8")


SENTENCE_END = re.compile(r"""[.!?…]["'”’)\]]*(?=\s)|[。！？][」』”’]*|\n""")


def make_snippet(text: str, query: str, width: int = 32, language: str | None = AUTO) -> str:
    """About `width` words of `text` around the query's words; the beginning if it has none of them.

    Each window counts every query word once, a word less the more often the text has it: so "the"
    hardly matters. It begins and ends with a sentence where that leaves no match out; dots stand
    where it does not. language: `TermAnalyzer`'.

    >>> make_snippet("one two three four five six seven eight", "six five", width=3)
    '... five six seven ...'
    >>> make_snippet("A preface. Sort a list. It is stable. So much for lists.", "stable sort", width=8)
    'Sort a list. It is stable.'
    """
    places = word_spans(text)
    starts = [start for start, _ in places]
    met = sorted(
        (bisect_right(starts, start) - 1, term)
        for start, _, term in _term_places(text, query, language)
    )
    lead = width // 8
    first = _best_start(met, width - lead)
    last = max((place for place, _ in met if place < first + width - lead), default=first)
    borders = _borders(text, starts)
    start = max(border for border in borders if border <= first)
    if last - start >= width:
        start = max(0, min(first - lead, len(places) - width))
    stop = min(start + width, len(places))
    stop = max(
        (border for border in borders if max(last, start + width // 2) < border <= stop),
        default=stop,
    )
    if stop == len(places):
        start = min((border for border in borders if stop - width <= border < start), default=start)
    shown = join_words(text, places, start, stop)
    return "... " * (start not in borders) + shown + " ..." * (stop not in borders)


def find_marks(text: str, query: str, language: str | None = AUTO) -> tuple[tuple[int, int], ...]:
    """Where the query's words stand in a text, whatever their endings: begin and end of each.

    >>> find_marks("Sort a list, sorted.", "LIST sort"), find_marks("排序算法，序", "排序算")
    (((0, 4), (7, 11), (13, 19)), ((0, 3),))
    """
    joined: list[tuple[int, int]] = []
    for start, end, _ in sorted(_term_places(text, query, language)):
        if joined and start < joined[-1][1]:
            start, end = joined[-1][0], max(end, joined.pop()[1])
        joined.append((start, end))
    return tuple(joined)


def _term_places(text: str, query: str, language: str | None) -> Iterator[tuple[int, int, str]]:
    """The query's terms in a text, and where the words that have them begin and end."""
    terms = get_analyzer(language)
    query_terms = terms.query_terms(query)
    return (
        (start, end, term)
        for start, end, forms in terms.locate(text)
        for term in query_terms.intersection(forms)
    )


def _borders(text: str, starts: list[int]) -> list[int]:
    """The numbers of the words that sentences begin with, and that of all words, which begin at
    `starts`.
    """
    ends = (match.end() for match in SENTENCE_END.finditer(text))
    return sorted({0, len(starts), *(bisect_left(starts, end) for end in ends)})


def _best_start(places: list[tuple[int, str]], width: int) -> int:
    """The first matching place whose window of `width` words weighs most; 0 without any match."""
    count = Counter(term for _, term in places)

    def weight(i: int) -> float:
        end = bisect_left(places, (places[i][0] + width,), lo=i)
        return sum(1 / count[term] for term in sorted({term for _, term in places[i:end]}))

    return places[max(range(len(places)), key=weight)][0] if places else 0
