"""Splitting of long documents into overlapping passages.

A document is ranked by its best passage. Rankings and metrics refer to documents.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from model_code.text.documents import Document
from model_code.text.settings import PassageSettings
from model_code.text.words import word_spans

Cut = Literal["words", "lines", "sections"]

TOKEN = re.compile(r"[A-Za-z]{1,6}|\d{1,2}|[^\W\d_]|[\W_]")
"""A piece of text that WordPiece tokenizers roughly make one token of."""

MAX_UNBROKEN_CHARACTERS = 80
"""Number of characters at which a longer word is cut."""

HEADING = re.compile(r"(?:^|(?<=\n\n))(#{1,6}) +([^\n]+)(?=\n\n|\Z)")
"""A Markdown heading: a line between empty lines."""


@dataclass(frozen=True)
class Span:
    """A passage as a slice of its document's text.

    Attributes:
        start: Position of the first character.
        end: Position after the last character.
        prefix: Text that is put before the slice, such as the heading of its section.
    """

    start: int
    end: int
    prefix: str = ""

    def read(self, text: str) -> str:
        """Return the passage's text: the prefix and the slice of the document's text."""
        return self.prefix + text[self.start : self.end]


class _Section(NamedTuple):
    """A section of a text: its heading, if any, and the span of its body."""

    heading: re.Match[str] | None
    start: int
    end: int


class _Piece(NamedTuple):
    """A word or a part of a word, which counts as `weight` words of a window."""

    start: int
    end: int
    weight: int


def windows(text: str, words: int, stride: int, prefix: str = "", shift: int = 0) -> list[Span]:
    """Cut a text into overlapping windows.

    Args:
        text: The text, or a part of a document's text.
        words: Largest number of words per window. 0: one window.
        stride: Words between the starts of two windows.
        prefix: Prefix of every window.
        shift: Start of the text in the document.
    """
    pieces = _weighted_pieces(text) if words else []
    # Number of words before each piece, followed by the total.
    words_before = list(accumulate((piece.weight for piece in pieces), initial=0))
    total_words = words_before[-1]
    if total_words <= words:
        return [Span(shift, shift + len(text), prefix)]

    spans: list[Span] = []
    # The window holds the pieces from `first` up to `end`.
    first = 0
    end = 0
    while end < len(pieces):
        # A window holds at least one piece, even if the piece alone exceeds the limit.
        fitting_end = bisect_right(words_before, words_before[first] + words) - 1
        end = max(first + 1, fitting_end)
        window_start = shift + pieces[first].start
        window_end = shift + pieces[end - 1].end
        spans.append(Span(window_start, window_end, prefix))

        # The next window starts within this one or right after it, so that no piece is skipped.
        next_first = bisect_left(words_before, words_before[first] + stride)
        first = max(first + 1, min(end, next_first))
    return spans


def _weighted_pieces(text: str) -> list[_Piece]:
    """Split a text into words with weights: a word of many tokens counts as several words.

    An ordinary word has about 4/3 tokens. Words of addresses, tables, code and rare scripts have
    many more. Without weights, windows of such texts would exceed `encoder.max_tokens`. A word of
    more than `MAX_UNBROKEN_CHARACTERS` characters is cut.

    >>> [tuple(piece) for piece in _weighted_pieces("see https://example.org/a/long/path")]
    [(0, 3, 1), (4, 35, 10)]
    """
    pieces = []
    for word_start, word_end in word_spans(text):
        for start in range(word_start, word_end, MAX_UNBROKEN_CHARACTERS):
            end = min(start + MAX_UNBROKEN_CHARACTERS, word_end)
            tokens = len(TOKEN.findall(text, start, end))
            pieces.append(_Piece(start, end, max(1, 3 * tokens // 4)))
    return pieces


def _line_spans(text: str) -> list[Span]:
    """Return each line after the first, with the first line as prefix.

    This suits documents that are lists: the first line names the subject, and each further line is
    one item.

    >>> text = "Lists files.\\nls -a\\n\\nls -l"
    >>> [span.read(text) for span in _line_spans(text)]
    ['Lists files.\\nls -a', 'Lists files.\\nls -l']
    """
    first_line = None
    spans: list[Span] = []
    start = 0
    for line in text.split("\n"):
        if line.strip():
            if first_line is None:
                first_line = line
            else:
                spans.append(Span(start, start + len(line), f"{first_line}\n"))
        # The next line starts after the line feed.
        start += len(line) + 1

    if not spans:
        spans.append(Span(0, len(text)))
    return spans


def _section_spans(text: str, words: int, stride: int) -> list[Span]:
    """Cut each section of a text into windows that start with the section's heading.

    A heading that no text follows is put before the next section that has text.

    >>> text = "Intro.\\n\\n# A\\n\\n## B\\n\\none two three"
    >>> [span.read(text) for span in _section_spans(text, words=2, stride=2)]
    ['Intro.', '# A\\n\\n## B\\n\\none two', '# A\\n\\n## B\\n\\nthree']
    """
    spans: list[Span] = []
    # Headings that followed the last section with text.
    open_headings: list[re.Match[str]] = []
    for section in _split_at_headings(text):
        if section.heading is not None:
            open_headings.append(section.heading)

        body = text[section.start : section.end].strip()
        if not body:
            continue
        prefix = "".join(f"{heading[0]}\n\n" for heading in open_headings)
        body_start = text.index(body, section.start)
        spans.extend(windows(body, words, stride, prefix, body_start))
        open_headings.clear()

    # Headings at the end of the text stay searchable.
    if open_headings:
        spans.append(Span(open_headings[0].start(), len(text)))
    if not spans:
        spans.append(Span(0, len(text)))
    return spans


def _split_at_headings(text: str) -> list[_Section]:
    """Return the text before the first heading, and the section of each heading.

    A section ends at the next heading of any level. The text before the first heading may be empty.
    """
    headings = list(HEADING.finditer(text))
    starts = [heading.start() for heading in headings]
    # Each section ends where the next heading starts.
    ends = [*starts, len(text)]
    sections = [_Section(None, 0, ends[0])]
    for heading, end in zip(headings, ends[1:], strict=True):
        sections.append(_Section(heading, heading.end(), end))
    return sections


def section_at(text: str, position: int) -> str | None:
    """Return the nearest heading above a position of a text, or None.

    >>> section_at("# A\\n\\n## B\\n\\none two", 12), section_at("one two", 0)
    ('B', None)
    """
    headings = [heading for heading in HEADING.finditer(text) if heading.start() <= position]
    if not headings:
        return None
    return headings[-1][2].strip()


def passage_spans(text: str, words: int, stride: int, by: Cut) -> list[Span]:
    """Return the spans of a text's passages, at least one.

    Args:
        text: The document's text.
        words: Largest number of words per passage; unused for lines. 0: no cut into windows.
        stride: Words between the starts of two windows.
        by: Where passages are cut, see `PassageSettings`.
    """
    if by == "lines":
        return _line_spans(text)
    if by == "sections":
        return _section_spans(text, words, stride)
    return windows(text, words, stride)


def cut_passages(text: str, words: int, stride: int, by: Cut = "words") -> list[str]:
    """Return the texts of a document's passages, at least one; see `passage_spans`.

    Windows hold at most `words` words and start every `stride` words, until one reaches the end of
    the text. Every word is in a window. With `words` = 0 the text is one passage.

    >>> cut_passages("a b c d e f g", words=3, stride=2)
    ['a b c', 'c d e', 'e f g']
    """
    return [span.read(text) for span in passage_spans(text, words, stride, by)]


def passage_rows(documents: Iterable[Document], settings: PassageSettings) -> list[dict[str, Any]]:
    """Return the rows of the passages table, in the order of the documents.

    The column `ordinal` counts a document's passages from 0.
    """
    rows = []
    for document in documents:
        passages = cut_passages(document.text, settings.words, settings.stride, settings.cut)
        for ordinal, text in enumerate(passages):
            row = {
                "document_id": document.document_id,
                "ordinal": ordinal,
                "title": document.title,
                "text": text,
            }
            rows.append(row)
    return rows


@dataclass(frozen=True)
class TextRules:
    """The settings of a build that decide how a document's text becomes passages.

    The encoder also cuts each passage after `encoder.max_tokens` tokens.

    Attributes:
        include_title: Whether a passage begins with the title; the setting `encoder.include_title`.
        words: Largest number of words of a passage; the setting `passages.words`.
        stride: Words between the starts of two passages; the setting `passages.stride`.
        cut: Where passages are cut; the setting `passages.cut`.

    >>> TextRules(include_title=True, words=2, stride=1).passages("T", "a b c")
    ['T a b', 'T b c']
    """

    include_title: bool
    words: int
    stride: int
    cut: Cut = "words"

    def passages(self, title: str, text: str) -> list[str]:
        """Return the texts of a document's passages, with the title if the rules include it.

        They equal the texts that `passage_texts` returns for a corpus.
        """
        passages = cut_passages(text, self.words, self.stride, self.cut)
        if not self.include_title:
            return passages
        return [f"{title} {passage}".strip() for passage in passages]

    def passage_spans(self, text: str) -> list[Span]:
        """Return the spans of a document's passages in its text."""
        return passage_spans(text, self.words, self.stride, self.cut)
