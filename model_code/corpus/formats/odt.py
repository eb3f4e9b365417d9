"""Read OpenDocument from its XML: texts (ODT), spreadsheets (ODS) and presentations (ODP).

Body, tables, footnotes, comments, text boxes, headers, speaker notes and embedded objects are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from model_code.corpus.formats.archives import Archive, list_text
from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.office_xml import (
    OPEN_DOCUMENT_NAMES,
    OPEN_DOCUMENT_TEXT,
    attribute,
    local_name,
    read_blocks,
    read_properties,
)
from model_code.corpus.rows import RowError

# Elements of a sheet and of a slide, and the class of a slide's title.
_SHEET = "table"
_SLIDE = "page"
_TITLE_CLASS = "title"
_CONTENT = "content.xml"
_STYLES = "styles.xml"
_META = "meta.xml"
_MANIFEST = "META-INF/manifest.xml"
# The elements of MathML that hold text.
_FORMULA_ELEMENTS = frozenset(("mi", "mn", "mo", "mtext", "ms"))


def read_odt(data: bytes) -> Extraction:
    """Read a text document: its body, then headers and footers, then embedded objects.

    A damaged object, such as a chart, is left out and noted.

    Raises:
        RowError: If the file is not a text document of OpenDocument, needs a password, or is not
            safe to read.
    """
    archive = _open_archive(data)
    content = archive.parse(_CONTENT)
    blocks = read_blocks(content, OPEN_DOCUMENT_NAMES, _heading_levels(content))
    if _STYLES in archive:
        # Headers and footers belong to the styles of pages.
        for block in read_blocks(archive.parse(_STYLES), OPEN_DOCUMENT_NAMES):
            if block not in blocks:
                blocks.append(block)

    text_parts = [part for part in (_CONTENT, _STYLES) if part in archive]
    return _finish(archive, blocks, text_parts)


def read_ods(data: bytes) -> Extraction:
    """Read a spreadsheet, with a section for each sheet.

    Raises:
        RowError: If the file is not a spreadsheet of OpenDocument, needs a password, or is not safe
            to read.
    """
    archive = _open_archive(data)
    blocks: list[str] = []
    for sheet in _sections(archive.parse(_CONTENT), _SHEET):
        rows = read_blocks(sheet, OPEN_DOCUMENT_NAMES)
        if rows:
            blocks.append(f"\n## {attribute(sheet, 'name')}\n")
            blocks.extend(rows)
    return _finish(archive, blocks, [_CONTENT])


def read_odp(data: bytes) -> Extraction:
    """Read a presentation, with a section for each slide and its notes.

    Raises:
        RowError: If the file is not a presentation of OpenDocument, needs a password, or is not
            safe to read.
    """
    archive = _open_archive(data)
    blocks: list[str] = []
    for number, slide in enumerate(_sections(archive.parse(_CONTENT), _SLIDE), 1):
        slide_blocks = read_blocks(slide, OPEN_DOCUMENT_NAMES)
        title = _slide_title(slide)
        if title in slide_blocks:
            slide_blocks.remove(title)
        heading = title or f"Slide {number}"
        blocks.append(f"\n## {heading}\n")
        blocks.extend(slide_blocks)
    return _finish(archive, blocks, [_CONTENT])


def _open_archive(data: bytes) -> Archive:
    """Open a file of OpenDocument.

    Raises:
        RowError: If the file is not of OpenDocument, needs a password, or is not safe to read.
    """
    archive = Archive(data)
    if _CONTENT not in archive:
        raise RowError("unreadable file", "the archive holds no OpenDocument text")
    _require_no_password(archive)
    return archive


def _finish(archive: Archive, blocks: list[str], text_parts: list[str]) -> Extraction:
    """Append the text of embedded objects, and read the title and the date.

    Args:
        archive: The file.
        blocks: The paragraphs and rows of its content.
        text_parts: The parts whose text should be in the blocks.
    """
    objects = [name for name in archive.names if name.endswith(f"/{_CONTENT}")]
    damaged = archive.find_damaged(objects)
    for name in objects:
        if name not in damaged:
            blocks.extend(_object_blocks(archive.parse(name)))

    extraction = Extraction("\n".join(blocks).strip())
    extraction.all_text = list_text(archive, text_parts, OPEN_DOCUMENT_TEXT)
    if _META in archive:
        read_properties(archive, _META, extraction)
    for name in damaged:
        extraction.note("unread part", f"the embedded {name.partition('/')[0]} is damaged")
    return extraction


def _sections(content: Any, section_name: str) -> Iterator[Any]:
    """Yield the sheets or slides of a document, in their order.

    Args:
        content: Root element of the document.
        section_name: Local name of the elements. Elements inside of another one are left out.
    """
    waiting = [content]
    while waiting:
        element = waiting.pop()
        if local_name(element) == section_name:
            yield element
        else:
            waiting.extend(reversed(list(element)))


def _slide_title(slide: Any) -> str:
    """Return the text of the title of a slide; empty if it has none."""
    for frame in slide.iter():
        if attribute(frame, "class") == _TITLE_CLASS:
            return " ".join(" ".join(read_blocks(frame, OPEN_DOCUMENT_NAMES)).split())
    return ""


def _require_no_password(archive: Archive) -> None:
    """Refuse a document that needs a password. Its manifest then states how parts are encrypted."""
    if _MANIFEST not in archive:
        return
    for element in archive.parse(_MANIFEST).iter():
        if local_name(element) == "encryption-data":
            raise RowError("unreadable file", "it needs a password")


def _object_blocks(content: Any) -> list[str]:
    """Return the text of an embedded formula, chart or sheet."""
    if local_name(content) != "math":
        return read_blocks(content, OPEN_DOCUMENT_NAMES)
    symbols: list[str] = []
    for element in content.iter():
        if local_name(element) in _FORMULA_ELEMENTS and element.text:
            symbols.append(element.text.strip())
    return ["".join(symbols)]


def _heading_levels(content: Any) -> Callable[[Any], int]:
    """Return a function that returns the heading level of a paragraph; 0 if it is not a heading.

    Headings are elements `h` with a level, and paragraphs with the style of a title.

    Args:
        content: Root element of the content.
    """
    title_styles = {"Title"}
    for style in content.iter():
        if local_name(style) == "style" and attribute(style, "parent-style-name") == "Title":
            title_styles.add(attribute(style, "name"))

    def heading_level(paragraph: Any) -> int:
        if local_name(paragraph) == "h":
            level = attribute(paragraph, "outline-level")
            has_level = level.isdecimal() and int(level) > 0
            return int(level) if has_level else 1
        if attribute(paragraph, "style-name") in title_styles:
            return 1
        return 0

    return heading_level
