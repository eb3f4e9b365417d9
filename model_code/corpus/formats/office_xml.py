"""Read the XML of office documents: text, headings, tables, alt texts and properties.

Word, PowerPoint and OpenDocument have different element names for paragraphs, tables and pictures.
One reader handles all of them with a table of names per format. It accepts any nesting, so content
controls, text boxes, tables in tables and hyperlinks need no special case.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from model_code.corpus.formats.archives import (
    RAISING_PROPERTIES,
    Archive,
    TextNames,
    UnsafeXmlError,
    is_raised_position,
    is_raising_property,
)
from model_code.corpus.formats.extraction import Extraction, separate_raised_text
from model_code.corpus.formats.properties import add_property
from model_code.corpus.formats.titles import clean_title
from model_code.corpus.rows import RowError

# Markdown, to which documents are converted, has six levels of headings.
MAX_HEADING_LEVEL = 6

# The part of office documents with their properties, such as the title and the date.
CORE_PROPERTIES = "docProps/core.xml"
# The part with the properties that a user or a program added.
_CUSTOM_PROPERTIES = "docProps/custom.xml"
# Elements of properties that have a name of their own, in OOXML and in OpenDocument.
_NAMED_PROPERTIES = frozenset(("property", "user-defined"))
# Elements of OpenDocument with the alt text of a picture.
_ALT_ELEMENTS = frozenset(("title", "desc"))
# Attributes of OOXML with the alt text of a picture.
_ALT_ATTRIBUTES = ("title", "descr")
# Names of the properties for the title and for the date, in all formats.
_TITLE = "title"
_DATES = ("created", "creation-date", "date")


@dataclass(frozen=True)
class ElementNames:
    """The local names of a format's elements.

    Attributes:
        text: Elements whose own text is read; None if all text inside of paragraphs is.
        paragraph: Paragraphs and headings.
        row: Rows of tables.
        cell: Cells of tables.
        skipped: Elements that are left out with everything inside.
        replaced: Elements that stand for a text, by name.
        spaced: Elements with a blank before and after their text, such as the reading of East Asian
            signs. A blank stands in place of an element without text.
        alt_attributes: Attributes with alt texts, by the name of their element.
    """

    text: frozenset[str] | None
    paragraph: frozenset[str]
    row: frozenset[str]
    cell: frozenset[str]
    skipped: frozenset[str]
    replaced: dict[str, str] = field(default_factory=dict)
    spaced: frozenset[str] = frozenset()
    alt_attributes: dict[str, tuple[str, ...]] = field(default_factory=dict)


# Names of Word, of PowerPoint, and of drawings, diagrams and charts in any office document.
OOXML_NAMES = ElementNames(
    # `v` is a label of a chart, and `text` is a comment.
    text=frozenset(("t", "v", "text")),
    paragraph=frozenset(("p",)),
    row=frozenset(("tr",)),
    cell=frozenset(("tc",)),
    # Deleted and moved text, the second form of a text box, and the numbers of charts.
    skipped=frozenset(
        ("del", "moveFrom", "Fallback", "rubyPr", "numCache", "numLit", "rPh", "styleData")
    ),
    replaced={
        "tab": "\t",
        "ptab": "\t",
        "br": "\n",
        "cr": "\n",
        "noBreakHyphen": "-",
        "softHyphen": "\u00ad",
    },
    # A link in a presentation may be the mark of a footnote, which is no part of a word.
    spaced=frozenset(("rt", "hlinkClick")),
    alt_attributes={"docPr": _ALT_ATTRIBUTES, "cNvPr": _ALT_ATTRIBUTES, "shape": ("alt",)},
)

OPEN_DOCUMENT_NAMES = ElementNames(
    text=None,
    paragraph=frozenset(("p", "h")),
    row=frozenset(("table-row",)),
    cell=frozenset(("table-cell", "covered-table-cell")),
    # Deleted text, the numbers of notes, and the authors and dates of comments.
    skipped=frozenset(
        ("tracked-changes", "note-citation", "creator", "creator-initials", "date", "script")
    ),
    replaced={"tab": "\t", "line-break": "\n", "s": " "},
    spaced=frozenset(("ruby-text",)),
)

# Elements that hold text, by family of formats. From them `list_text` makes a crude list of all
# text, which shows whether the reader lost some.
OOXML_TEXT = TextNames(
    counted=OOXML_NAMES.text,
    skipped=OOXML_NAMES.skipped,
    blocks=frozenset(("p", "tr", "tc", "pt", "si", "comment", "txbxContent", "v", "text")),
    gaps=frozenset(("tab", "br", "cr", "ptab", "noBreakHyphen", *OOXML_NAMES.spaced)),
    separates_raised_text=True,
)
OPEN_DOCUMENT_TEXT = TextNames(
    counted=frozenset(("p", "h", "title", "desc")),
    skipped=OPEN_DOCUMENT_NAMES.skipped,
    blocks=frozenset(("p", "h", "title", "desc")),
    gaps=frozenset(("tab", "line-break", "s", *OPEN_DOCUMENT_NAMES.spaced)),
    separates_raised_text=True,
)


def local_name(element: Any) -> str:
    """Return the name of an element without its namespace; empty for comments."""
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def attribute(element: Any, name: str) -> str:
    """Return an attribute by its name without its namespace; empty if there is none."""
    for key, value in element.attrib.items():
        if key.rpartition("}")[2] == name:
            return value
    return ""


def read_blocks(
    root: Any,
    names: ElementNames,
    heading_level: Callable[[Any], int] = lambda _: 0,
    is_hidden: Callable[[Any], bool] = lambda _: False,
    left_out: list[str] | None = None,
) -> list[str]:
    """Return the paragraphs and rows of tables below an element, in their order.

    Args:
        root: The element.
        names: Names of the format.
        heading_level: Returns the level of a paragraph as heading, and 0 for other paragraphs.
        is_hidden: Returns whether an element and everything inside is not shown.
        left_out: Receives the text of hidden elements.
    """
    from lxml import etree

    raising_styles = _find_raising_styles(root) if names.text is None else frozenset()
    reader = _BlockReader(names, heading_level, raising_styles)
    walker = etree.iterwalk(root, events=("start", "end"))
    skipped_element: Any = None
    for event, element in walker:
        name = local_name(element)
        if element is skipped_element:
            # The walker still reports the end of an element that was skipped.
            skipped_element = None
            reader.add_tail(element)
        elif event == "end":
            reader.end(element, name)
        elif name in names.skipped:
            skipped_element = element
            walker.skip_subtree()
        elif is_hidden(element):
            if left_out is not None:
                left_out.append("".join(element.itertext()))
            skipped_element = element
            walker.skip_subtree()
        else:
            reader.start(element, name)
    return reader.blocks


def _find_raising_styles(root: Any) -> frozenset[str]:
    """Return the names of the styles that raise text, in the part of an element of OpenDocument."""
    raising_styles: set[str] = set()
    document = root.getroottree().getroot()
    for properties in document.iter("{*}text-properties"):
        style = properties.getparent()
        if style is not None and is_raised_position(attribute(properties, "text-position")):
            raising_styles.add(attribute(style, "name"))
    return frozenset(raising_styles)


class _BlockReader:
    """Collects the blocks of a document while its elements begin and end.

    Attributes:
        blocks: Paragraphs, headings and rows.
    """

    def __init__(
        self,
        names: ElementNames,
        heading_level: Callable[[Any], int],
        raising_styles: frozenset[str],
    ) -> None:
        """Prepare to read one part.

        Args:
            names: Names of the format.
            heading_level: Returns the level of a paragraph as heading, and 0 for other paragraphs.
            raising_styles: Names of the styles of OpenDocument that raise text.
        """
        self.blocks: list[str] = []
        self._names = names
        self._heading_level = heading_level
        # In OpenDocument, text stands directly in a paragraph and between its inner elements. In
        # the other formats it stands in elements of its own.
        self._has_mixed_text = names.text is None
        # Pieces of each paragraph that is open; a text box is a paragraph inside of another one.
        self._paragraphs: list[list[str]] = []
        # Blocks of each open cell, and texts of the cells of each open row.
        self._cells: list[list[str]] = []
        self._rows: list[list[str]] = []
        # Whether the text of the open run is raised, and styles of OpenDocument that raise text.
        self._is_raised = False
        self._raising_styles = raising_styles
        # The title and the description of the last picture.
        self._last_alt_texts: deque[str] = deque(maxlen=2)

    def start(self, element: Any, name: str) -> None:
        """Begin an element: open a paragraph, row or cell, or add the element's text.

        Args:
            element: The element.
            name: Its name without the namespace.
        """
        names = self._names
        if name in names.spaced:
            self._add_blank()
        if name in names.paragraph:
            self._paragraphs.append([])
            if self._has_mixed_text:
                self._add(_collapse(element.text))
        elif name in names.row:
            self._rows.append([])
        elif name in names.cell:
            self._cells.append([])
        elif name in names.replaced:
            # OpenDocument repeats a blank by an attribute, which does not matter here.
            self._add(names.replaced[name])
        elif self._has_mixed_text and name in _ALT_ELEMENTS and element.text:
            self._add(f" {element.text} ")
        elif self._has_mixed_text and self._paragraphs:
            is_raised = attribute(element, "style-name") in self._raising_styles
            self._add_run(_collapse(element.text), is_raised)
        elif names.text is not None and name in names.text:
            self._add_run(element.text or "", self._is_raised)
        elif name == "r":
            self._is_raised = False
        elif name in RAISING_PROPERTIES:
            value = attribute(element, "val")
            if is_raising_property(name, value, attribute(element, "baseline")):
                self._is_raised = True

        for attribute_name in names.alt_attributes.get(name, ()):
            alt_text = (element.get(attribute_name) or "").strip()
            # Word writes the alt text at the frame and again at the picture inside, which is left
            # out.
            if alt_text and alt_text not in self._last_alt_texts:
                self._last_alt_texts.append(alt_text)
                self._add(f" {alt_text} ")

    def end(self, element: Any, name: str) -> None:
        """End an element, and add the text of a finished paragraph, row or cell.

        Args:
            element: The element.
            name: Its name without the namespace.
        """
        names = self._names
        if name in names.paragraph and self._paragraphs:
            self._end_paragraph(element)
        elif name in names.cell and self._cells:
            text = " ".join(self._cells.pop())
            if self._rows:
                self._rows[-1].append(text)
            else:
                self._add_block(text)
        elif name in names.row and self._rows:
            self._add_block(" ".join(text for text in self._rows.pop() if text))
        if name in names.spaced:
            self._add_blank()
        self.add_tail(element)

    def add_tail(self, element: Any) -> None:
        """Add the text between the end of an element and the next element."""
        if self._has_mixed_text and self._paragraphs:
            self._add(_collapse(element.tail))

    def _add(self, text: str) -> None:
        """Add text to the innermost open paragraph. Text outside of paragraphs is a block."""
        if self._paragraphs:
            self._paragraphs[-1].append(text)
        elif text.strip():
            self._add_block(text)

    def _add_run(self, text: str, is_raised: bool) -> None:
        """Add text that may be raised. The mark of a footnote joins no word."""
        if is_raised and self._paragraphs:
            text = separate_raised_text(text, "".join(self._paragraphs[-1][-3:]))
        self._add(text)

    def _add_blank(self) -> None:
        """Add a blank to the open paragraph, if there is one."""
        if self._paragraphs:
            self._paragraphs[-1].append(" ")

    def _end_paragraph(self, element: Any) -> None:
        """Make a block of the innermost paragraph. Headings in tables stay plain paragraphs."""
        text = "".join(self._paragraphs.pop()).strip()
        if not text:
            return
        level = self._heading_level(element)
        if level and not self._cells:
            marks = "#" * min(level, MAX_HEADING_LEVEL)
            self._add_block(f"\n{marks} {' '.join(text.split())}\n")
        else:
            self._add_block(text)

    def _add_block(self, text: str) -> None:
        """Add a block to the innermost open cell, on one line, or to the document."""
        if self._cells:
            self._cells[-1].append(" ".join(text.split()))
        elif text.strip():
            self.blocks.append(text)


def _collapse(text: str | None) -> str:
    """Return text with single blanks, as OpenDocument defines it."""
    return re.sub(r"\s+", " ", text or "")


def read_core_properties(archive: Archive, extraction: Extraction) -> None:
    """Set the title, the date and the fields that the properties of a document state.

    A property that cannot be read is left out and noted.
    """
    if CORE_PROPERTIES in archive:
        read_properties(archive, CORE_PROPERTIES, extraction)
    if archive.has_readable(_CUSTOM_PROPERTIES):
        for name, text in _property_texts(archive.parse(_CUSTOM_PROPERTIES)):
            add_property(extraction, name, text)


def read_properties(archive: Archive, part: str, extraction: Extraction) -> None:
    """Set title, date and fields from the part of a document that holds its properties."""
    try:
        root = archive.parse(part)
    except UnsafeXmlError:
        raise
    except RowError:
        extraction.note("unreadable value", "its properties cannot be read")
        return

    properties: dict[str, str] = {}
    for name, text in _property_texts(root):
        properties[name] = text
        add_property(extraction, name, text)
    extraction.title = clean_title(properties.get(_TITLE, ""))
    for name in _DATES:
        if properties.get(name):
            extraction.date = properties[name]
            return


def _property_texts(root: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each property of a document that has a text."""
    for element in root.iter():
        name = local_name(element)
        if name in _NAMED_PROPERTIES:
            text = "".join(element.itertext()).strip()
            name = attribute(element, "name")
        else:
            text = (element.text or "").strip()
        if text:
            yield name, text
