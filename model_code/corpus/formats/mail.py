"""Read e-mails: subject, sender, recipients, text, and attachments of plain text."""

from __future__ import annotations

import email
import email.policy
import re
from collections import Counter
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any

from model_code.corpus.formats.character_sets import decode_text
from model_code.corpus.formats.extraction import Extraction, count_words
from model_code.corpus.formats.html import list_page_text, read_markup
from model_code.corpus.rows import RowError

# Deepest nesting of the parts of a mail, in levels. Deeper parts are not read.
MAX_LEVELS = 30

# Most parts of a mail. Python's parser needs a millisecond for each of them.
MAX_PARTS = 10_000

# Python's parser compares each line with the boundary of each part around it. This limits the
# number of lines times the number of boundaries.
MAX_BOUNDARY_COMPARISONS = 30_000_000

# Characters of a header that are read. Python's parser needs some kilobytes for each word.
MAX_HEADER_CHARACTERS = 50_000

_BOUNDARY = re.compile(rb"\bboundary\s*=\s*(?:\"([^\"\r\n]*)\"|([^\s;\"]+))", re.I)
_DELIMITER = re.compile(rb"^--([^\r\n]*?)(?:--)?[ \t]*\r?$", re.M)
_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")
_HEADER_FIELDS = ("from", "to", "cc")


def read_mail(data: bytes) -> Extraction:
    """Read an e-mail: its headers become title, date and fields, and its parts become the text.

    Raises:
        RowError: If the file is not an e-mail, or is not safe to read.
    """
    _check_parts(data)
    try:
        message = email.message_from_bytes(_recode_headers(data), policy=_BoundedPolicy())
    except RecursionError:
        raise RowError("unreadable file", "its parts are nested too deep") from None
    if not isinstance(message, EmailMessage) or not message.keys():
        raise RowError("unreadable file", "it is no e-mail: it begins with no header")

    extraction = Extraction("", all_text=[], may_use_heading=False)
    extraction.title = _header(message, "subject", extraction)
    extraction.date = _date(message, extraction)
    for name in _HEADER_FIELDS:
        value = _header(message, name, extraction)
        if value:
            extraction.fields[name] = value

    part_texts = _read_parts(message, extraction)
    extraction.text = "\n\n".join(part.text for part in part_texts)
    extraction.all_text = [extraction.title]
    for part in part_texts:
        extraction.all_text.extend(part.all_text)
    return extraction


class _BoundedPolicy(email.policy.EmailPolicy):
    """The rules by which Python reads mails, except that long headers are cut."""

    def header_fetch_parse(self, name: str, value: str) -> Any:
        """Return a header as an object, as the library calls this method for each access."""
        return super().header_fetch_parse(name, value[:MAX_HEADER_CHARACTERS])


def _check_parts(data: bytes) -> None:
    """Refuse a mail that Python's parser would read for minutes.

    Raises:
        RowError: If the mail has too many parts, or too many lines for its boundaries.
    """
    boundaries: set[bytes] = set()
    for quoted, plain in _BOUNDARY.findall(data):
        boundaries.add(quoted or plain)
    parts = sum(delimiter in boundaries for delimiter in _DELIMITER.findall(data))
    if parts > MAX_PARTS:
        raise RowError("huge file", f"it has more than {MAX_PARTS:,} parts")
    if len(boundaries) * data.count(b"\n") > MAX_BOUNDARY_COMPARISONS:
        raise RowError("huge file", f"it has {len(boundaries):,} boundaries and too many lines")


def _recode_headers(data: bytes) -> bytes:
    """Return a mail whose headers are UTF-8. Old programs wrote them in other encodings."""
    end = _END_OF_HEADERS.search(data)
    if end is None:
        return data
    headers = data[: end.start()]
    try:
        recoded = decode_text(headers).text.encode("utf-8")
    except RowError:
        return data
    return recoded + data[end.start() :]


def _header(message: EmailMessage, name: str, extraction: Extraction) -> str:
    """Return a header on one line; empty, with a note, if it cannot be read."""
    for raw_name, raw_value in message.raw_items():
        if raw_name.lower() == name and len(raw_value) > MAX_HEADER_CHARACTERS:
            detail = f"only {MAX_HEADER_CHARACTERS:,} characters of the header {name} are read"
            extraction.note("unreadable value", detail)
    try:
        return " ".join(str(message.get(name, "")).split())
    except Exception:
        # Python's parser of headers raises errors of any kind for malformed ones.
        extraction.note("unreadable value", f"the header {name} cannot be read")
        return ""


def _date(message: EmailMessage, extraction: Extraction) -> str | None:
    """Return the date of a mail in ISO format, or as it is written if it is not a valid date."""
    value = _header(message, "date", extraction)
    if not value:
        return None
    try:
        return parsedate_to_datetime(value).isoformat()
    except (ValueError, TypeError, IndexError):
        return value


@dataclass
class _PartText:
    """The text of a part of a mail.

    Attributes:
        text: The text that the reader extracted.
        all_text: All text in the part, found with a simpler method, to check the reader.
    """

    text: str
    all_text: list[str]


def _read_parts(part: EmailMessage, extraction: Extraction, level: int = 0) -> list[_PartText]:
    """Return the texts of a part and of its inner parts.

    Of alternative forms of a text, such as plain text and HTML, only the longest is read. Other
    attachments than plain text are noted as not read.

    Args:
        part: A mail or one of its parts.
        extraction: Receives notes about parts that are not read.
        level: Depth of the part below the mail.
    """
    if level > MAX_LEVELS:
        extraction.note("unread part", f"parts nested more than {MAX_LEVELS} deep are not read")
        return []

    kind = part.get_content_type()
    if part.is_multipart():
        # The texts of each inner part.
        inner_texts: list[list[_PartText]] = []
        for inner_part in part.iter_parts():
            inner_texts.append(_read_parts(inner_part, extraction, level + 1))
        if kind == "multipart/alternative":
            return _choose_form(inner_texts)
        if kind == "message/rfc822":
            # A forwarded mail has a subject of its own.
            subject = _header(part.get_content(), "subject", extraction)
            inner_texts.insert(0, [_PartText(subject, [subject])])
        return list(chain.from_iterable(inner_texts))

    is_page = kind == "text/html" and part.get_content_disposition() != "attachment"
    # A part that claims to consist of several, but states no mark between them, is one text.
    is_undivided = kind.startswith("multipart/")
    if kind == "text/plain" or is_page or is_undivided:
        return [_part_text(part, extraction)]
    name = part.get_filename() or f"a part of the type {kind}"
    extraction.note("unread part", f"the attachment {name} is not read")
    return []


def _choose_form(forms: list[list[_PartText]]) -> list[_PartText]:
    """Choose between several forms of the same content, such as plain text and HTML.

    The form with the most words is returned. Words that only other forms have are added to its
    `all_text`, so that they count as lost text.

    Args:
        forms: The texts of each form.
    """
    # The words of each form, and their number.
    counts: list[Counter[str]] = []
    for texts in forms:
        counts.append(count_words(text.text for text in texts))
    sizes = [sum(count.values()) for count in counts]
    if not sizes or max(sizes) == 0:
        return []

    longest = sizes.index(max(sizes))
    chosen = forms[longest]
    for number, count in enumerate(counts):
        if number != longest:
            missing_words = (count - counts[longest]).elements()
            chosen[0].all_text.append(" ".join(missing_words))
    return chosen


def _part_text(part: EmailMessage, extraction: Extraction) -> _PartText:
    """Return the text of a part of a mail that is plain text or a page of HTML."""
    payload = part.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    try:
        decoded = decode_text(data, part.get_content_charset())
    except RowError as error:
        extraction.note("unread part", f"a text of the mail cannot be read: {error.detail}")
        return _PartText("", [])
    extraction.note_encoding(decoded)
    if part.get_content_type() != "text/html":
        return _PartText(decoded.text.strip(), decoded.text.split("\n"))
    page = read_markup(decoded.text)
    extraction.left_out.extend([*page.left_out, page.title])
    return _PartText(page.text, list_page_text(decoded.text))
