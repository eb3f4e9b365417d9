"""Guards the DOCX reader: what Word shows is read once, and what it does not show is left out."""

from __future__ import annotations

import io
import zipfile

import pytest

from model_code.corpus.formats.docx import read_docx
from model_code.corpus.formats.extraction import measure_completeness
from tests.office_files import archive, docx, paragraph, run, word_part


def text_of(body: str, **parts: str) -> str:
    extraction = read_docx(docx(body, **parts))
    assert measure_completeness(extraction) == []
    return extraction.text


def cell(inner: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{inner}</w:tc>"


def table(*rows: str) -> str:
    return "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in rows) + "</w:tbl>"


def test_inserted_text_is_read_and_deleted_text_is_not():
    body = paragraph(
        run("The ferry leaves at ")
        + f"<w:ins>{run('seven')}</w:ins>"
        + "<w:del><w:r><w:delText>nine</w:delText></w:r></w:del>"
        + f"<w:moveFrom>{run('gone')}</w:moveFrom><w:moveTo>{run(' sharp')}</w:moveTo>"
    )

    assert text_of(body) == "The ferry leaves at seven sharp"


def test_content_controls_are_read_around_blocks_and_inside_lines():
    inline = f"<w:sdt><w:sdtContent>{run('Ada')}</w:sdtContent></w:sdt>"
    block = f"<w:sdt><w:sdtContent>{paragraph('A bound clause.')}</w:sdtContent></w:sdt>"

    assert text_of(block + paragraph(run("Name: ") + inline)) == "A bound clause.\nName: Ada"


def test_reading_of_a_sign_is_a_word_of_its_own():
    reading = f"<w:rt>{run('かんじ')}</w:rt><w:rubyBase>{run('漢字')}</w:rubyBase>"
    body = paragraph(f"{run('See')}<w:r><w:ruby>{reading}</w:ruby></w:r>")

    assert text_of(body) == "See かんじ 漢字"


RAISED = '<w:vertAlign w:val="superscript"/>'


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (run("the weir") + run("7", RAISED) + run("held"), "the weir 7 held"),
        (run("40 km") + run("2", RAISED), "40 km2"),
        (run("the 5") + run("th", RAISED), "the 5th"),
        (run("acid", RAISED) + run("7"), "acid7"),
        (run("acid") + run("7", '<w:vertAlign w:val="subscript"/>'), "acid7"),
        (run("we") + run("ir") + run("3,4", RAISED) + run("."), "weir 3,4 ."),
    ],
)
def test_raised_number_behind_a_word_is_a_word_of_its_own(inner, text):
    assert text_of(paragraph(inner)) == text


def test_title_and_description_of_a_picture_are_read_once():
    frame = '<wp:docPr title="Crane" descr="a crane"/>'

    assert text_of(paragraph(f"<w:r>{frame}{frame}</w:r>")).split() == ["Crane", "a", "crane"]


def test_text_box_is_read_once():
    box = f"<w:txbxContent>{paragraph('boxed words')}</w:txbxContent>"
    choice = f"<mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback>"
    body = paragraph(f"<w:r><mc:AlternateContent>{choice}</mc:AlternateContent></w:r>")

    assert text_of(body) == "boxed words"


def test_tables_in_tables_and_merged_cells():
    inner = table(cell(paragraph("x")) + cell(paragraph("y")))
    merged = cell(paragraph("wide"), '<w:gridSpan w:val="2"/>')
    rows = [merged, cell(paragraph("left")) + cell(paragraph("right") + inner)]

    assert text_of(table(*rows)) == "wide\nleft right x y"


def test_headers_notes_and_comments_follow_the_body():
    text = text_of(
        paragraph("Body."),
        header1=paragraph("Head line"),
        header2=paragraph("Head line"),
        footer1=paragraph("Foot line"),
        footnotes=paragraph("A footnote."),
        endnotes=paragraph("An endnote."),
        comments=paragraph("A remark."),
    )

    assert text == "Body.\nHead line\nFoot line\nA footnote.\nAn endnote.\nA remark."


def test_alt_text_and_link_text_are_read():
    picture = '<w:r><wp:docPr id="1" descr="a map of the delta"/></w:r>'
    link = f"<w:hyperlink>{run('the survey')}</w:hyperlink>"

    assert "a map of the delta" in text_of(paragraph(picture + link))
    assert "the survey" in text_of(paragraph(picture + link))

    twice = picture + '<w:r><wp:cNvPr id="1" descr="a map of the delta"/></w:r>'
    assert text_of(paragraph(twice)) == "a map of the delta"


def test_hidden_letters_are_left_out_and_counted():
    body = paragraph(run("seen ") + run("unseen", "<w:vanish/>"))

    extraction = read_docx(docx(body))

    (remark,) = measure_completeness(extraction)
    assert extraction.text == "seen"
    assert remark.kind == "left out"
    assert remark.share == 0.5


def test_headings_follow_the_names_of_styles():
    body = (
        paragraph("Delta", "Titel")
        + paragraph("Silt", "berschrift1")
        + paragraph("Clay", "Mine")
        + paragraph("Plain")
    )

    assert text_of(body) == "# Delta\n\n\n# Silt\n\n\n# Clay\n\nPlain"


@pytest.mark.parametrize(
    "title", ["Word Document", "Microsoft Word - a.doc", "untitled", "Book1", "Unknown", ""]
)
def test_title_of_a_program_is_no_title(title):
    assert read_docx(docx(paragraph("x"), title)).title == ""
    assert read_docx(docx(paragraph("x"), "Silt and clay")).title == "Silt and clay"


def test_damaged_relations_cost_no_text():
    parts = {
        "_rels/.rels": "<broken",
        "word/document.xml": word_part("document", paragraph("Silt")),
    }

    assert read_docx(archive(parts)).text == "Silt"


def test_archive_may_separate_folders_by_backslashes():
    stream = io.BytesIO()
    source = zipfile.ZipFile(io.BytesIO(docx(paragraph("Silt"))))
    with zipfile.ZipFile(stream, "w") as target:
        for name in source.namelist():
            part = zipfile.ZipInfo()
            part.filename = name.replace("/", "\\")
            target.writestr(part, source.read(name))

    assert read_docx(stream.getvalue()).text == "Silt"


def test_document_without_embedded_files_has_no_remark():
    assert read_docx(docx(paragraph("x"))).remarks == []


def test_embedded_files_are_named():
    parts = {
        "word/document.xml": f'<w:d xmlns:w="w">{paragraph("x")}</w:d>',
        "word/embeddings/sums.xlsx": b"",
    }

    (remark,) = read_docx(archive(parts)).remarks

    assert remark.kind == "unread part"
    assert "sums.xlsx" in remark.detail


def test_damaged_header_or_style_costs_only_itself():
    extraction = read_docx(docx(paragraph("Body.", "Titel"), header1="<w:p>"))

    assert extraction.text == "# Body."
    assert [remark.detail for remark in extraction.remarks] == [
        "the part word/header1.xml is damaged"
    ]


def test_damaged_properties_are_left_out_and_named():
    parts = {
        "word/document.xml": f'<w:d xmlns:w="w">{paragraph("x")}</w:d>',
        "docProps/core.xml": "<p:core>",
    }
    extraction = read_docx(archive(parts))

    assert extraction.text == "x"
    assert [remark.detail for remark in extraction.remarks] == ["its properties cannot be read"]


def test_hyphen_that_never_breaks_costs_no_word():
    body = paragraph("<w:r><w:t>sea</w:t><w:noBreakHyphen/><w:t>level</w:t></w:r>")
    extraction = read_docx(docx(body))

    assert extraction.text == "sea-level"
    assert measure_completeness(extraction) == []
