"""Read DOCX files from their XML, so that no text that Word shows is skipped.

Text that tracked changes inserted is read, and text that they deleted is not. Headers, footers,
footnotes, endnotes, comments, diagrams and charts follow the body.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from typing import Any

from model_code.corpus.formats.archives import Archive, list_text
from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.office_xml import (
    OOXML_NAMES,
    OOXML_TEXT,
    attribute,
    local_name,
    read_blocks,
    read_core_properties,
)
from model_code.corpus.rows import RowError

# Longest chain of styles that are based on each other. It also ends a cycle.
MAX_STYLE_PARENTS = 20

# Word counts outline levels from 0. This level and those below it mean text that is no heading.
BODY_OUTLINE_LEVEL = 9

_OFFICE_DOCUMENT = "/officeDocument"
_DEFAULT_MAIN_PART = "word/document.xml"
# The parts that are read after the body, in this order.
_SIDE_PARTS = (
    re.compile(r"header\d*\.xml"),
    re.compile(r"footer\d*\.xml"),
    re.compile(r"footnotes\.xml"),
    re.compile(r"endnotes\.xml"),
    re.compile(r"comments\.xml"),
    re.compile(r"diagrams/data\d*\.xml"),
    re.compile(r"charts/chart\d*\.xml"),
)
# Files of other formats that Word shows as a part of the text.
_OTHER_TEXT_SUFFIXES = (".html", ".htm", ".mht", ".mhtml", ".rtf", ".txt")
_HEADING_STYLE = re.compile(r"heading (\d)", re.I)


def read_docx(data: bytes) -> Extraction:
    """Read a DOCX file: its body, then its side parts such as headers, footnotes and comments.

    A damaged side part is left out and noted.

    Raises:
        RowError: If the file is not a DOCX file, or is not safe to read.
    """
    archive = Archive(data)
    main_part = find_main_part(archive, _DEFAULT_MAIN_PART)
    if main_part not in archive:
        raise RowError("unreadable file", "the archive holds no Word document")
    folder = posixpath.dirname(main_part)
    side_parts = list(_side_parts(archive, folder))
    damaged = archive.find_damaged(side_parts)
    parts = [main_part, *(part for part in side_parts if part not in damaged)]

    heading_level = _heading_levels(archive, f"{folder}/styles.xml")
    left_out: list[str] = []
    blocks: list[str] = []
    for part in parts:
        part_blocks = read_blocks(
            archive.parse(part), OOXML_NAMES, heading_level, _is_hidden_run, left_out
        )
        if part == main_part:
            blocks.extend(part_blocks)
        else:
            # Sections of a document often repeat the same header, which is read once.
            blocks.extend(block for block in part_blocks if block not in blocks)

    extraction = Extraction("\n".join(blocks).strip(), left_out=left_out)
    extraction.all_text = list_text(archive, parts, OOXML_TEXT)
    read_core_properties(archive, extraction)
    note_embedded_files(archive, extraction)
    for part in damaged:
        extraction.note("unread part", f"the part {part} is damaged")
    return extraction


def find_main_part(archive: Archive, default: str) -> str:
    """Return the name of the main part, such as `word/document.xml`, that an archive states.

    The part `_rels/.rels` states it: its relation of the type "officeDocument" names the main part.
    """
    if not archive.has_readable("_rels/.rels"):
        return default
    for relation in archive.parse("_rels/.rels").iter():
        relation_type = relation.get("Type") or ""
        if relation_type.endswith(_OFFICE_DOCUMENT):
            target = relation.get("Target") or default
            return target.lstrip("/")
    return default


def note_embedded_files(archive: Archive, extraction: Extraction) -> None:
    """Add a remark about the files inside of a document, because they are not read."""
    for name in archive.names:
        folder, _, file_name = name.rpartition("/")
        is_in_embeddings = folder.endswith("/embeddings")
        has_text_of_other_format = file_name.lower().endswith(_OTHER_TEXT_SUFFIXES)
        is_embedded = is_in_embeddings or has_text_of_other_format
        if is_embedded and file_name and not name.endswith(".rels"):
            extraction.note("unread part", f"the embedded file {file_name} is not read")


def _side_parts(archive: Archive, folder: str) -> Iterable[str]:
    """Yield the names of the parts in a folder that are read after the body, in reading order."""
    for pattern in _SIDE_PARTS:
        for name in sorted(archive.names):
            inner_name = name.removeprefix(f"{folder}/")
            is_in_folder = inner_name != name
            if is_in_folder and pattern.fullmatch(inner_name):
                yield name


def _heading_levels(archive: Archive, styles_part: str) -> Callable[[Any], int]:
    """Return a function that returns the heading level of a paragraph; 0 if it is not a heading.

    Heading styles are recognised by name. Word translates the ids of its own styles, but not their
    names. A style of a user may be based on a heading style of Word.
    """
    levels: dict[str, int] = {}
    if styles_part in archive and not archive.find_damaged([styles_part]):
        levels = _style_levels(archive.parse(styles_part))

    def heading_level(paragraph: Any) -> int:
        # A paragraph names its style, or states an outline level itself, in its properties `pPr`.
        for properties in paragraph.iterchildren():
            if local_name(properties) != "pPr":
                continue
            for element in properties.iterchildren():
                name = local_name(element)
                value = attribute(element, "val")
                if name == "pStyle" and levels.get(value):
                    return levels[value]
                if name == "outlineLvl" and _is_heading_outline(value):
                    return int(value) + 1
        return 0

    return heading_level


def _is_heading_outline(value: str) -> bool:
    """Return whether an outline level, as a paragraph or a style states it, means a heading."""
    return value.isdecimal() and int(value) < BODY_OUTLINE_LEVEL


def _style_levels(root: Any) -> dict[str, int]:
    """Return the heading level of each style by its id; 0 for styles that are not headings."""
    names: dict[str, str] = {}
    parents: dict[str, str] = {}
    outline_levels: dict[str, int] = {}
    for style in root.iter():
        if local_name(style) != "style":
            continue
        style_id = attribute(style, "styleId")
        for element in style.iter():
            name = local_name(element)
            value = attribute(element, "val")
            if name == "name":
                names[style_id] = value
            elif name == "basedOn":
                parents[style_id] = value
            elif name == "outlineLvl" and _is_heading_outline(value):
                outline_levels[style_id] = int(value) + 1

    levels: dict[str, int] = {}
    for style_id in names:
        levels[style_id] = _style_level(style_id, names, parents, outline_levels)
    return levels


def _style_level(
    style_id: str, names: dict[str, str], parents: dict[str, str], outline_levels: dict[str, int]
) -> int:
    """Return the heading level of a style or of the nearest style that it is based on; 0 if none.

    Args:
        style_id: Id of the style.
        names: Name of each style, such as "heading 2", by its id.
        parents: Id of the style that each style is based on, by its id.
        outline_levels: Heading levels that styles state themselves, by their ids.
    """
    for _ in range(MAX_STYLE_PARENTS):
        name = names.get(style_id, "")
        heading = _HEADING_STYLE.fullmatch(name)
        if heading is not None:
            return int(heading[1])
        if name.lower() == "title":
            return 1
        if style_id in outline_levels:
            return outline_levels[style_id]
        if style_id not in parents:
            return 0
        style_id = parents[style_id]
    return 0


def _is_hidden_run(element: Any) -> bool:
    """Return whether an element is a run of text that is formatted as hidden.

    A run `r` states its format in the properties `rPr`. The format "hidden" is called `vanish`.
    """
    if local_name(element) != "r":
        return False
    for properties in element.iterchildren():
        if local_name(properties) != "rPr":
            continue
        for item in properties.iterchildren():
            if local_name(item) == "vanish":
                return attribute(item, "val") not in ("0", "false", "off")
    return False
