"""Files of documents for tests: a PDF made by hand, which no library here writes, a DOCX, and a folder of all types."""

from __future__ import annotations

from pathlib import Path


def pdf(pages: list[str], title: str = "") -> bytes:
    """A PDF with a line of text on each page; an empty text makes a page without any, as a scan has."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET" if text else ""
        font = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"<< /Type /Page /Parent 2 0 R {font} /Contents {5 + 2 * number} 0 R >>")
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    objects.append(f"<< /Title ({title}) /CreationDate (D:20240305120000Z) >>")
    body, places = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    trailer = f"<< /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R >>"
    entries = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    return f"{body}{entries}trailer\n{trailer}\nstartxref\n{len(body)}\n%%EOF\n".encode()


def write_docx(path: Path, title: str, *sections: tuple[str, str]) -> None:
    """A DOCX with a heading and a paragraph for each section."""
    import docx

    document = docx.Document()
    document.core_properties.title = title
    for heading, text in sections:
        document.add_heading(heading, 1)
        document.add_paragraph(text)
    document.save(str(path))
