"""Office documents for tests, written by hand: each has what no library here writes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
STYLES = f"""<w:styles xmlns:w="{WORD}">
<w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>
<w:style w:styleId="Mine"><w:name w:val="My chapter"/><w:basedOn w:val="berschrift1"/></w:style>
<w:style w:styleId="Titel"><w:name w:val="Title"/></w:style>
</w:styles>"""


def archive(parts: Mapping[str, str | bytes]) -> bytes:
    """A zip archive with these parts."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in parts.items():
            target.writestr(name, content)
    return stream.getvalue()


def paragraph(inner: str, style: str = "") -> str:
    """A paragraph of Word, of runs or of plain text."""
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    runs = inner if inner.startswith("<") else run(inner)
    return f"<w:p>{properties}{runs}</w:p>"


def run(text: str, properties: str = "") -> str:
    """A run of Word."""
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def docx(body: str, title: str = "", created: str = "", **parts: str) -> bytes:
    """A DOCX with this body. Further parts are named like `header1`."""
    content: dict[str, str | bytes] = {
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" '
        f'Type="{OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/document.xml": word_part("document", f"<w:body>{body}</w:body>"),
        "word/styles.xml": STYLES,
        "docProps/core.xml": '<p:core xmlns:p="p" xmlns:dc="d">'
        f"<dc:title>{title}</dc:title><p:created>{created}</p:created></p:core>",
    }
    for name, inner in parts.items():
        content[f"word/{name}.xml"] = word_part("part", inner)
    return archive(content)


def word_part(name: str, inner: str) -> str:
    """An XML part of Word."""
    return (
        f'<?xml version="1.0"?><w:{name} xmlns:w="{WORD}" xmlns:a="{DRAWING}" xmlns:mc="mc" '
        f'xmlns:wp="wp" xmlns:v="v">{inner}</w:{name}>'
    )
