"""Read XLSX with openpyxl: one section per sheet, and one line per row."""

from __future__ import annotations

import datetime
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from model_code.corpus.formats.archives import Archive, TextNames, list_text
from model_code.corpus.formats.docx import note_embedded_files
from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.office_xml import (
    CORE_PROPERTIES,
    OOXML_NAMES,
    OOXML_TEXT,
    read_blocks,
    read_core_properties,
)
from model_code.corpus.rows import RowError

# Most cells of all sheets, including empty ones. A cell in the last column makes a row of 16,384
# cells.
MAX_CELLS = 5_000_000

# Most characters of the texts of all cells. Many cells may share one text.
MAX_CHARACTERS = 40_000_000

_WORKBOOK = "xl/workbook.xml"
_STRING_PART = re.compile(r"xl/(?:sharedStrings|worksheets/[\w-]+)\.xml")
# Text beside the cells: text boxes, charts, diagrams and comments.
_SIDE_PART = re.compile(
    r"xl/(?:drawings/drawing|charts/chart|diagrams/data|threadedComments/threadedComment"
    r"|comments/?comment|comments)[\w-]*\.xml"
)
# A crude list of all text shows whether the reader lost some. It holds only the strings of a
# workbook, because a date is stored as a number and would never match the text.
_STRING_TEXT = TextNames(
    counted=frozenset(("t",)), skipped=frozenset(("rPh",)), blocks=frozenset(("si", "is"))
)
# Headers and footers of the pages on which a sheet is printed.
_PAGE_TEXT_MARK = b"<headerFooter"
_PAGE_TEXT_NAMES = frozenset(
    ["oddHeader", "oddFooter", "evenHeader", "evenFooter", "firstHeader", "firstFooter"]
)
_PAGE_TEXT = TextNames(counted=_PAGE_TEXT_NAMES, blocks=_PAGE_TEXT_NAMES)
# Codes in a header: a font, a size, a colour, and fields and places such as "&P" and "&C".
_PAGE_CODE = re.compile(r"&(?:\"[^\"]*\"|\d+|K[\dA-F]{6}|K\d\d[+-]\d{3}|[A-Z])", re.I)
_SHEET_PART = re.compile(r"xl/worksheets/[\w-]+\.xml")
# A cell with a formula and without its result.
_OPEN_FORMULA = re.compile(
    rb"<c\b[^>]*>\s*<f\b(?:[^>]*/>|[^>]*>[^<]*</f>)\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>"
)


def read_xlsx(data: bytes) -> Extraction:
    """Read a workbook: one section per sheet, then charts, comments and other side parts.

    If the sheets are damaged, only the texts of cells are read, because they are stored separately.

    Raises:
        RowError: If the file is not a workbook, or is not safe to read.
    """
    archive = Archive(data)
    # The number of XML elements is not limited, because the library reads sheets as a stream.
    archive.check_all_xml(max_elements=None)
    side_parts = [name for name in archive.names if _SIDE_PART.fullmatch(name)]
    damaged = archive.find_damaged(side_parts)
    side_parts = [name for name in side_parts if name not in damaged]
    string_parts = [name for name in archive.names if _STRING_PART.fullmatch(name)]
    cell_strings = list_text(archive, string_parts, _STRING_TEXT)
    if _WORKBOOK not in archive:
        raise RowError("unreadable file", "the archive holds no workbook")

    fault: str | None = None
    try:
        sections = _read_sheets(_without_unreadable_properties(archive, data))
    except RowError:
        raise
    except Exception as error:
        # The library raises errors of any kind for faults that reading can do without, such as a
        # style that is not defined or a sheet that holds an empty chart.
        fault = type(error).__name__
        sections = ["\n".join(cell_strings)]
    for part in side_parts:
        blocks = read_blocks(archive.parse(part), OOXML_NAMES)
        if blocks:
            sections.append("\n".join(blocks))

    page_texts = _read_page_texts(archive)
    if page_texts:
        sections.append("\n".join(page_texts))

    extraction = Extraction("\n\n".join(sections), may_use_heading=False)
    extraction.all_text = [*cell_strings, *list_text(archive, side_parts, OOXML_TEXT)]
    read_core_properties(archive, extraction)
    _note_open_formulas(archive, extraction)
    note_embedded_files(archive, extraction)
    for part in damaged:
        extraction.note("unread part", f"the part {part} is damaged")
    if fault is not None:
        detail = f"the sheets are damaged ({fault}); only their texts are read, and no numbers"
        extraction.note("unread part", detail)
    return extraction


def _without_unreadable_properties(archive: Archive, data: bytes) -> bytes:
    """Return a workbook without the part with its properties, if the library cannot read it.

    The library reads no sheet of a workbook whose properties are damaged, such as an invalid date.
    """
    from openpyxl.packaging.core import DocumentProperties
    from openpyxl.xml.functions import fromstring

    if CORE_PROPERTIES not in archive:
        return data
    try:
        DocumentProperties.from_tree(fromstring(archive.read(CORE_PROPERTIES)))
        return data
    except Exception:
        # The library raises errors of any kind for damaged properties. `read_core_properties` notes
        # the damage.
        return archive.copy_without(CORE_PROPERTIES)


def _read_sheets(data: bytes) -> list[str]:
    """Return a section with a heading for each sheet that is not empty."""
    from openpyxl import load_workbook

    sections: list[str] = []
    size = _TextSize()
    workbook = load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    for sheet in workbook.worksheets:
        lines = list(_sheet_lines(sheet, size))
        if lines:
            sections.append("\n".join([f"## {sheet.title}\n", *lines]))
    workbook.close()
    return sections


@dataclass
class _TextSize:
    """The size of the sheets of a workbook that were read so far.

    Attributes:
        cells: Number of cells.
        characters: Number of characters of the texts of cells.
    """

    cells: int = 0
    characters: int = 0

    def add(self, row: Sequence[Any]) -> None:
        """Add the cells of a row.

        Raises:
            RowError: If the workbook exceeds a limit.
        """
        # An empty row counts as well, so that a sheet of empty rows ends, too.
        self.cells += max(1, len(row))
        for value in row:
            if isinstance(value, str):
                self.characters += len(value)
        if self.cells > MAX_CELLS:
            raise RowError("huge file", f"its sheets have more than {MAX_CELLS:,} cells")
        if self.characters > MAX_CHARACTERS:
            raise RowError("huge file", f"its cells have more than {MAX_CHARACTERS:,} characters")


def _sheet_lines(sheet: Any, size: _TextSize) -> Iterator[str]:
    """Yield the rows of a sheet that are not empty, each as one line.

    Args:
        sheet: The sheet.
        size: Size of the sheets before. The rows of this sheet are added.

    Raises:
        RowError: If the workbook exceeds a limit.
    """
    # The stated size of a sheet is often wrong.
    sheet.reset_dimensions()
    for row in sheet.iter_rows(values_only=True):
        size.add(row)
        texts = [_cell_text(value) for value in row if value is not None]
        line = " ".join(text for text in texts if text)
        if line:
            yield line


def _cell_text(value: Any) -> str:
    """Return the text of a cell. A time at midnight is a day.

    >>> _cell_text(3.0), _cell_text(datetime.datetime(2024, 5, 1)), _cell_text(" a\\nb ")
    ('3', '2024-05-01', 'a b')
    """
    if isinstance(value, datetime.datetime):
        is_day = value.time() == datetime.time()
        return value.date().isoformat() if is_day else value.isoformat(sep=" ")
    # From this size on, a float no longer holds every whole number exactly.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return " ".join(str(value).split())


def _read_page_texts(archive: Archive) -> list[str]:
    """Return the headers and footers of all sheets, each text once."""
    texts: dict[str, None] = {}
    for name in archive.names:
        if not _SHEET_PART.fullmatch(name) or _PAGE_TEXT_MARK not in archive.read(name):
            continue
        for coded_text in list_text(archive, [name], _PAGE_TEXT):
            # An ampersand is written twice. It is no code.
            parts = [_PAGE_CODE.sub(" ", part) for part in coded_text.split("&&")]
            text = " ".join("&".join(parts).split())
            if text:
                texts[text] = None
    return list(texts)


def _note_open_formulas(archive: Archive, extraction: Extraction) -> None:
    """Note the cells whose formula was never computed, so that they show nothing."""
    formulas = 0
    for name in archive.names:
        if _SHEET_PART.fullmatch(name):
            formulas += len(_OPEN_FORMULA.findall(archive.read(name)))
    if formulas:
        extraction.note("unreadable value", f"{formulas:,} cells hold formulas without a result")
