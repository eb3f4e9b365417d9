"""Long documents as overlapping passages: each is ranked by its best one; ids and metrics stay per
document.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from model_code.text.documents import Document
from model_code.text.settings import PassageSettings
from model_code.text.words import word_spans

Cut = Literal["words", "lines", "sections"]
TOKEN = re.compile(r"[A-Za-z]{1,6}|\d{1,2}|[^\W\d_]|[\W_]")  # about what WordPiece makes one of
UNBROKEN = 80  # characters of a word that stays whole
# a line of its own between empty ones
HEADING = re.compile(r"(?:^|(?<=\n\n))(#{1,6}) +([^\n]+)(?=\n\n|\Z)")


@dataclass(frozen=True)
class Span:
    """A passage as a slice of its document's text; a search reads `prefix` before it, which says what
    it is a part of.
    """

    start: int
    end: int
    prefix: str = ""

    def read(self, text: str) -> str:
        """The passage as it is searched."""
        return self.prefix + text[self.start : self.end]


def windows(text: str, words: int, stride: int, prefix: str = "", shift: int = 0) -> list[Span]:
    """The windows of a text; shift: where it begins in the document."""
    pieces = _pieces(text) if words else []
    # in words, before each piece
    ends = [*accumulate((weight for _, _, weight in pieces), initial=0)]
    if ends[-1] <= words:
        return [Span(shift, shift + len(text), prefix)]
    spans: list[Span] = []
    first = last = 0
    while last < len(pieces):
        last = max(first + 1, bisect_right(ends, ends[first] + words) - 1)
        spans.append(Span(shift + pieces[first][0], shift + pieces[last - 1][1], prefix))
        first = max(first + 1, min(last, bisect_left(ends, ends[first] + stride)))
    return spans


def _pieces(text: str) -> list[tuple[int, int, int]]:
    """Words with their weights: one of which an encoder makes many tokens counts as several.

    So addresses, tables, code and scripts that the encoder hardly knows do not run past
    `encoder.max_tokens` where prose of as many words fits: a word is about 4/3 tokens. What no
    blank parts for `UNBROKEN` characters is cut.

    >>> _pieces("see https://example.org/a/long/path")
    [(0, 3, 1), (4, 35, 10)]
    """
    pieces = []
    for start, end in word_spans(text):
        for begin in range(start, end, UNBROKEN):
            stop = min(begin + UNBROKEN, end)
            tokens = sum(1 for _ in TOKEN.finditer(text, begin, stop))
            pieces.append((begin, stop, max(1, 3 * tokens // 4)))
    return pieces


def _lines(text: str) -> list[Span]:
    """Each line after the first, with the first before it: what a document is, and one thing that
    it says.

    >>> [place.read("Lists files.\\nls -a\\n\\nls -l") for place in _lines("Lists files.\\nls -a\\n\\nls -l")]
    ['Lists files.\\nls -a', 'Lists files.\\nls -l']
    """
    rows = text.split("\n")
    starts = accumulate((len(row) + 1 for row in rows), initial=0)
    (first, _), *later = [
        (row, start) for row, start in zip(rows, starts, strict=False) if row.strip()
    ] or [(text, 0)]
    return [Span(start, start + len(row), f"{first}\n") for row, start in later] or [
        Span(0, len(text))
    ]


def _sections(text: str, words: int, stride: int) -> list[Span]:
    """The windows of each section, under its heading (`## Setup`) and those above it that have no
    text of their own.

    >>> text = "Intro.\\n\\n# A\\n\\n## B\\n\\none two three"
    >>> [place.read(text) for place in _sections(text, words=2, stride=2)]
    ['Intro.', '# A\\n\\n## B\\n\\none two', '# A\\n\\n## B\\n\\nthree']
    """
    borders = [*HEADING.finditer(text)]
    starts, ends = (
        [0, *(border.end() for border in borders)],
        [*(border.start() for border in borders), len(text)],
    )
    spans: list[Span] = []
    headings: list[re.Match[str]] = []
    for border, start, end in zip([None, *borders], starts, ends, strict=True):
        headings += [border] if border else []
        if body := text[start:end].strip():
            prefix = "".join(f"{heading[0]}\n\n" for heading in headings)
            spans += windows(body, words, stride, prefix, text.index(body, start))
            headings = []
    return spans + ([Span(headings[0].start(), len(text))] if headings else []) or [
        Span(0, len(text))
    ]


def section_at(text: str, place: int) -> str | None:
    """The heading that a place of a text stands under; None without any.

    >>> section_at("# A\\n\\n## B\\n\\none two", 12), section_at("one two", 0)
    ('B', None)
    """
    above = [heading for heading in HEADING.finditer(text) if heading.start() <= place]
    return above[-1][2].strip() if above else None


def passage_spans(text: str, words: int, stride: int, by: Cut) -> list[Span]:
    """The passages of a text, at least one, as `PassageSettings` says."""
    if by == "lines":
        return _lines(text)
    return _sections(text, words, stride) if by == "sections" else windows(text, words, stride)


def cut_passages(text: str, words: int, stride: int, by: Cut = "words") -> list[str]:
    """The passages of a text, at least one, as they are searched.

    Windows are slices of at most `words` words, one every `stride` words, the last reaching the
    end; never empty. Every word lies in one, and only as many are made as that takes. `words` = 0:
    the text as a whole.

    >>> cut_passages("a b c d e f g", words=3, stride=2)
    ['a b c', 'c d e', 'e f g']
    """
    return [place.read(text) for place in passage_spans(text, words, stride, by)]


def passage_rows(documents: Iterable[Document], settings: PassageSettings) -> list[dict[str, Any]]:
    """The rows of the passages table, in the order of the documents; `ordinal` counts a document's
    passages from 0.
    """
    return [
        {
            "document_id": document.document_id,
            "ordinal": ordinal,
            "title": document.title,
            "text": text,
        }
        for document in documents
        for ordinal, text in enumerate(
            cut_passages(document.text, settings.words, settings.stride, settings.cut)
        )
    ]


@dataclass(frozen=True)
class TextRules:
    """`encoder.include_title` and the group `passages` of the build's settings; the encoder itself
    cuts at its tokens.

    >>> TextRules(include_title=True, words=2, stride=1).passages("T", "a b c")
    ['T a b', 'T b c']
    """

    include_title: bool
    words: int
    stride: int
    cut: Cut = "words"

    def passages(self, title: str, text: str) -> list[str]:
        """The texts of a document's passages, in their order; as `corpus.tables.passage_texts`
        composes them.
        """
        passages = cut_passages(text, self.words, self.stride, self.cut)
        return (
            [f"{title} {passage}".strip() for passage in passages]
            if self.include_title
            else passages
        )

    def passage_spans(self, text: str) -> list[Span]:
        """Where the passages of a text stand in it."""
        return passage_spans(text, self.words, self.stride, self.cut)
