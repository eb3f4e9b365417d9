"""Long documents as overlapping passages: each is ranked by its best one; ids and metrics stay per document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from model_code.corpus.settings import PassageSettings
from model_code.documents import Document
from model_code.words import spans


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


def cut(text: str, words: int, stride: int, by: Literal["words", "lines"]) -> list[str]:
    """The passages of a text, at least one: its lines, or windows of `words` words; see `PassageSettings`."""
    return lines(text) if by == "lines" else windows(text, words, stride)


def passage_rows(documents: Iterable[Document], settings: PassageSettings) -> list[dict[str, Any]]:
    """The rows of the passages table, in the order of the documents; `ordinal` counts a document's passages from 0."""
    return [
        {"document_id": document.document_id, "ordinal": ordinal, "title": document.title, "text": text}
        for document in documents
        for ordinal, text in enumerate(cut(document.text, settings.words, settings.stride, settings.cut))
    ]
