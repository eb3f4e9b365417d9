"""What a document should be found by, as texts: its title, its first sentence, and parts of the rest."""

from __future__ import annotations

import re

SPAN = 12  # words, about as many as a long query has
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def constraint_texts(title: str, text: str, spans: int) -> list[str]:
    """Title, first sentence, and up to `spans` runs of `SPAN` words, evenly spread over what follows it.

    None is empty and none occurs twice; a document with any text has at least one. Nothing is drawn at random.

    >>> constraint_texts("sort", "Sort a list. In place, that is.", spans=4)
    ['sort', 'Sort a list.', 'In place, that is.']
    """
    first, rest = _first_sentence(text)
    words = rest.split()
    last = max(0, len(words) - SPAN)
    count = min(spans, -(-len(words) // SPAN))
    starts = [round(last * i / max(1, count - 1)) for i in range(count)]
    found = [" ".join(title.split()), first, *(" ".join(words[start : start + SPAN]) for start in starts)]
    return [one for one in dict.fromkeys(found) if one]


def _first_sentence(text: str) -> tuple[str, str]:
    first, *_ = SENTENCE.split(text.strip(), maxsplit=1)
    return " ".join(first.split()), text.strip()[len(first) :]
