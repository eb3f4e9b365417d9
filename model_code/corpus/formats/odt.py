"""Read OpenDocument from its XML: texts (ODT), spreadsheets (ODS) and presentations (ODP).

Body, tables, footnotes, comments, text boxes, headers, speaker notes and embedded objects are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from model_code.corpus.formats.archives import Archive, TextNames, list_text
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
# In slides, a link may be the mark of a footnote, which is no part of the word before it.
_SLIDE_NAMES = replace(OPEN_DOCUMENT_NAMES, spaced=OPEN_DOCUMENT_NAMES.spaced | {"a"})
_SLIDE_TEXT = replace(OPEN_DOCUMENT_TEXT, gaps=OPEN_DOCUMENT_TEXT.gaps | {"a"})
_SLIDE_DECLARATIONS = frozenset(("header-decl", "footer-decl"))
# Elements of the headers and footers of a sheet whose text depends on the page or the time.
_PAGE_FIELDS = frozenset(
    ("sheet-name", "page-number", "page-count", "date", "time", "file-name", "title")
)
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
    left_out: list[str] = []
    blocks = read_blocks(
        content, OPEN_DOCUMENT_NAMES, _heading_levels(content), _hidden_elements(content), left_out
    )
    has_styles = archive.has_readable(_STYLES)
    if has_styles:
        # Headers and footers belong to the styles of pages.
        for block in read_blocks(archive.parse(_STYLES), OPEN_DOCUMENT_NAMES):
            if block not in blocks:
                blocks.append(block)

    text_parts = [_CONTENT, _STYLES] if has_styles else [_CONTENT]
    extraction = _finish(archive, blocks, text_parts)
    extraction.left_out = left_out
    return extraction


def read_ods(data: bytes) -> Extraction:
    """Read a spreadsheet, with a section for each sheet.

    Raises:
        RowError: If the file is not a spreadsheet of OpenDocument, needs a password, or is not safe
            to read.
    """
    archive = _open_archive(data)
    content = archive.parse(_CONTENT)
    blocks: list[str] = []
    for sheet in _sections(content, _SHEET):
        rows = read_blocks(sheet, OPEN_DOCUMENT_NAMES)
        if rows:
            blocks.append(f"\n## {attribute(sheet, 'name')}\n")
            blocks.extend(rows)
    if archive.has_readable(_STYLES):
        for block in _page_texts(content, archive.parse(_STYLES)):
            if block not in blocks:
                blocks.append(block)
    return _finish(archive, blocks, [_CONTENT])


def read_odp(data: bytes) -> Extraction:
    """Read a presentation, with a section for each slide and its notes.

    Raises:
        RowError: If the file is not a presentation of OpenDocument, needs a password, or is not
            safe to read.
    """
    archive = _open_archive(data)
    content = archive.parse(_CONTENT)
    blocks: list[str] = []
    for number, slide in enumerate(_sections(content, _SLIDE), 1):
        slide_blocks = read_blocks(slide, _SLIDE_NAMES)
        title = _slide_title(slide)
        if title in slide_blocks:
            slide_blocks.remove(title)
        heading = title or f"Slide {number}"
        blocks.append(f"\n## {heading}\n")
        blocks.extend(slide_blocks)

    # Slides name their headers and footers, which are declared beside them.
    for declaration in content.iter():
        text = " ".join((declaration.text or "").split())
        if local_name(declaration) in _SLIDE_DECLARATIONS and text:
            blocks.append(text)
    return _finish(archive, blocks, [_CONTENT], _SLIDE_TEXT)


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


def _finish(
    archive: Archive,
    blocks: list[str],
    text_parts: list[str],
    text_names: TextNames = OPEN_DOCUMENT_TEXT,
) -> Extraction:
    """Append the text of embedded objects, and read the title and the date.

    Args:
        archive: The file.
        blocks: The paragraphs and rows of its content.
        text_parts: The parts whose text should be in the blocks.
        text_names: The elements that hold text in these parts.
    """
    objects = [name for name in archive.names if name.endswith(f"/{_CONTENT}")]
    damaged = archive.find_damaged(objects)
    for name in objects:
        if name not in damaged:
            blocks.extend(_object_blocks(archive.parse(name)))

    extraction = Extraction("\n".join(blocks).strip())
    extraction.all_text = list_text(archive, text_parts, text_names)
    if _META in archive:
        read_properties(archive, _META, extraction)
    for name in damaged:
        extraction.note("unread part", f"the embedded {name.partition('/')[0]} is damaged")
    if _STYLES in archive and not archive.has_readable(_STYLES):
        extraction.note("unread part", f"the part {_STYLES} is damaged")
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


def _page_texts(content: Any, styles: Any) -> list[str]:
    """Return the headers and footers of the pages on which the sheets are printed.

    A page that no sheet names belongs to a template, and is not shown.

    Args:
        content: Root element of the content. Its styles of tables name their pages.
        styles: Root element of the styles, with the pages.
    """
    page_names: set[str] = set()
    for style in content.iter():
        if local_name(style) == "style" and attribute(style, "family") == _SHEET:
            page_names.add(attribute(style, "master-page-name"))

    def is_field(element: Any) -> bool:
        return local_name(element) in _PAGE_FIELDS

    texts: list[str] = []
    for page in styles.iter():
        if local_name(page) == "master-page" and attribute(page, "name") in page_names:
            texts.extend(read_blocks(page, OPEN_DOCUMENT_NAMES, is_hidden=is_field))
    return texts


def _slide_title(slide: Any) -> str:
    """Return the text of the title of a slide; empty if it has none."""
    for frame in slide.iter():
        if attribute(frame, "class") == _TITLE_CLASS:
            return " ".join(" ".join(read_blocks(frame, OPEN_DOCUMENT_NAMES)).split())
    return ""


def _require_no_password(archive: Archive) -> None:
    """Refuse a document that needs a password. Its manifest then states how parts are encrypted."""
    if not archive.has_readable(_MANIFEST):
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


def _hidden_elements(content: Any) -> Callable[[Any], bool]:
    """Return a function that returns whether an element is formatted as hidden.

    A style hides text by `display="none"` in its text properties. A section has that attribute
    itself.

    Args:
        content: Root element of the content.
    """
    hiding_styles: set[str] = set()
    for style in content.iter():
        if local_name(style) != "style":
            continue
        for properties in style.iterchildren():
            if attribute(properties, "display") == "none":
                hiding_styles.add(attribute(style, "name"))

    def is_hidden(element: Any) -> bool:
        name = local_name(element)
        if name == "section":
            return attribute(element, "display") == "none"
        has_style = name in ("span", "p", "h")
        return has_style and attribute(element, "style-name") in hiding_styles

    return is_hidden
