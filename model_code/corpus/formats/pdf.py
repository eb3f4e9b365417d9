"""Read PDF with pypdf: one section per page, whole words at line ends, alt texts and comments."""

from __future__ import annotations

import datetime
import io
import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.pdf_actual_text import ActualTextVisitor
from model_code.corpus.formats.properties import add_property
from model_code.corpus.formats.titles import clean_title
from model_code.corpus.rows import RowError
from model_code.text.documents import parse_date

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

# A word with its hyphens, such as "self-test".
_HYPHENATED_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
# A word that may be cut at the end of a line: its two parts, with a hyphen and the line end between
# them.
_CUT_WORD = re.compile(r"([^\W\d_]+)[-\u2010\u00ad][ \t]*\n[ \t]*([^\W\d_]+)")
# A word that may be cut at the end of a page, and the beginning of the next page.
_CUT_BY_PAGE = re.compile(r"[^\W\d_][-\u2010\u00ad]\Z")
_FIRST_WORD = re.compile(r"([^\W\d_]+[^\w\s]*)\s*")

# The mark of a footnote, the end of a word that it may follow, and the beginning of a word that may
# follow it. Symbols such as m² and ²³⁵U are no words.
_NOTE_MARK = re.compile(r"\d{1,3}(?:[,-]\d{1,3})*|[*\u2020\u2021\u00a7]{1,3}")
_MARKED_WORD = re.compile(r"[^\W\d_]{3}\d{0,4}[^\w\s]*\Z")
_WORD_AFTER_MARK = re.compile(r"[^\W\d_]{3}")
# A mark is smaller than this share of the letters beside it.
MAX_MARK_SIZE = 0.9

# A letter that is written from right to left, and a letter or digit that is not. A number in Arabic
# digits follows the direction of the letters before it.
_RIGHT_TO_LEFT = re.compile("[\u0590-\u065f\u066e-\u06ef\u06fa-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_LEFT_TO_RIGHT = re.compile("(?![\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff])[^\\W_]")
_ARABIC_NUMBER = re.compile("[\u0660-\u0669\u06f0-\u06f9]{2,}")
# A letter or a digit of a script that is written from right to left.
_RIGHT_TO_LEFT_SCRIPT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")

# A vowel sign of Hebrew or Arabic, and a letter of an alphabet that is written from left to right.
_VOWEL_SIGN = re.compile("[\u0591-\u05c7\u064b-\u065f\u0670]")
_LEFT_TO_RIGHT_LETTER = re.compile("(?![\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff])[^\\W\\d_]")

# A letter that a font lacks is drawn as a box. Chromium gives boxes no text, which pypdf returns as
# this sign. LibreOffice states one letter as the text of all boxes, which makes words that repeat
# one letter outside of ASCII.
_LETTER_WITHOUT_TEXT = "\0"
_REPEATED_LETTER = re.compile(r"(?<!\w)(?![\x00-\x7f])([^\W\d_])\1{2,}(?!\w)")
# A smaller share of letters in such words may be meant, as in a long cry.
MIN_REPEATED_SHARE = 0.05

# Kinds of annotations whose text is shown elsewhere, or describes the place of a link.
_ANNOTATIONS_WITHOUT_TEXT = frozenset(("/Link", "/Widget", "/Popup", "/FileAttachment"))
_DATE_DIGITS = re.compile(r"D:(\d{4})(\d{2})(\d{2})(?:(\d{2})(\d{2})(\d{2}))?")
# Characters that are no part of a title, such as the zero with which some programs end it.
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")
# Properties that describe the content.
_DESCRIBING_KEYS = ("/Subject", "/Keywords")
# The byte order marks of UTF-16, read as letters. They are left over from broken text.
_UTF16_MARKS = ("\u00fe\u00ff", "\u00ff\u00fe")
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
# Words in the middle of compounds such as "state-of-the-art". They keep the hyphen behind them.
_LINKING_WORDS = frozenset(
    [
        "and",
        "as",
        "at",
        "by",
        "for",
        "from",
        "in",
        "of",
        "off",
        "on",
        "or",
        "out",
        "over",
        "per",
        "the",
        "to",
        "up",
        "with",
    ]
)


@dataclass
class _Pages:
    """The text of each page, and the numbers of pages whose text is missing.

    Attributes:
        texts: Text of each page, in order; empty for a page without text.
        failed: Numbers of the pages that cannot be read, counted from 1.
        too_long: Numbers of the pages that would take too long to read, counted from 1.
    """

    texts: list[str] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    too_long: list[int] = field(default_factory=list)


def read_pdf(data: bytes) -> Extraction:
    """Read a PDF file: a section per page, then form fields, alt texts and comments.

    Raises:
        RowError: If the file is not a PDF file, needs a password, or has no text.
    """
    from pypdf import PdfReader

    # pypdf warns of every oddity, even one that it can read.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise RowError("unreadable file", "it needs a password")

    pages = _read_pages(reader)
    _require_text(pages)
    extraction = Extraction("", may_use_heading=False)
    _note_pages_without_text(pages, extraction)
    _note_missing_letters(pages, extraction)
    _note_uncertain_order(pages, extraction)

    vocabulary = set(_HYPHENATED_WORD.findall("\n".join(pages.texts).lower()))
    sections: list[str] = []
    for number, text in enumerate(_join_pages(pages.texts, vocabulary), start=1):
        if text:
            sections.append(f"# Page {number}\n\n{text}")

    additions = _form_texts(reader, extraction)
    additions.extend(_alt_texts(reader, extraction))
    additions.extend(_comment_texts(reader, extraction))
    if additions:
        sections.append("\n".join(additions))

    extraction.text = "\n\n".join(sections)
    _note_attachments(reader, extraction)
    _read_metadata(reader, extraction)
    return extraction


def _read_pages(reader: PdfReader) -> _Pages:
    """Read the text of all pages, until the estimated work exceeds `MAX_WORK`.

    A later page with little text may still be read after one that was too much.
    """
    pages = _Pages()
    work = 0
    for number, page in enumerate(reader.pages, start=1):
        text = ""
        try:
            page_work = _count_text_operators(page) ** 2
            if work + page_work > MAX_WORK:
                pages.too_long.append(number)
            else:
                work += page_work
                text = _page_text(page).strip()
        except Exception:
            # The library raises errors of any kind for a broken page. The other pages can still be
            # read.
            pages.failed.append(number)
        pages.texts.append(text)
    return pages


class _TextPiece(NamedTuple):
    """A piece of the text of a page, the size of its letters, and the place of the first one.

    The place is given from the left and from the bottom of the page.
    """

    text: str
    size: float
    left: float
    bottom: float


def _page_text(page: PageObject) -> str:
    """Return the text of a page, in which the marks of footnotes are words of their own."""
    pieces: list[_TextPiece] = []

    def collect(
        text: str, page_matrix: Any, text_matrix: Any, _font: Any, font_size: float
    ) -> None:
        """Keep a piece of text. The library calls this wherever the font or the place changes."""
        if text:
            size = font_size * _vertical_scale(page_matrix) * _vertical_scale(text_matrix)
            left, bottom = _place_on_page(page_matrix, text_matrix)
            pieces.append(_TextPiece(text, size, left, bottom))

    actual_texts = ActualTextVisitor(_page_fonts(page), is_kept=_is_right_to_left)
    text = page.extract_text(visitor_operand_before=actual_texts, visitor_text=collect)
    if "".join(piece.text for piece in pieces) != text:
        # The pieces are not the whole text, such as on a page with text inside of drawings.
        return text
    ordered_pieces = _order_right_to_left(_restore_numbers(pieces))
    return _separate_note_marks(_separate_words(ordered_pieces))


def _page_fonts(page: PageObject) -> Any:
    """Return the fonts of a page by name; None if it has none."""
    resources = page.get("/Resources")
    if resources is None:
        return None
    fonts = resources.get_object().get("/Font")
    return None if fonts is None else fonts.get_object()


def _is_right_to_left(text: str) -> bool:
    """Return whether a text is of a script that is written from right to left.

    pypdf brings such letters into their order only if they are drawn letters.
    """
    return _RIGHT_TO_LEFT_SCRIPT.search(text) is not None


def _place_on_page(page_matrix: Sequence[float], text_matrix: Sequence[float]) -> list[float]:
    """Return the place of the origin of text from the left and from the bottom of the page."""
    x, y = text_matrix[4:6]
    left = x * page_matrix[0] + y * page_matrix[2] + page_matrix[4]
    bottom = x * page_matrix[1] + y * page_matrix[3] + page_matrix[5]
    return [left, bottom]


def _vertical_scale(matrix: Sequence[float]) -> float:
    """Return the factor by which a matrix of PDF, of six numbers, stretches letters vertically."""
    return math.hypot(matrix[2], matrix[3])


def _restore_numbers(pieces: Sequence[_TextPiece]) -> list[_TextPiece]:
    """Return pieces of text with the digits of each Arabic number in their order.

    pypdf reverses the signs of a piece that is written from right to left. It reverses numbers as
    well, though they are written from left to right.
    """
    restored: list[_TextPiece] = []
    is_reversed = False
    for piece in pieces:
        if _RIGHT_TO_LEFT.search(piece.text):
            is_reversed = True
        elif _LEFT_TO_RIGHT.search(piece.text):
            is_reversed = False
        text = piece.text
        if is_reversed:
            text = _ARABIC_NUMBER.sub(lambda number: number[0][::-1], text)
        restored.append(piece._replace(text=text))
    return restored


def _order_right_to_left(pieces: Sequence[_TextPiece]) -> list[_TextPiece]:
    """Return pieces of text in which runs from right to left are in reading order.

    Programs draw the pieces of such a run from left to right, and split it at vowel signs and at
    numbers. pypdf reverses the letters of each piece, but not the pieces. A run becomes one piece.
    """
    ordered: list[_TextPiece] = []
    run: list[_TextPiece] = []
    for piece in pieces:
        if run and not _continues_run(piece, run[-1]):
            ordered.extend(_join_run(run))
            run = []
        run.append(piece)
    ordered.extend(_join_run(run))
    return ordered


def _continues_run(piece: _TextPiece, previous: _TextPiece) -> bool:
    """Return whether a piece is drawn right of the previous one, in a run from right to left.

    A vowel sign may begin a little right of its letter, which is drawn next. A piece behind a gap
    is another cell of a table.
    """
    for text in (previous.text, piece.text):
        if _LEFT_TO_RIGHT.search(text) is not None:
            return False
    is_on_line = abs(piece.bottom - previous.bottom) < previous.size / 2
    is_right = piece.left > previous.left - previous.size / 4
    is_near = piece.left < _rightmost_end(previous)
    return is_on_line and is_right and is_near and "\n" not in previous.text


def _rightmost_end(piece: _TextPiece) -> float:
    """Return the place behind a piece if its letters are as wide as few letters are."""
    return piece.left + piece.size * (len(piece.text) + 1)


def _join_run(run: Sequence[_TextPiece]) -> Sequence[_TextPiece]:
    """Return the pieces of a run from right to left as one piece, in reverse order.

    Pieces without a letter of such a script are returned as they are. A line break stays at the
    end, and a blank between two pieces stays between them.
    """
    is_right_to_left = any(_is_right_to_left(piece.text) for piece in run)
    if len(run) == 1 or not is_right_to_left or "\n" in run[-1].text.rstrip("\n"):
        return run

    text = run[-1].text.rstrip("\n")
    line_break = run[-1].text[len(text) :]
    last_sign = text[-1:]
    later = run[-1].text
    for piece in reversed(run[:-1]):
        had_blank = piece.text[-1:].isspace() or later[:1].isspace()
        has_blank = text[-1:].isspace() or piece.text[:1].isspace()
        if had_blank and not has_blank:
            text += " "
        text += piece.text
        later = piece.text
    # A blank at either end keeps the run apart from the text around it.
    if run[0].text[:1].isspace():
        text = f" {text}"
    if last_sign.isspace():
        text = f"{text} "
    return [run[0]._replace(text=text + line_break)]


def _separate_words(pieces: Sequence[_TextPiece]) -> list[_TextPiece]:
    """Return pieces of text with blanks between words that are not side by side on the page.

    pypdf adds blanks only for gaps to the right. It may also put a word in one direction beside a
    word in the other direction that is elsewhere on the line.
    """
    separated: list[_TextPiece] = []
    for piece in pieces:
        if separated and _is_other_word(piece, separated[-1]):
            piece = piece._replace(text=f" {piece.text}")
        separated.append(piece)
    return separated


def _is_other_word(piece: _TextPiece, previous: _TextPiece) -> bool:
    """Return whether a piece continues the text of the previous one, but is no part of its word.

    Such a piece has the other direction, or begins left of the previous piece or behind a gap.
    Cells of a table that is written from right to left begin so, and the numbers of lines.
    """
    last = previous.text[-1:]
    first = piece.text[:1]
    if not last.isalnum() or not first.isalnum():
        return False
    is_right_to_left = _RIGHT_TO_LEFT.match(first) is not None
    if is_right_to_left != (_RIGHT_TO_LEFT.match(last) is not None):
        return True
    # The accent of a letter may be drawn a little to the left.
    is_left = piece.left < previous.left - previous.size
    # pypdf puts the blank for a gap behind a text that is written from right to left.
    is_behind_gap = is_right_to_left and piece.left > _rightmost_end(previous)
    is_on_line = abs(piece.bottom - previous.bottom) < previous.size / 2
    return is_on_line and (is_left or is_behind_gap)


def _separate_note_marks(pieces: Sequence[_TextPiece]) -> str:
    """Return the text of pieces, with blanks around the small marks of footnotes.

    Without the blanks, the raised number behind a word would become a part of the word.
    """
    parts: list[str] = []
    for number, piece in enumerate(pieces):
        text = piece.text
        if _NOTE_MARK.fullmatch(text.strip()):
            if number > 0 and _is_mark_of(piece, pieces[number - 1], _MARKED_WORD):
                text = f" {text}"
            following = pieces[number + 1 : number + 2]
            if following and _is_mark_of(piece, following[0], _WORD_AFTER_MARK, at_start=True):
                text = f"{text} "
        parts.append(text)
    return "".join(parts)


def _is_mark_of(
    mark: _TextPiece, beside: _TextPiece, word: re.Pattern[str], at_start: bool = False
) -> bool:
    """Return whether a mark is smaller than the piece beside it, which has a word there.

    Args:
        mark: The piece that may be a mark.
        beside: The piece before or after it.
        word: Pattern of the word.
        at_start: Whether the piece must begin with the word, and not just hold it.
    """
    if mark.size >= MAX_MARK_SIZE * beside.size:
        return False
    found = word.match(beside.text) if at_start else word.search(beside.text)
    return found is not None


def _require_text(pages: _Pages) -> None:
    """Refuse a file of which no page has text."""
    if any(pages.texts):
        return
    if pages.too_long:
        detail = f"{_format_pages(pages.too_long)} would take too long to read"
        raise RowError("huge file", detail)
    raise RowError(
        "empty text",
        f"no page of {len(pages.texts):,} has a text layer: scanned pages need text recognition "
        "first",
    )


def _note_pages_without_text(pages: _Pages, extraction: Extraction) -> None:
    """Note the pages that are scanned, that cannot be read, and that would take too long."""
    skipped = {*pages.failed, *pages.too_long}
    scanned: list[int] = []
    for number, text in enumerate(pages.texts, start=1):
        if not text and number not in skipped:
            scanned.append(number)

    reasons = (
        (scanned, "have no text layer, as scanned pages"),
        (pages.failed, "cannot be read"),
        (pages.too_long, "would take too long to read"),
    )
    for numbers, reason in reasons:
        if numbers:
            detail = f"{_format_pages(numbers)} of {len(pages.texts)} {reason}"
            extraction.note("pages without text", detail)


def _note_missing_letters(pages: _Pages, extraction: Extraction) -> None:
    """Note the share of letters that the fonts of the file lack, so that nobody can read them."""
    missing = 0
    repeated = 0
    letters = 0
    for number, text in enumerate(pages.texts):
        missing += text.count(_LETTER_WITHOUT_TEXT)
        repeated += sum(len(word[0]) for word in _REPEATED_LETTER.finditer(text))
        letters += sum(letter.isalpha() for letter in text)
        pages.texts[number] = text.replace(_LETTER_WITHOUT_TEXT, "\ufffd")
    letters += missing
    if repeated >= MIN_REPEATED_SHARE * letters:
        missing += repeated
    if missing:
        detail = "the fonts of the file lack letters, which cannot be read"
        extraction.note("lost text", detail, missing / letters)


def _note_uncertain_order(pages: _Pages, extraction: Extraction) -> None:
    """Note that pypdf may have put letters or words of some lines in a wrong order.

    pypdf guesses the order of letters that are drawn from right to left. It fails for vowel signs,
    which are drawn above or below their letters, and for lines in two directions.
    """
    word_count = 0
    words_with_signs = 0
    has_two_directions = False
    for line in "\n".join(pages.texts).split("\n"):
        words = line.split()
        word_count += len(words)
        if _RIGHT_TO_LEFT.search(line) is None:
            continue
        words_with_signs += sum(_VOWEL_SIGN.search(word) is not None for word in words)
        if _LEFT_TO_RIGHT_LETTER.search(line) is not None:
            has_two_directions = True

    if words_with_signs:
        detail = "words with vowel signs may be cut or in a wrong order"
        extraction.note("lost text", detail, words_with_signs / word_count)
    if has_two_directions:
        detail = "words in lines of two directions may be in a wrong order"
        extraction.note("unreadable value", detail)


def _count_text_operators(page: PageObject) -> int:
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
    with a capital. It also stays behind a first part such as "self", behind a single letter, and in
    a compound such as "state-of-the-art".

    Args:
        text: The text of a page.
        vocabulary: Words of the document in small letters.

    >>> join_cut_words("an extraordi-\\nnary event, Anglo-\\nSaxon")
    'an extraordinary event, Anglo-Saxon'
    """
    words = vocabulary or set()

    def join(match: re.Match[str]) -> str:
        """Return the two parts of a word, with or without a hyphen between them."""
        first, second = match.groups()
        joined = first + second
        with_hyphen = f"{first}-{second}"
        if not second[0].islower():
            return with_hyphen
        # A soft hyphen is only shown where a word is cut.
        if "\u00ad" in match[0]:
            return joined
        occurs_with_hyphen = with_hyphen.lower() in words and joined.lower() not in words
        follows_hyphen = match.string[match.start() - 1 : match.start()] == "-"
        is_in_compound = follows_hyphen and first.lower() in _LINKING_WORDS
        has_own_hyphen = len(first) == 1 or first.lower() in _HYPHENATED
        if occurs_with_hyphen or has_own_hyphen or is_in_compound:
            return with_hyphen
        return joined

    # A word may be cut twice, at the ends of two lines. One pass joins only one of the cuts,
    # because matches do not overlap.
    joined_once = _CUT_WORD.sub(join, text)
    return _CUT_WORD.sub(join, joined_once)


def _join_pages(texts: Sequence[str], vocabulary: set[str]) -> list[str]:
    """Return the texts of pages with whole words.

    The second part of a word that is cut at the end of a page moves to that page.

    Args:
        texts: Text of each page.
        vocabulary: Words of the document in small letters.
    """
    joined = [join_cut_words(text, vocabulary) for text in texts]
    for number in range(len(joined) - 1):
        if _CUT_BY_PAGE.search(joined[number]) is None:
            continue
        first_word = _FIRST_WORD.match(joined[number + 1])
        if first_word is not None and first_word[1][0].islower():
            cut_text = f"{joined[number]}\n{first_word[1]}"
            joined[number] = join_cut_words(cut_text, vocabulary)
            joined[number + 1] = joined[number + 1][first_word.end() :]
    return joined


def _format_pages(numbers: Sequence[int]) -> str:
    """Return page numbers in ascending order as ranges.

    >>> _format_pages([2, 3, 4, 7])
    'pages 2-4, 7'
    """
    # The first and the last page of each range.
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts: list[str] = []
    for first, last in ranges[:MAX_LISTED_RANGES]:
        text = str(first) if first == last else f"{first}-{last}"
        texts.append(text)
    unit = "page" if len(numbers) == 1 else "pages"
    more = " and more" if len(ranges) > MAX_LISTED_RANGES else ""
    return f"{unit} {', '.join(texts)}{more}"


def _read_metadata(reader: PdfReader, extraction: Extraction) -> None:
    """Set title and date. A value that cannot be read is left out and noted.

    The library raises errors of any kind for damaged values.
    """
    try:
        metadata = reader.metadata
    except Exception:
        metadata = None
        extraction.note("unreadable value", "its properties cannot be read")
    if not metadata:
        return
    _read_title(metadata, extraction)
    _read_date(metadata, extraction)
    for key in _DESCRIBING_KEYS:
        _read_description(metadata, key, extraction)


def _read_title(metadata: Any, extraction: Extraction) -> None:
    """Set the title, unless it is another object than a text, or a text in a broken encoding."""
    try:
        title = metadata.title or ""
    except Exception:
        title = None
    if isinstance(title, str) and not title.startswith(_UTF16_MARKS):
        extraction.title = clean_title(_CONTROL_CHARACTER.sub(" ", title))
    else:
        extraction.note("unreadable value", "its title cannot be read")


def _read_description(metadata: Any, key: str, extraction: Extraction) -> None:
    """Add a property that describes the content to the fields."""
    name = key.removeprefix("/").lower()
    try:
        value = metadata.get(key)
    except Exception:
        # The library raises errors of any kind for damaged values.
        extraction.note("unreadable value", f"its {name} cannot be read")
        return
    if isinstance(value, str) and not value.startswith(_UTF16_MARKS):
        add_property(extraction, name, _CONTROL_CHARACTER.sub(" ", value))


def _read_date(metadata: Any, extraction: Extraction) -> None:
    """Set the date of creation. The library reads impossible days as other days."""
    raw_date = str(metadata.get("/CreationDate"))
    try:
        created = metadata.creation_date
    except Exception:
        _read_raw_date(raw_date, extraction)
        return
    if created is None:
        return
    digits = _DATE_DIGITS.match(raw_date)
    stated_day = None if digits is None else "".join(digits.groups()[:3])
    if stated_day in (None, created.strftime("%Y%m%d")):
        extraction.date = created.isoformat()
    else:
        _read_raw_date(raw_date, extraction)


def _read_raw_date(raw_date: str, extraction: Extraction) -> None:
    """Set the date from an ISO date, or from the digits of a date with a faulty time zone.

    LibreOffice writes faulty time zones.

    Args:
        raw_date: The date as the file states it, such as "D:20240501120000+02'00".
        extraction: Receives the date, or a note if the digits are no date.
    """
    if parse_date(raw_date) is not None:
        extraction.date = raw_date
        return
    match = _DATE_DIGITS.match(raw_date)
    # Year, month and day, and perhaps hour, minute and second.
    digits = match.groups() if match is not None else ()
    numbers = [int(number) for number in digits if number]
    try:
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
    """Yield the elements of the structure tree in their order; none if there is no tree.

    The structure tree describes headings, paragraphs and pictures for readers with disabilities.
    The entry `/K` of an element holds its children. The number of steps is bounded, and elements
    are yielded once, because a damaged tree may have cycles.
    """
    pending: list[Any] = [reader.root_object.get("/StructTreeRoot")]
    seen: set[int] = set()
    for _ in range(MAX_STRUCTURE_ELEMENTS):
        if not pending:
            return
        element = pending.pop()
        if element is not None:
            element = element.get_object()
        if isinstance(element, list):
            # The first child must be the last of the pending elements, which is taken next.
            pending.extend(reversed(element))
        elif isinstance(element, dict) and id(element) not in seen:
            seen.add(id(element))
            yield element
            if "/K" in element:
                pending.append(element["/K"])
