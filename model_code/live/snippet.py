"""The part of a text that a reader should see beside a hit: where the query's words stand closest together."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter

WORD = re.compile(r"\w+")


def snippet(text: str, query: str, width: int = 24) -> str:
    """About `width` words of `text` around the query's words; the beginning if it has none of them.

    Each window counts every query word once, a word less the more often the text has it: so "the" hardly matters.

    >>> snippet("one two three four five six seven eight", "six five", width=3)
    '... five six seven ...'
    """
    words, wanted = text.split(), set(WORD.findall(query.casefold()))
    places = [
        (place, term)
        for place, word in enumerate(" ".join(words).casefold().split(" "))
        for term in ({word} if word.isalnum() else set(WORD.findall(word))) & wanted
    ]
    lead = width // 8
    start = max(0, min(_best_start(places, width - lead) - lead, len(words) - width))
    shown = words[start : start + width]
    return " ".join((["..."] if start else []) + shown + (["..."] if start + width < len(words) else []))


def _best_start(places: list[tuple[int, str]], width: int) -> int:
    """The first matching place whose window of `width` words weighs most; 0 without any match."""
    count = Counter(term for _, term in places)
    best, best_weight = 0, 0.0
    for i, (start, _) in enumerate(places):
        end = bisect_left(places, (start + width,), lo=i)
        seen = {term for _, term in places[i:end]}
        weight = sum(1 / count[term] for term in sorted(seen))
        if weight > best_weight:
            best, best_weight = start, weight
    return best
