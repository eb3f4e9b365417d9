"""Files of documents for tests: a PDF made by hand, which no library here writes, a DOCX, and a
folder of all types.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

SUFFIXES = (".md", ".html", ".txt", ".pdf", ".docx")


def pdf(pages: list[str], title: str = "") -> bytes:
    """Make a PDF with a line of text on each page. A page of an empty text is like that of a scan."""
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
    body = "%PDF-1.4\n"
    places = []
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


def write_folder(folder: Path, count: int, topics: Mapping[str, Sequence[str]]) -> None:
    """So many documents of five types, each of three sections of a topic's words; two broken files;
    and a picture.
    """
    draw = random.Random(0)
    for number in range(count):
        topic = sorted(topics)[number % len(topics)]
        path = folder / topic / f"{number}{SUFFIXES[number * len(SUFFIXES) // count]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [" ".join(draw.sample(topics[topic], 12)) for _ in range(3)]
        write_document(
            path,
            f"{topic} {number}",
            [(f"{topic} part {place}", text) for place, text in enumerate(texts)],
        )
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4")
    (folder / "zeros.md").write_bytes(b"caf\0")
    (folder / "picture.png").write_bytes(b"\x89PNG")


def write_document(path: Path, title: str, sections: Sequence[tuple[str, str]]) -> None:
    """A document with headings, but in a text and on the pages of a PDF, of the type that its
    suffix says.
    """
    if path.suffix == ".md":
        path.write_text("\n\n".join(f"## {heading}\n\n{text}" for heading, text in sections))
    elif path.suffix == ".html":
        path.write_text("".join(f"<h2>{heading}</h2><p>{text}</p>" for heading, text in sections))
    elif path.suffix == ".txt":
        path.write_text("\n\n".join(text for _, text in sections))
    elif path.suffix == ".pdf":
        path.write_bytes(pdf([text for _, text in sections], title))
    else:
        write_docx(path, title, *sections)
