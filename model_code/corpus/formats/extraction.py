"""The result of reading a file, and the check that no word of the file was lost.

The check compares the text that a reader returned with a crude list of all the text in the file.
The crude list is made independently of the reader. It holds all text nodes of XML or HTML, or all
words of a Markdown source. A word that is only in the crude list was lost by the reader.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_code.corpus.formats.character_sets import DecodedText
from model_code.corpus.reading_notes import NoteKind

# Letters and digits. An underscore separates words, because Markdown emphasises with it.
_WORD = re.compile(r"[^\W_]+")
# A raised number behind a word is the mark of a footnote. Behind one or two letters it is a power,
# as in km².
_RAISED_NUMBER = re.compile(r"\s*\d{1,3}(?:[,-]\d{1,3})*\s*")
_MARKED_WORD = re.compile(r"[^\W\d_]{3}\Z")
# Characters that are no part of a word: soft hyphens, and signs that Markdown puts inside of words.
_IGNORED = dict.fromkeys(map(ord, "\u00ad*`~[]"))


@dataclass(frozen=True, slots=True)
class Remark:
    """A statement that a part of a file was not read, or was read by a guess.

    It becomes a reading note, with the name of the file, which a reader of a format does not know.
    """

    kind: NoteKind
    detail: str
    share: float | None = None


@dataclass
class Extraction:
    """The result of reading a file: its text, and the title, date and fields that it states.

    Attributes:
        text: The text, with Markdown headings.
        title: The title that the file states; empty if it states none.
        date: The date that the file states, as text or as a date.
        fields: Fields that the file states.
        remarks: Statements about text that was not read, or was read by a guess.
        all_text: Crude list of all text in the file, in pieces such as paragraphs. None if there is
            no second way to read the format.
        left_out: Text that is left out on purpose, such as navigation.
        may_use_heading: Whether the first heading may become the title.
    """

    text: str
    title: str = ""
    date: Any = None
    fields: dict[str, Any] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    all_text: Sequence[str] | None = None
    left_out: list[str] = field(default_factory=list)
    may_use_heading: bool = True

    def note(self, kind: NoteKind, detail: str, share: float | None = None) -> None:
        """Add a remark, unless an equal one exists."""
        remark = Remark(kind, detail, share)
        if remark not in self.remarks:
            self.remarks.append(remark)

    def note_encoding(self, decoded: DecodedText) -> None:
        """Add a remark if the encoding of the file was guessed."""
        if decoded.is_guessed:
            self.note("encoding", f"decoded as {decoded.encoding}, which is a guess")


def measure_completeness(extraction: Extraction) -> list[Remark]:
    """Compare the text that was read with all the text in the file, word by word.

    A piece of text that occurs several times, such as the header of each section, counts once.

    Args:
        extraction: The result of reading a file.

    Returns:
        Remarks about the shares of words that are lost, and that are left out on purpose.
    """
    if extraction.all_text is None:
        return []
    expected = count_words(_different_pieces(extraction.all_text))
    total = sum(expected.values())
    if not total:
        return []

    # A difference of counters keeps the words that the first one has more often.
    field_texts = [str(value) for value in _flatten(extraction.fields)]
    date_text = str(extraction.date or "")
    found = count_words([extraction.title, extraction.text, date_text, *field_texts])
    missing = expected - found
    left_out = missing & count_words(_different_pieces(extraction.left_out))
    lost = missing - left_out

    remarks: list[Remark] = []
    lost_words = sum(lost.values())
    if lost_words:
        remarks.append(Remark("lost text", "text was not read", lost_words / total))
    words_left_out = sum(left_out.values())
    if words_left_out:
        detail = "hidden text and navigation were left out"
        remarks.append(Remark("left out", detail, words_left_out / total))
    return remarks


def separate_raised_text(text: str, preceding: str) -> str:
    """Return raised text, with blanks around it if it is the mark of a footnote behind a word.

    Args:
        text: The raised text.
        preceding: The text directly before it.

    >>> separate_raised_text("7", "the weir"), separate_raised_text("2", "40 km")
    (' 7 ', '2')
    """
    is_number = _RAISED_NUMBER.fullmatch(text) is not None
    if is_number and _MARKED_WORD.search(preceding[-3:]) is not None:
        return f" {text} "
    return text


def _different_pieces(pieces: Iterable[str]) -> Iterable[str]:
    """Return the distinct pieces of text, with normalised blanks."""
    return dict.fromkeys(" ".join(piece.split()) for piece in pieces)


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Count words without regard to case, and with Unicode normalised to NFKC.

    >>> sorted(count_words(["A caf\\u00e9, a cafe\\u0301"]).items())
    [('a', 2), ('café', 2)]
    """
    counts: Counter[str] = Counter()
    for text in texts:
        normalised = unicodedata.normalize("NFKC", text.translate(_IGNORED)).casefold()
        counts.update(_WORD.findall(normalised))
    return counts


def _flatten(value: Any) -> Iterable[Any]:
    """Yield the keys and values inside of nested mappings and lists."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            yield from item.keys()
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
        else:
            yield item
