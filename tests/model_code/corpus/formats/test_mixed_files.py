"""Guards that every word of a file is found, or that its loss is reported, for files of many kinds.

The files are written by the libraries that people's programs use, and by pandoc and LibreOffice
where these are installed. Each file has a known list of words.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from pathlib import Path

import pytest

from model_code.corpus.formats.extraction import count_words
from model_code.corpus.rows import Row
from model_code.corpus.sources.document_files import read_document
from tests import flat_open_document
from tests.document_files import pdf
from tests.office_files import archive

SYLLABLES = [
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ha",
    "je",
    "ki",
    "lo",
    "mu",
    "na",
    "pe",
    "ri",
    "so",
    "tu",
    "va",
    "we",
    "xi",
    "yo",
    "zu",
]
FILES_PER_KIND = 3

Blocks = list[tuple[str, list[str]]]
"""Kinds of blocks with their texts: "heading", "paragraph", "list" or "table"."""


def make_blocks(draw: random.Random) -> Blocks:
    """Blocks of words that occur nowhere else."""

    def words(count: int) -> str:
        return " ".join("".join(draw.choices(SYLLABLES, k=4)) for _ in range(count))

    blocks: Blocks = [("heading", [words(2)])]
    for _ in range(6):
        kind = draw.choice(["heading", "paragraph", "list", "table"])
        blocks.append((kind, [words(draw.randint(1, 6)) for _ in range(4)]))
    return blocks


def markdown(blocks: Blocks) -> str:
    parts: list[str] = []
    for kind, texts in blocks:
        if kind == "heading":
            parts.append(f"## {' '.join(texts)}")
        elif kind == "paragraph":
            linked = " ".join(f"[{text}](http://x.y/z)" for text in texts[1:])
            parts.append(f"{texts[0]} **{texts[-1]}** {linked}")
        elif kind == "list":
            parts.append("\n".join(f"- {text}\n    - <{text.split()[0]}>" for text in texts))
        else:
            rows = "\n".join(f"| {text} | ![{text}](a.png) |" for text in texts)
            parts.append(f"| a | b |\n|---|---|\n{rows}")
    return "\n\n".join(parts)


def html(blocks: Blocks) -> str:
    parts: list[str] = []
    for kind, texts in blocks:
        if kind == "table":
            parts.append("<table>" + "".join(f"<tr><td>{text}" for text in texts) + "</table>")
        elif kind == "list":
            parts.append("<form><ul>" + "".join(f"<li>{text}" for text in texts) + "</ul></form>")
        else:
            parts.append(f"<div><p>{' <i>x</i> '.join(texts)}</div>")
    return f"<title>a page</title>{''.join(parts)}"


def write_markdown(path: Path, blocks: Blocks) -> None:
    path.write_text(f"---\ntitle: one: two\n---\n{markdown(blocks)}")


def write_html(path: Path, blocks: Blocks) -> None:
    path.write_text(html(blocks))


def write_docx(path: Path, blocks: Blocks) -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    for kind, texts in blocks:
        if kind == "table":
            table = document.add_table(rows=2, cols=2)
            for number, text in enumerate(texts):
                table.cell(number // 2, number % 2).text = text
        elif kind == "heading":
            document.add_heading(" ".join(texts), 2)
        else:
            style = "List Bullet" if kind == "list" else None
            for text in texts:
                document.add_paragraph(text, style)
    document.sections[0].header.paragraphs[0].text = blocks[0][1][0]
    document.save(str(path))


def write_pptx(path: Path, blocks: Blocks) -> None:
    pptx = pytest.importorskip("pptx")
    presentation = pptx.Presentation()
    for _, texts in blocks:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = texts[0]
        slide.placeholders[1].text = "\n".join(texts)
    presentation.save(str(path))


def write_xlsx(path: Path, blocks: Blocks) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    workbook = openpyxl.Workbook()
    for kind, texts in blocks:
        workbook.create_sheet(kind).append(texts)
    workbook.save(str(path))


def write_notebook(path: Path, blocks: Blocks) -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook()
    notebook.cells.append(nbformat.v4.new_markdown_cell(markdown(blocks)))
    notebook.cells.append(nbformat.v4.new_code_cell(f"print({blocks[0][1]!r})"))
    path.write_text(nbformat.writes(notebook))


def write_mail(path: Path, blocks: Blocks) -> None:
    mail = EmailMessage()
    mail["Subject"] = blocks[0][1][0]
    mail.set_content("\n".join(" ".join(texts) for _, texts in blocks))
    mail.add_alternative(html(blocks), subtype="html")
    path.write_bytes(mail.as_bytes())


def write_epub(path: Path, blocks: Blocks) -> None:
    package = '<p><item id="a" href="a.xhtml" media-type="text/html"/><itemref idref="a"/></p>'
    parts = {
        "META-INF/container.xml": '<c><rootfile full-path="b.opf"/></c>',
        "b.opf": package,
        "a.xhtml": html(blocks),
    }
    path.write_bytes(archive(parts))


def write_pdf(path: Path, blocks: Blocks) -> None:
    path.write_bytes(pdf([" ".join(texts) for _, texts in blocks]))


def write_text(path: Path, blocks: Blocks) -> None:
    path.write_bytes("\r\n".join(" ".join(texts) for _, texts in blocks).encode("utf-16"))


WRITERS: dict[str, Callable[[Path, Blocks], None]] = {
    ".md": write_markdown,
    ".html": write_html,
    ".docx": write_docx,
    ".pptx": write_pptx,
    ".xlsx": write_xlsx,
    ".ipynb": write_notebook,
    ".eml": write_mail,
    ".epub": write_epub,
    ".pdf": write_pdf,
    ".txt": write_text,
}


def missing_words(path: Path, blocks: Blocks) -> list[str]:
    """Return the words of the blocks that are not found in a file that reports no loss."""
    row = read_document(path, path.name, path.name)
    assert isinstance(row, Row), row
    if any(note.kind in ("lost text", "pages without text") for note in row.notes):
        return []
    found = count_words([row.values["title"], row.values["text"]])
    all_texts = []
    for _, texts in blocks:
        all_texts += texts
    expected = count_words(all_texts)
    return sorted(word for word in expected if word not in found)


def reported_losses(path: Path) -> list[str]:
    row = read_document(path, path.name, path.name)
    return [note.detail for note in row.notes if note.kind == "lost text"]


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_word_of_a_written_file_is_found(tmp_path, suffix):
    for number in range(FILES_PER_KIND):
        blocks = make_blocks(random.Random(number))
        path = tmp_path / f"{number}{suffix}"
        WRITERS[suffix](path, blocks)
        assert missing_words(path, blocks) == []
        assert reported_losses(path) == []


@pytest.mark.parametrize("suffix", [".docx", ".odt", ".epub", ".html", ".pptx", ".ipynb", ".rst"])
def test_every_word_of_a_file_by_pandoc_is_found(tmp_path, suffix):
    if shutil.which("pandoc") is None:
        pytest.skip("pandoc is not installed")
    blocks = make_blocks(random.Random(7))
    (tmp_path / "a.md").write_text(markdown(blocks))
    path = tmp_path / f"a{suffix}"
    run(["pandoc", "-s", "--metadata=title:x", "-o", path, tmp_path / "a.md"])

    assert missing_words(path, blocks) == []


@pytest.mark.parametrize("suffix", [".odt", ".docx", ".pdf", ".html"])
def test_every_word_of_a_file_by_libreoffice_is_found(tmp_path, suffix):
    if shutil.which("soffice") is None:
        pytest.skip("LibreOffice is not installed")
    blocks = make_blocks(random.Random(8))
    write_html(tmp_path / "a.html", blocks)
    target = tmp_path / "out"
    home = f"-env:UserInstallation=file://{tmp_path}/home"
    kind = f"{suffix[1:]}:writer_pdf_Export" if suffix == ".pdf" else suffix[1:]
    command = ["soffice", home, "--headless", "--writer", "--convert-to", kind]
    run([*command, "--outdir", target, tmp_path / "a.html"])

    assert missing_words(target / f"a{suffix}", blocks) == []


# Words of the sources that LibreOffice does not write to a format.
UNWRITTEN = {
    "text.html": "ruby remarks pearl floats crane picture coral inside かんじ",
    "text.epub": "Kopfzeile quartz Fußzeile granite ruby remarks crane picture coral inside",
    "workbook.html": "slate printed Versteckt concealed eel boxed pike",
    "presentation.html": "grouped ebb shaped flow",
}
SOURCES = {
    "text": (".fodt", flat_open_document.TEXT, flat_open_document.TEXT_WORDS),
    "workbook": (".fods", flat_open_document.WORKBOOK, flat_open_document.WORKBOOK_WORDS),
    "presentation": (
        ".fodp",
        flat_open_document.PRESENTATION,
        flat_open_document.PRESENTATION_WORDS,
    ),
}
CONVERSIONS = [
    ("text", ".odt"),
    ("text", ".rtf"),
    ("text", ".docx"),
    ("text", ".html"),
    ("text", ".epub"),
    ("workbook", ".ods"),
    ("workbook", ".xlsx"),
    ("workbook", ".html"),
    ("presentation", ".odp"),
    ("presentation", ".pptx"),
    ("presentation", ".html"),
]


@pytest.mark.full
@pytest.mark.parametrize(("source", "suffix"), CONVERSIONS)
def test_every_word_that_libreoffice_writes_is_found(tmp_path, source, suffix):
    path = convert(tmp_path, source, suffix)
    expected = count_words([SOURCES[source][2]])
    unwritten = count_words([UNWRITTEN.get(f"{source}{suffix}", "")])

    row = read_document(path, path.name, path.name)

    found = count_words([row.values["title"], row.values["text"]])
    assert [word for word in expected if word not in found and word not in unwritten] == []
    assert reported_losses(path) == []


@pytest.mark.full
@pytest.mark.parametrize("suffix", [".odt", ".rtf", ".docx"])
def test_deleted_and_hidden_text_by_libreoffice_is_left_out(tmp_path, suffix):
    path = convert(tmp_path, "text", suffix)

    row = read_document(path, path.name, path.name)

    found = count_words([row.values["text"]])
    hidden = count_words([flat_open_document.TEXT_HIDDEN])
    assert [word for word in hidden if word in found] == []
    assert [note.kind for note in row.notes] == ["left out"]


@pytest.mark.full
@pytest.mark.parametrize("source", SOURCES)
def test_every_shown_latin_word_of_a_pdf_by_libreoffice_is_found(tmp_path, source):
    path = convert(tmp_path, source, ".pdf")
    # A PDF shows no comments, notes of slides, or hidden parts. A wide cell is cut at its edge, and
    # the mark of a footnote joins the word before it.
    unshown = """ruby remarks crane picture note end slate printed Fänge Kabeljau plaice weighed
      Versteckt concealed eel Drawn checked twice speak slowly neap"""
    unshown_words = count_words([unshown])
    expected = [word for word in count_words([SOURCES[source][2]]) if word.isascii()]

    row = read_document(path, path.name, path.name)

    found = count_words([row.values["title"], row.values["text"]])
    assert [word for word in expected if word not in found and word not in unshown_words] == []


def convert(folder: Path, source: str, suffix: str) -> Path:
    """Convert a source with LibreOffice, and return the file."""
    if shutil.which("soffice") is None:
        pytest.skip("LibreOffice is not installed")
    source_suffix, content, _ = SOURCES[source]
    path = folder / f"{source}{source_suffix}"
    path.write_text(content, encoding="utf-8")
    home = f"-env:UserInstallation=file://{folder}/home"
    command = ["soffice", home, "--headless", "--convert-to", suffix[1:]]
    run([*command, "--outdir", folder / "out", path])
    return folder / "out" / f"{source}{suffix}"


def run(command: Sequence[str | Path]) -> None:
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=120)
