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
# Endings of the relation types by which a slide names further parts with text, such as charts.
_TEXT_RELATIONS = ("/diagramData", "/chart", "/comments")


def read_pptx(data: bytes) -> Extraction:
    """Read a presentation: one section per slide. The title of the first slide may be the title.

    Raises:
        RowError: If the file is not a presentation, or is not safe to read.
    """
    from pptx.package import Package
    from pptx.parts.presentation import PresentationPart

    archive = Archive(data)
    # The library parses every part, even one without text, so all parts are checked first.
    archive.check_all_xml()
    text_parts = [name for name in archive.names if _TEXT_PART.fullmatch(name)]
    all_text = list_text(archive, text_parts, OOXML_TEXT)
    try:
        main_part = Package.open(io.BytesIO(data)).main_document_part
    except (KeyError, ValueError, SyntaxError) as error:
        raise RowError("unreadable file", f"it is no presentation: {error}") from None
    # Slide shows and templates are presentations as well, which `pptx.Presentation` refuses.
    if not isinstance(main_part, PresentationPart):
        raise RowError("unreadable file", "it is no presentation")
    presentation = main_part.presentation

    sections: list[str] = []
    for number, slide in enumerate(presentation.slides, start=1):
        title = _slide_title(slide)
        blocks = list(_slide_blocks(slide))
        # The heading shows the title already, on one line.
        lines = [" ".join(block.split()) for block in blocks]
        if title in lines:
            del blocks[lines.index(title)]
        heading = title or f"Slide {number}"
        sections.append("\n".join([f"## {heading}\n", *blocks]))

    extraction = Extraction("\n\n".join(sections), all_text=all_text)
    read_core_properties(archive, extraction)
    if not extraction.title and sections:
        first_title = _slide_title(presentation.slides[0])
        # The number of a slide says nothing about the presentation.
        if first_title != "Slide 1":
            extraction.title = first_title
    note_embedded_files(archive, extraction)
    return extraction


def _slide_title(slide: Any) -> str:
    """Return the title of a slide on one line; empty if it has none."""
    shape = slide.shapes.title
    if shape is None or not shape.has_text_frame:
        return ""
    return " ".join(shape.text_frame.text.split())


def _slide_blocks(slide: Any) -> Iterator[str]:
    """Yield the paragraphs of a slide, of its diagrams and charts, and of its notes."""
    yield from read_blocks(slide.element, OOXML_NAMES)
    for relation in slide.part.rels.values():
        if not relation.is_external and relation.reltype.endswith(_TEXT_RELATIONS):
            part = relation.target_part
            root = parse_xml(part.blob, str(part.partname))
            yield from read_blocks(root, OOXML_NAMES)
    if slide.has_notes_slide:
        yield from read_blocks(slide.notes_slide.element, OOXML_NAMES)
