"""Long documents as overlapping passages: each is ranked by its best one; ids and metrics stay per document."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from model_code.corpus.settings import PassageSettings
from model_code.documents import Document
from model_code.words import spans

Cut = Literal["words", "lines", "sections"]
HEADING = re.compile(r"(?:^|(?<=\n\n))(#{1,6}) +([^\n]+)(?=\n\n|\Z)")  # a line of its own between empty ones


def windows(text: str, words: int, stride: int) -> list[str]:
    """Slices of `text` of at most `words` words, one every `stride` words, the last reaching the end; never empty.

    Every word lies in a window, and only as many windows are made as that takes. `words` = 0: the text as a whole.

    >>> windows("a b c d e f g", words=3, stride=2)
    ['a b c', 'c d e', 'e f g']
    """
    places = spans(text) if words else []
    if len(places) <= words:
        return [text]
    starts = range(0, len(places) - words + stride, stride)
    return [text[places[start][0] : places[min(start + words, len(places)) - 1][1]] for start in starts]


def lines(text: str) -> list[str]:
    """Each line after the first, with the first before it: what a document is, and one thing that it says.

    >>> lines("Lists files.\\nls -a\\n\\nls -l")
    ['Lists files.\\nls -a', 'Lists files.\\nls -l']
    """
    first, *rest = [line for line in text.split("\n") if line.strip()] or [text]
    return [f"{first}\n{line}" for line in rest] or [text]


def sections(text: str, words: int, stride: int) -> list[str]:
    """The windows of each section, under its heading (`## Setup`) and those above it that have no text of their own.

    >>> sections("Intro.\\n\\n# A\\n\\n## B\\n\\none two three", words=2, stride=2)
    ['Intro.', '# A\\n\\n## B\\n\\none two', '# A\\n\\n## B\\n\\nthree']
    """
    borders = [*HEADING.finditer(text)]
    titles = ["", *(border[0] + "\n\n" for border in borders)]
    starts, ends = [0, *(border.end() for border in borders)], [*(border.start() for border in borders), len(text)]
    found, headings = [], ""
    for title, start, end in zip(titles, starts, ends, strict=True):
        headings += title
        if own := text[start:end].strip():
            found += [headings + window for window in windows(own, words, stride)]
            headings = ""
    return found + ([headings.strip()] if headings else []) or [text]


def section_of(passage: str) -> str | None:
    """The heading that a passage, or a text cut from its beginning, stands under; None without any.

    >>> section_of("# A\\n\\n## B\\n\\none two"), section_of("one two")
    ('B', None)
    """
    found, place = None, 0
    while heading := HEADING.match(passage, place):
        found, place = heading[2].strip(), heading.end() + 2
    return found


def cut(text: str, words: int, stride: int, by: Cut) -> list[str]:
    """The passages of a text, at least one, as `PassageSettings` says."""
    if by == "lines":
        return lines(text)
    return sections(text, words, stride) if by == "sections" else windows(text, words, stride)


def passage_rows(documents: Iterable[Document], settings: PassageSettings) -> list[dict[str, Any]]:
    """The rows of the passages table, in the order of the documents; `ordinal` counts a document's passages from 0."""
    return [
        {"document_id": document.document_id, "ordinal": ordinal, "title": document.title, "text": text}
        for document in documents
        for ordinal, text in enumerate(cut(document.text, settings.words, settings.stride, settings.cut))
    ]
