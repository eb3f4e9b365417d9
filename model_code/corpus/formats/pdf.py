"""Read PDF with pypdf: one section per page, whole words at line ends, alt texts and comments."""

from __future__ import annotations

import datetime
import io
import logging
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.titles import clean_title
from model_code.corpus.rows import RowError

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader

# Most ranges of page numbers that a note lists.
MAX_LISTED_RANGES = 10

# Most elements of the structure tree that are searched for alt texts.
MAX_STRUCTURE_ELEMENTS = 20_000

# Limit of the estimated work: the sum over pages of the squared number of operators that show text.
# A usual page has some thousand operators. Reading pages up to this limit takes minutes.
MAX_WORK = 1_000_000_000
_TEXT_OPERATOR = re.compile(rb"\bT[jJ]\b")

# A word that is cut at the end of a line. The second part begins with a small letter.
_CUT_WORD = re.compile(r"([^\W\d_]+)[-\u2010\u00ad][ \t]*\n[ \t]*([^\W\d_]+)")
# Kinds of annotations whose text is shown elsewhere, or describes the place of a link.
_ANNOTATIONS_WITHOUT_TEXT = frozenset(("/Link", "/Widget", "/Popup", "/FileAttachment"))
_DATE_DIGITS = re.compile(r"D:(\d{4})(\d{2})(\d{2})(?:(\d{2})(\d{2})(\d{2}))?")
# First parts of words that keep their hyphen when their parts are joined, such as "self-test".
_HYPHENATED = frozenset(
    [
        "self",
        "non",
        "well",
        "ex",
        "all",
        "half",
        "cross",
        "anti",
        "quasi",
        "semi",
        "vice",
        "post",
        "pre",
    ]
)


def read_pdf(data: bytes) -> Extraction:
    """Read a PDF file.

    Raises:
        RowError: If the file is not a PDF file, needs a password, or has no text.
    """
    from pypdf import PdfReader

    # pypdf warns of every oddity, even one that it can read.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise RowError("unreadable file", "it needs a password")

    extraction = Extraction("", may_use_heading=False)
    pages, failed, unread = _page_texts(reader)
    if unread and not any(pages):
        raise RowError("huge file", f"{_format_pages(unread)} would take too long to read")
    if not any(pages):
        raise RowError(
            "empty text",
            f"no page of {len(pages):,} has a text layer: scanned pages need text recognition "
            "first",
        )
    skipped = {*failed, *unread}
    empty = [number for number, text in enumerate(pages, 1) if not text and number not in skipped]
    if empty:
        extraction.note(
            "pages without text",
            f"{_format_pages(empty)} of {len(pages)} have no text layer, as scanned pages",
        )
    if failed:
        extraction.note(
            "pages without text", f"{_format_pages(failed)} of {len(pages)} cannot be read"
        )
    if unread:
        extraction.note(
            "pages without text",
            f"{_format_pages(unread)} of {len(pages)} would take too long to read",
        )

    vocabulary = set(re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)*", "\n".join(pages).lower()))
    sections: list[str] = []
    for number, text in enumerate(pages, 1):
        if text:
            sections.append(f"# Page {number}\n\n{join_cut_words(text, vocabulary)}")
    additions = _form_texts(reader, extraction)
    additions.extend(_alt_texts(reader, extraction))
    additions.extend(_comment_texts(reader, extraction))
    _note_attachments(reader, extraction)
    if additions:
        sections.append("\n".join(additions))
    extraction.text = "\n\n".join(sections)
    _read_metadata(reader, extraction)
    return extraction


def _page_texts(reader: PdfReader) -> tuple[list[str], list[int], list[int]]:
    """Return the text of each page, and the numbers of pages without it.

    Returns:
        The texts; the numbers of the pages that cannot be read; and the numbers of the pages that
        would take too long.
    """
    texts: list[str] = []
    failed: list[int] = []
    unread: list[int] = []
    work = 0
    for number, page in enumerate(reader.pages, 1):
        text = ""
        try:
            page_work = _text_operators(page) ** 2
            if work + page_work > MAX_WORK:
                unread.append(number)
            else:
                work += page_work
                text = page.extract_text().strip()
        except Exception:
            # Libraries raise errors of any kind for broken pages, and the others can be read.
            failed.append(number)
        texts.append(text)
    return texts, failed, unread


def _text_operators(page: PageObject) -> int:
    """Return the number of operators of a page that show text.

    The time to read a page grows with the square of this number.
    """
    contents = page.get_contents()
    if contents is None:
        return 0
    return len(_TEXT_OPERATOR.findall(contents.get_data()))


def join_cut_words(text: str, vocabulary: set[str] | None = None) -> str:
    """Join words that are cut at the end of a line.

    A hyphen stays if the text has the word with its hyphen elsewhere, or if the second part begins
    with a capital.

    Args:
        text: The text of a page.
        vocabulary: Words of the document in small letters.

    >>> join_cut_words("an extraordi-\\nnary event, Anglo-\\nSaxon")
    'an extraordinary event, Anglo-Saxon'
    """
    words = vocabulary or set()

    def join(match: re.Match[str]) -> str:
        first, second = match[1], match[2]
        with_hyphen = f"{first}-{second}"
        if not second[0].islower():
            return with_hyphen
        if "\u00ad" in match[0]:
            return first + second
        is_known = with_hyphen.lower() in words and (first + second).lower() not in words
        if is_known or first.lower() in _HYPHENATED:
            return with_hyphen
        return first + second

    # A word may be cut twice, at the ends of two lines.
    return _CUT_WORD.sub(join, _CUT_WORD.sub(join, text))


def _format_pages(numbers: Sequence[int]) -> str:
    """Return page numbers as ranges.

    >>> _format_pages([2, 3, 4, 7])
    'pages 2-4, 7'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts: list[str] = []
    for first, last in ranges[:MAX_LISTED_RANGES]:
        texts.append(str(first) if first == last else f"{first}-{last}")
    unit = "page" if len(numbers) == 1 else "pages"
    more = " and more" if len(ranges) > MAX_LISTED_RANGES else ""
    return f"{unit} {', '.join(texts)}{more}"


def _read_metadata(reader: PdfReader, extraction: Extraction) -> None:
    """Set title and date. A value that cannot be read is left out and noted."""
    try:
        metadata = reader.metadata
    except Exception:
        metadata = None
        extraction.note("unreadable value", "its properties cannot be read")
    if not metadata:
        return
    try:
        extraction.title = clean_title(str(metadata.title or ""))
    except Exception:
        extraction.note("unreadable value", "its title cannot be read")
    try:
        created = metadata.creation_date
        extraction.date = None if created is None else created.isoformat()
    except Exception:
        _read_raw_date(str(metadata.get("/CreationDate")), extraction)


def _read_raw_date(raw_date: str, extraction: Extraction) -> None:
    """Set the date from the digits of a date with a faulty time zone, as LibreOffice writes it."""
    digits = _DATE_DIGITS.match(raw_date)
    try:
        numbers = [int(number) for number in digits.groups() if number] if digits else []
        extraction.date = datetime.datetime(*numbers).isoformat()
    except (TypeError, ValueError):
        extraction.note("unreadable value", f"the date {raw_date[:40]!r} is no date")


def _form_texts(reader: PdfReader, extraction: Extraction) -> list[str]:
    """Return the texts that were filled into the form."""
    try:
        fields = reader.get_form_text_fields()
    except Exception as error:
        extraction.note("unread part", f"the form cannot be read: {type(error).__name__}")
        return []
    texts = [str(value).strip() for value in fields.values() if value]
    return [text for text in texts if text]


def _comment_texts(reader: PdfReader, extraction: Extraction) -> list[str]:
    """Return the texts that people wrote on the pages, such as comments and text boxes."""
    texts: list[str] = []
    try:
        for page in reader.pages:
            for reference in page.get("/Annots") or ():
                annotation = reference.get_object()
                contents = str(annotation.get("/Contents") or "").strip()
                if contents and annotation.get("/Subtype") not in _ANNOTATIONS_WITHOUT_TEXT:
                    texts.append(contents)
    except Exception as error:
        extraction.note("unread part", f"comments cannot be read: {type(error).__name__}")
    return texts


def _note_attachments(reader: PdfReader, extraction: Extraction) -> None:
    """Note the files inside of the file, which are not read."""
    try:
        names = list(reader.attachments)
    except Exception as error:
        extraction.note("unread part", f"attachments cannot be read: {type(error).__name__}")
        return
    for name in names:
        extraction.note("unread part", f"the attachment {name} is not read")


def _alt_texts(reader: PdfReader, extraction: Extraction) -> list[str]:
    """Return the alt texts of pictures, which the structure tree holds."""
    texts: list[str] = []
    try:
        for element in _structure_elements(reader):
            alt_text = str(element.get("/Alt", "")).strip()
            if alt_text:
                texts.append(alt_text)
    except Exception as error:
        extraction.note("unread part", f"alt texts cannot be read: {type(error).__name__}")
    return texts


def _structure_elements(reader: PdfReader) -> Iterator[dict[str, Any]]:
    """Yield the elements of the structure tree in their order; none if there is no tree."""
    pending: list[Any] = [reader.root_object.get("/StructTreeRoot")]
    seen: set[int] = set()
    for _ in range(MAX_STRUCTURE_ELEMENTS):
        if not pending:
            return
        element = pending.pop()
        if element is not None:
            element = element.get_object()
        if isinstance(element, list):
            pending.extend(reversed(element))
        elif isinstance(element, dict) and id(element) not in seen:
            seen.add(id(element))
            yield element
            if "/K" in element:
                pending.append(element["/K"])
