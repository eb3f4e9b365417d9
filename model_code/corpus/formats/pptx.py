"""Read PPTX with python-pptx: one section per slide, with tables, diagrams, charts and notes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from model_code.corpus.formats.archives import Archive, list_text, parse_xml
from model_code.corpus.formats.docx import note_embedded_files
from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.office_xml import (
    OOXML_NAMES,
    OOXML_TEXT,
    read_blocks,
    read_core_properties,
)
from model_code.corpus.rows import RowError

_TEXT_PART = re.compile(
    r"ppt/(?:slides/slide|notesSlides/notesSlide|diagrams/data|charts/chart|comments/\w*omment)"
    r"[\w-]*\.xml"
)
_SLIDE_PART = re.compile(r"ppt/slides/slide(\d+)\.xml")
# Endings of the relation types by which a slide names further parts with text, such as charts.
_TEXT_RELATIONS = ("/diagramData", "/chart", "/comments")


def read_pptx(data: bytes) -> Extraction:
    """Read a presentation: one section per slide. The title of the first slide may be the title.

    If a part is damaged, the slides are read in the order of their numbers, without their notes.

    Raises:
        RowError: If the file is not a presentation, or is not safe to read.
    """
    archive = Archive(data)
    # The library parses every part, even one without text, so all parts are checked first.
    archive.check_all_xml()
    text_parts = [name for name in archive.names if _TEXT_PART.fullmatch(name)]
    all_text = list_text(archive, text_parts, OOXML_TEXT)
    fault: str | None = None
    try:
        # A presentation may list one slide many times. It is read once.
        slides = {slide.part.partname: slide for slide in _open_presentation(data).slides}
        titles = [_slide_title(slide) for slide in slides.values()]
        read_parts: set[str] = set()
        blocks_of_slides = [list(_slide_blocks(slide, read_parts)) for slide in slides.values()]
    except (KeyError, ValueError, SyntaxError, AttributeError) as error:
        # The library refuses a file for a fault that reading can do without, such as one in its
        # properties or in the design of a slide.
        fault = type(error).__name__
        blocks_of_slides = _read_slide_parts(archive)
        titles = [""] * len(blocks_of_slides)
        if not blocks_of_slides:
            raise RowError("unreadable file", f"it is no presentation: {error}") from None

    sections: list[str] = []
    for number, (title, blocks) in enumerate(zip(titles, blocks_of_slides, strict=True), start=1):
        # The heading shows the title already, on one line.
        lines = [" ".join(block.split()) for block in blocks]
        if title in lines:
            del blocks[lines.index(title)]
        heading = title or f"Slide {number}"
        sections.append("\n".join([f"## {heading}\n", *blocks]))

    extraction = Extraction("\n\n".join(sections), all_text=all_text)
    read_core_properties(archive, extraction)
    # The number of a slide says nothing about the presentation.
    if not extraction.title and titles and titles[0] != "Slide 1":
        extraction.title = titles[0]
    note_embedded_files(archive, extraction)
    if fault is not None:
        detail = f"the presentation is damaged ({fault}); only the texts of its slides are read"
        extraction.note("unread part", detail)
    return extraction


def _open_presentation(data: bytes) -> Any:
    """Open a presentation. Slide shows and templates count, which `pptx.Presentation` refuses.

    Raises:
        ValueError: If the file is something else, such as a workbook.
    """
    from pptx.package import Package
    from pptx.parts.presentation import PresentationPart

    main_part = Package.open(io.BytesIO(data)).main_document_part
    if not isinstance(main_part, PresentationPart):
        raise ValueError("its main part is something else")
    return main_part.presentation


def _read_slide_parts(archive: Archive) -> list[list[str]]:
    """Return the paragraphs of each slide, in the order of the numbers of their parts."""
    numbers: list[int] = []
    for name in archive.names:
        slide_part = _SLIDE_PART.fullmatch(name)
        if slide_part is not None:
            numbers.append(int(slide_part[1]))

    blocks_of_slides: list[list[str]] = []
    for number in sorted(numbers):
        root = archive.parse(f"ppt/slides/slide{number}.xml")
        blocks_of_slides.append(read_blocks(root, OOXML_NAMES))
    return blocks_of_slides


def _slide_title(slide: Any) -> str:
    """Return the title of a slide on one line; empty if it has none."""
    shape = slide.shapes.title
    if shape is None or not shape.has_text_frame:
        return ""
    return " ".join(shape.text_frame.text.split())


def _slide_blocks(slide: Any, read_parts: set[str]) -> Iterator[str]:
    """Yield the paragraphs of a slide, of its diagrams and charts, and of its notes.

    Args:
        slide: The slide.
        read_parts: Names of the parts that were read before. The parts of this slide are added.
    """
    read_parts.add(slide.part.partname)
    yield from read_blocks(slide.element, OOXML_NAMES)
    for relation in slide.part.rels.values():
        if relation.is_external or not relation.reltype.endswith(_TEXT_RELATIONS):
            continue
        part = relation.target_part
        if part.partname not in read_parts:
            read_parts.add(part.partname)
            root = parse_xml(part.blob, str(part.partname))
            yield from read_blocks(root, OOXML_NAMES)
    if slide.has_notes_slide and slide.notes_slide.part.partname not in read_parts:
        read_parts.add(slide.notes_slide.part.partname)
        yield from read_blocks(slide.notes_slide.element, OOXML_NAMES)
