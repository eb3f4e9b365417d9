"""Guards the readers of slides, sheets, books, mails and notebooks with files of real libraries."""

from __future__ import annotations

import datetime
import io
import json
import re
import zipfile
from email.message import EmailMessage

import pytest

from model_code.corpus.formats import mail, xlsx
from model_code.corpus.formats.epub import read_epub
from model_code.corpus.formats.extraction import Extraction, measure_completeness
from model_code.corpus.formats.mail import read_mail
from model_code.corpus.formats.mhtml import read_mhtml
from model_code.corpus.formats.notebook import read_notebook
from model_code.corpus.formats.odt import read_odp, read_ods, read_odt
from model_code.corpus.formats.pptx import read_pptx
from model_code.corpus.formats.rtf import read_rtf
from model_code.corpus.formats.xlsx import read_xlsx
from model_code.corpus.rows import RowError
from tests.office_files import archive

CONTAINER = '<c><rootfile full-path="OPS/book.opf"/></c>'
PACKAGE = """<package xmlns:dc="d"><metadata><dc:title>Harbours</dc:title>
<dc:creator>Ida Holm</dc:creator><dc:date>2021-03-04</dc:date></metadata><manifest>
<item id="b" href="two%20b.xhtml" media-type="application/xhtml+xml"/>
<item id="a" href="one.xhtml" media-type="application/xhtml+xml"/></manifest>
<spine><itemref idref="a"/><itemref idref="b"/><itemref idref="a"/></spine></package>"""
ODT = """<o:document xmlns:o="o" xmlns:text="t" xmlns:table="b" xmlns:draw="d" xmlns:svg="s"><o:body>
<text:tracked-changes><text:p>removed</text:p></text:tracked-changes>
<text:h text:outline-level="1">Docks</text:h>
<text:p>A dry<text:s/>dock<text:note><text:note-citation>1</text:note-citation>
<text:note-body><text:p>A note.</text:p></text:note-body></text:note> holds.</text:p>
<text:p><draw:frame><svg:desc>a crane</svg:desc><draw:text-box><text:p>boxed</text:p>
</draw:text-box></draw:frame></text:p>
<table:table><table:table-row><table:table-cell><text:p>left</text:p></table:table-cell>
<table:table-cell><text:p>right</text:p></table:table-cell></table:table-row></table:table>
</o:body></o:document>"""


def require_complete(extraction: Extraction) -> Extraction:
    assert [note for note in measure_completeness(extraction) if note.kind == "lost text"] == []
    return extraction


def test_slides_are_sections_with_tables_notes_and_alt_texts():
    pptx = pytest.importorskip("pptx")
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    slide.shapes.title.text = "Harbour plan"
    table = slide.shapes.add_table(1, 2, 0, 0, 9, 9).table
    table.cell(0, 0).text = "quay"
    table.cell(0, 1).text = "depth"
    slide.notes_slide.notes_text_frame.text = "Speak slowly."
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "grouped words"
    group.shapes[0].element.nvSpPr.cNvPr.set("descr", "an alt text")
    stream = io.BytesIO()
    presentation.save(stream)

    extraction = require_complete(read_pptx(stream.getvalue()))

    assert extraction.title == "Harbour plan"
    assert extraction.text.startswith("## Harbour plan\n\nquay depth")
    for words in ("Speak slowly.", "grouped words", "an alt text"):
        assert words in extraction.text


def parts_of_presentation(title):
    """Return the parts of the file of a presentation whose only slide has a title."""
    pptx = pytest.importorskip("pptx")
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    slide.shapes.title.text = title
    stream = io.BytesIO()
    presentation.save(stream)
    return read_parts(stream.getvalue())


@pytest.mark.parametrize("kind", ["slideshow", "template"])
def test_slide_show_and_template_are_presentations(kind):
    parts = parts_of_presentation("Pilot\vboats")
    types = parts["[Content_Types].xml"]
    parts["[Content_Types].xml"] = types.replace(b"presentation.main", f"{kind}.main".encode())

    extraction = require_complete(read_pptx(archive(parts)))

    assert extraction.title == "Pilot boats"
    assert extraction.text == "## Pilot boats\n"


DAMAGED_PROPERTIES = [
    b"<broken",
    b"",
    b'<p:core xmlns:p="http://schemas.openxmlformats.org/package/2006/metadata/core-properties" '
    b'xmlns:t="http://purl.org/dc/terms/"><t:created>in spring</t:created></p:core>',
]


@pytest.mark.parametrize("properties", DAMAGED_PROPERTIES)
def test_damaged_properties_cost_no_slide(properties):
    parts = parts_of_presentation("Pilot boats")
    parts["docProps/core.xml"] = properties

    extraction = require_complete(read_pptx(archive(parts)))

    assert "Pilot boats" in extraction.text
    if b"spring" not in properties:
        assert "unreadable value" in [remark.kind for remark in extraction.remarks]


@pytest.mark.parametrize("properties", DAMAGED_PROPERTIES)
def test_damaged_properties_cost_no_number(properties):
    openpyxl = pytest.importorskip("openpyxl")
    workbook = openpyxl.Workbook()
    workbook.active.append(["cod", 42.5])
    stream = io.BytesIO()
    workbook.save(stream)
    parts = read_parts(stream.getvalue())
    parts["docProps/core.xml"] = properties

    extraction = read_xlsx(archive(parts))

    assert extraction.text == "## Sheet\n\ncod 42.5"
    assert "unread part" not in [remark.kind for remark in extraction.remarks]


def test_slides_with_a_damaged_design_are_read():
    pptx = pytest.importorskip("pptx")
    presentation = pptx.Presentation()
    for title in ("Pilot boats", "Tugs"):
        slide = presentation.slides.add_slide(presentation.slide_layouts[5])
        slide.shapes.title.text = title
    stream = io.BytesIO()
    presentation.save(stream)
    parts = read_parts(stream.getvalue())
    parts["ppt/slideLayouts/slideLayout6.xml"] = b"<broken"

    extraction = require_complete(read_pptx(archive(parts)))

    assert extraction.text == "## Slide 1\n\nPilot boats\n\n## Slide 2\n\nTugs"
    assert [remark.kind for remark in extraction.remarks] == ["unread part"]


def test_workbook_is_no_presentation():
    openpyxl = pytest.importorskip("openpyxl")
    stream = io.BytesIO()
    openpyxl.Workbook().save(stream)

    with pytest.raises(RowError, match="it is no presentation"):
        read_pptx(stream.getvalue())


def read_parts(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        return {name: source.read(name) for name in source.namelist()}


def test_sheets_are_sections_with_a_line_per_row():
    openpyxl = pytest.importorskip("openpyxl")
    from openpyxl.comments import Comment

    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet.title = "Catch"
    sheet.append(["cod", 3.0, 2.5, datetime.date(2022, 2, 1)])
    sheet["A3"] = "=SUM(B1:C1)"
    sheet["A1"].comment = Comment("weighed twice", "x")
    sheet.merge_cells("D5:F5")
    sheet["D5"] = "merged cell"
    stream = io.BytesIO()
    workbook.save(stream)

    extraction = require_complete(read_xlsx(stream.getvalue()))

    assert extraction.text.startswith("## Catch\n\ncod 3 2.5 2022-02-01\nmerged cell")
    assert "weighed twice" in extraction.text
    assert "1 cells hold formulas" in extraction.remarks[0].detail


def test_sheet_with_a_far_cell_is_refused_in_bounded_time():
    openpyxl = pytest.importorskip("openpyxl")
    workbook = openpyxl.Workbook()
    for row in range(1, 400):
        workbook.active.cell(row, 16_384, "x")
    stream = io.BytesIO()
    workbook.save(stream)

    with pytest.raises(RowError, match="more than 5,000,000 cells"):
        read_xlsx(stream.getvalue())


def test_text_that_many_cells_share_is_bounded(monkeypatch):
    openpyxl = pytest.importorskip("openpyxl")
    monkeypatch.setattr(xlsx, "MAX_CHARACTERS", 1000)
    workbook = openpyxl.Workbook()
    for sheet in (workbook.active, workbook.create_sheet()):
        sheet.append(["word " * 60, "word " * 60])
    stream = io.BytesIO()
    workbook.save(stream)

    with pytest.raises(RowError, match="more than 1,000 characters"):
        read_xlsx(stream.getvalue())


def test_slide_that_is_listed_often_is_read_once():
    pptx = pytest.importorskip("pptx")
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    slide.shapes.title.text = "Buoys"
    slide.notes_slide.notes_text_frame.text = "Speak slowly."
    stream = io.BytesIO()
    presentation.save(stream)
    parts = read_parts(stream.getvalue())
    listed = re.search(rb"<p:sldId .*?/>", parts["ppt/presentation.xml"])[0]
    parts["ppt/presentation.xml"] = parts["ppt/presentation.xml"].replace(listed, listed * 500)

    extraction = require_complete(read_pptx(archive(parts)))

    assert extraction.text.count("Buoys") == 1
    assert extraction.text.count("Speak slowly.") == 1


def test_link_in_a_presentation_joins_no_word():
    pptx = pytest.importorskip("pptx")
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    paragraph = slide.placeholders[1].text_frame.paragraphs[0]
    paragraph.add_run().text = "dredged"
    mark = paragraph.add_run()
    mark.text = "1"
    mark.hyperlink.address = "#notes"
    stream = io.BytesIO()
    presentation.save(stream)

    extraction = require_complete(read_pptx(stream.getvalue()))

    assert "dredged  1" in extraction.text


def test_raised_number_in_a_presentation_joins_no_word():
    pptx = pytest.importorskip("pptx")
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    paragraph = slide.placeholders[1].text_frame.paragraphs[0]
    paragraph.add_run().text = "dredged"
    mark = paragraph.add_run()
    mark.text = "1"
    mark.font._element.set("baseline", "30000")
    stream = io.BytesIO()
    presentation.save(stream)

    assert "dredged 1" in require_complete(read_pptx(stream.getvalue())).text


@pytest.mark.parametrize(
    ("position", "text"),
    [
        ("super 58%", "the weir 7 held"),
        ("33% 58%", "the weir 7 held"),
        ("-33% 58%", "the weir7held"),
    ],
)
@pytest.mark.parametrize("read", [read_odt, read_odp])
def test_raised_number_in_an_open_document_joins_no_word(position, text, read):
    style = f'<s:style s:name="T1"><s:text-properties s:text-position="{position}"/></s:style>'
    paragraph = '<t:p>the weir<t:span t:style-name="T1">7</t:span>held</t:p>'
    content = f'<o:d xmlns:o="o" xmlns:s="s" xmlns:t="t">{style}<t:page>{paragraph}</t:page></o:d>'

    extraction = require_complete(read(archive({"content.xml": content})))

    assert extraction.text.splitlines()[-1] == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r"the weir{\super 7}held", "the weir 7 held"),
        (r"the weir\super\fs16 7\nosupersub  held", "the weir 7 held"),
        (r"40 km{\super 2}", "40 km2"),
        (r"acid{\sub 7}", "acid7"),
    ],
)
def test_raised_number_in_rich_text_joins_no_word(source, text):
    assert " ".join(read_rich_text(source + r"\par").text.split()) == text


def test_open_document_text_is_read_once():
    parts = {"content.xml": ODT, "meta.xml": '<m xmlns:dc="d"><dc:title>Docks</dc:title></m>'}
    extraction = require_complete(read_odt(archive(parts)))

    assert extraction.title == "Docks"

    lines = [" ".join(line.split()) for line in extraction.text.splitlines() if line.strip()]
    assert lines == ["# Docks", "A note.", "A dry dock holds.", "boxed", "a crane", "left right"]


@pytest.mark.parametrize("name", ["styles.xml", "meta.xml", "META-INF/manifest.xml"])
@pytest.mark.parametrize("read", [read_odt, read_ods, read_odp])
def test_damaged_side_part_of_open_document_costs_only_itself(name, read):
    sheet = '<t:table t:name="S"><t:table-row><t:table-cell><t:p>cod</t:p></t:table-cell></t:table-row></t:table>'
    bodies = {
        read_odt: "<t:p>cod</t:p>",
        read_ods: sheet,
        read_odp: "<t:page><t:p>cod</t:p></t:page>",
    }
    content = f'<o:document xmlns:o="o" xmlns:t="t"><o:body>{bodies[read]}</o:body></o:document>'

    extraction = read(archive({"content.xml": content, name: "<broken"}))

    assert extraction.text.endswith("cod")
    if "manifest" not in name:
        assert len(extraction.remarks) == 1


OPEN_DOCUMENT = """<o:document-content xmlns:o="o" xmlns:t="t" xmlns:d="d" xmlns:p="p"
  xmlns:x="x"><o:body>{}</o:body></o:document-content>"""


def test_open_document_sheets_are_sections():
    sheets = """<o:spreadsheet><t:table t:name="Catch"><t:table-row>
      <t:table-cell><x:p>cod</x:p></t:table-cell>
      <t:table-cell o:value="2.5"><x:p>2,5</x:p><o:annotation><x:p>wet</x:p></o:annotation>
      </t:table-cell></t:table-row></t:table>
      <t:table t:name="Empty"><t:table-row><t:table-cell/></t:table-row></t:table>
      <t:table t:name="Boats"><t:table-row><t:table-cell><x:p>smack</x:p></t:table-cell>
      </t:table-row></t:table></o:spreadsheet>"""

    extraction = require_complete(read_ods(archive({"content.xml": OPEN_DOCUMENT.format(sheets)})))

    lines = [line.strip() for line in extraction.text.splitlines() if line.strip()]
    assert lines == ["## Catch", "cod 2,5 wet", "## Boats", "smack"]


def test_open_document_slides_are_sections():
    slides = """<o:presentation><d:page d:name="page1"><d:frame p:class="title"><d:text-box>
      <x:p>Tides</x:p></d:text-box></d:frame><d:frame><d:text-box><x:list><x:list-item>
      <x:p>spring</x:p></x:list-item></x:list></d:text-box></d:frame>
      <p:notes><d:frame><d:text-box><x:p>Say it slowly.</x:p></d:text-box></d:frame></p:notes>
      </d:page><d:page d:name="page2"><d:frame><d:text-box><x:p>neap</x:p></d:text-box></d:frame>
      </d:page></o:presentation>"""

    extraction = require_complete(read_odp(archive({"content.xml": OPEN_DOCUMENT.format(slides)})))

    lines = [line.strip() for line in extraction.text.splitlines() if line.strip()]
    assert lines == ["## Tides", "spring", "Say it slowly.", "## Slide 2", "neap"]


def test_rich_text_is_read_with_its_notes():
    source = r"""{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Times;}}{\info{\title Weir upkeep}}
      Caf\'e9 costs 5 \u8364? \u55357?\u56832?.\par
      \trowd\cellx1000 left\cell right\cell\row
      {\header A header.}{\footnote A footnote.}{\*\annotation A remark.}}"""

    extraction = require_complete(read_rtf(source.encode()))

    assert extraction.title == "Weir upkeep"
    words = " ".join(extraction.text.split())
    assert words == "Café costs 5 € 😀. left right A header. A footnote. A remark."


def test_note_inside_of_a_word_is_no_loss():
    note = r"{\super\chftn{\footnote{\super\chftn} Low water.}}"
    assert read_rich_text(rf"ebb{note}tide").text == "ebbtide\nLow water."

    note = "<t:note><t:note-body><t:p>Low water.</t:p></t:note-body></t:note>"
    content = f'<o:d xmlns:o="o" xmlns:t="t"><t:p>ebb{note}tide</t:p></o:d>'
    extraction = require_complete(read_odt(archive({"content.xml": content})))
    assert extraction.text == "Low water.\nebbtide"


def read_rich_text(body: str) -> Extraction:
    """Read a document of Rich Text that must be complete."""
    source = rf"{{\rtf1\ansi\ansicpg1252 {body}}}"
    return require_complete(read_rtf(source.encode("latin-1")))


def test_deleted_text_of_rich_text_is_not_read():
    assert read_rich_text(r"The {\deleted\b old }{\revised new }gate.").text == "The new gate."


def test_hidden_text_of_rich_text_is_left_out():
    extraction = read_rich_text(r"The gate {\v leaks }holds.")

    assert extraction.text == "The gate holds."
    assert extraction.left_out == ["leaks "]


def test_text_boxes_and_alt_texts_of_rich_text_are_read():
    shape = r"{\sp{\sn wzDescription}{\sv a crane}}{\shptxt \pard Boxed words.\par}"
    repeated = r"{\shprslt{\*\do{\dptxbxtext Boxed words.}}}"
    extraction = read_rich_text(rf"Beside {{\shp{{\*\shpinst {shape}}}{repeated}}}it.\par")

    assert extraction.text.split("\n") == ["a crane", "Boxed words.", "Beside it."]


@pytest.mark.parametrize(
    ("title", "text"), [("a lock keeper", "a lock keeper\nend"), ("Picture 3", "end")]
)
def test_titles_of_pictures_in_rich_text_are_read(title, text):
    picture = rf"{{\*\shppict {{\pict {{\*\picprop {{\sp{{\sn wzName}}{{\sv {title}}}}}}}}}}}"
    assert read_rich_text(picture + r" end\par").text == text


def test_properties_of_rich_text_become_fields():
    info = r"{\info{\keywords weir, eels}{\subject Water}{\doccomm A survey.}{\author N. N.}}"
    custom = r"{\*\userprops {\propname Abstract}\proptype30{\staticval Few eels.}}"

    extraction = read_rich_text(info + custom + r" text\par")

    assert extraction.fields == {
        "keywords": ["weir", "eels"],
        "subject": "Water",
        "description": "A survey.",
        "abstract": "Few eels.",
    }
    assert extraction.text == "text"


def test_headings_of_rich_text_are_kept():
    extraction = read_rich_text(r"\pard\outlinelevel1 Piers\par\pard Wood.\par")

    assert extraction.text == "## Piers\n\nWood."


def test_fonts_of_rich_text_state_encodings():
    fonts = r"{\fonttbl{\f0\fcharset204 Arial;}{\f1\fcharset128 Mincho;}}"
    extraction = read_rich_text(rf"{fonts}\f0 \'cf\'eb\'ee\'f2 \f1\'93\'fa\'96\'7b\par")

    assert extraction.text == "Плот 日本"


def test_unicode_of_rich_text_replaces_its_older_form():
    extraction = read_rich_text(
        r"{\upr{\*\x a}{\*\ud b}} \uc2\u960 pi \uc0\u960 x \uc1\u8220\lquote"
    )

    assert extraction.text == "b π πx “"


def test_formulas_and_readings_of_rich_text_are_read():
    fraction = r"{\mmath{\*\moMath{\mf{\mnum{\mr tide}}{\mden{\mr hour}}}}{\mmathPict x}}"
    reading = r"{\field{\*\fldinst EQ \\* jc2 \\o\\ad(\\s\\up 9(\u12363?),\u28450?)}{\fldrslt }}"

    assert read_rich_text(fraction).text.split() == ["tide", "hour"]
    assert read_rich_text(reading).text == "漢 か"


def test_date_of_rich_text_is_read():
    extraction = read_rich_text(r"{\info{\creatim\yr2021\mo3\dy4\hr5\min6}}Words.")

    assert extraction.date == "2021-03-04"


def test_picture_in_rich_text_may_hold_braces():
    assert read_rich_text(r"One {\pict\bin4 }}{{}two.").text == "One two."


def test_rich_text_that_the_reader_misses_is_reported():
    # Text that is only partly deleted shows what the check does with a difference.
    extraction = read_rtf(rb"{\rtf1 One two \deleted three}")

    (remark,) = measure_completeness(extraction)
    assert remark.kind == "lost text"
    assert remark.share == 1 / 3


def test_rich_text_with_many_links_is_read_in_linear_time():
    link = r'{\field{\*\fldinst{HYPERLINK "http://a.b" }}{\fldrslt weir}} '

    assert read_rich_text(link * 3_000).text.split() == ["weir"] * 3_000


def test_deep_rich_text_is_refused():
    with pytest.raises(RowError, match="nests groups more than 5,000 deep"):
        read_rtf(b"{\\rtf1 " + b"{" * 6_000)


def test_text_with_suffix_of_rich_text_is_refused():
    with pytest.raises(RowError, match="it is no Rich Text"):
        read_rtf(b"plain text")


def test_hidden_text_of_an_open_document_is_left_out():
    styles = """<s:style s:name="H"><s:text-properties t:display="none"/></s:style>"""
    body = """<t:p>A <t:span t:style-name="H">secret</t:span> gate.</t:p>
      <t:p t:style-name="H">secret line</t:p><t:section t:display="none"><t:p>secret part</t:p>
      </t:section><t:p>End.</t:p>"""
    content = f'<o:d xmlns:o="o" xmlns:s="s" xmlns:t="t">{styles}{body}</o:d>'

    extraction = require_complete(read_odt(archive({"content.xml": content})))

    assert extraction.text.split() == ["A", "gate.", "End."]
    assert " ".join(" ".join(extraction.left_out).split()) == "secret secret line secret part"


def test_reading_of_an_open_document_is_a_word_of_its_own():
    ruby = "<t:ruby><t:ruby-base>漢字</t:ruby-base><t:ruby-text>かんじ</t:ruby-text></t:ruby>"
    content = f'<o:d xmlns:o="o" xmlns:t="t"><t:p>{ruby}です</t:p></o:d>'

    extraction = require_complete(read_odt(archive({"content.xml": content})))

    assert extraction.text == "漢字 かんじ です"


def test_headers_of_open_document_sheets_are_read():
    content = """<o:d xmlns:o="o" xmlns:t="t" xmlns:x="x" xmlns:s="s">
      <s:style s:family="table" s:master-page-name="Mine"/>
      <t:table t:name="A"><t:table-row><t:table-cell><x:p>cod</x:p></t:table-cell></t:table-row>
      </t:table></o:d>"""
    styles = """<o:d xmlns:o="o" xmlns:x="x" xmlns:s="s"><s:master-page s:name="Mine"><s:header>
      <x:p>Landed <x:sheet-name>???</x:sheet-name></x:p></s:header></s:master-page>
      <s:master-page s:name="Report"><x:p>template</x:p></s:master-page></o:d>"""

    extraction = require_complete(read_ods(archive({"content.xml": content, "styles.xml": styles})))

    assert extraction.text.split() == ["##", "A", "cod", "Landed"]


def test_link_in_a_slide_of_open_document_joins_no_word():
    page = "<p:page><t:p>dredged<t:span><t:a>1</t:a></t:span> twice</t:p></p:page>"

    extraction = require_complete(read_odp(archive({"content.xml": OPEN_DOCUMENT.format(page)})))

    assert "dredged 1 twice" in " ".join(extraction.text.split())


def test_footers_of_open_document_slides_are_read():
    slides = """<p:footer-decl p:name="f">Harbour board</p:footer-decl><d:page><d:frame>
      <d:text-box><x:p>neap</x:p></d:text-box></d:frame></d:page>"""

    extraction = require_complete(read_odp(archive({"content.xml": OPEN_DOCUMENT.format(slides)})))

    assert extraction.text.split("\n")[-1] == "Harbour board"


def test_headers_of_sheets_are_read_without_their_codes():
    openpyxl = pytest.importorskip("openpyxl")
    workbook = openpyxl.Workbook()
    workbook.active.append(["cod"])
    workbook.active.oddHeader.center.text = "Cod && ling, page &P"
    workbook.active.oddHeader.center.font = "Arial,Bold"
    stream = io.BytesIO()
    workbook.save(stream)

    assert read_xlsx(stream.getvalue()).text.split("\n")[-1] == "Cod & ling, page"


def test_formula_of_an_open_document_is_read():
    formula = '<math xmlns="m"><mi>gauge</mi><mo>+</mo><annotation>hidden</annotation></math>'
    parts = {"content.xml": ODT, "Formula-1/content.xml": formula}
    extraction = require_complete(read_odt(archive(parts)))

    assert extraction.text.endswith("gauge+")


@pytest.fixture
def book_parts():
    """The files of a book of two chapters."""
    return {
        "META-INF/container.xml": CONTAINER,
        "OPS/book.opf": PACKAGE,
        "OPS/one.xhtml": "<html><body><h1>Piers</h1><p>Wood.</p></body></html>",
        "OPS/two b.xhtml": "<html><body><h1>Locks</h1><p>Stone.</p></body></html>",
    }


def test_book_has_title_date_and_author(book_parts):
    book = read_epub(archive(book_parts))

    assert book.title == "Harbours"
    assert book.date == "2021-03-04"
    assert book.fields == {"author": "Ida Holm"}


def test_chapters_of_a_book_follow_its_spine(book_parts):
    book = require_complete(read_epub(archive(book_parts)))

    assert book.text == "# Piers\n\nWood.\n\n# Locks\n\nStone."


def test_missing_chapter_is_reported(book_parts):
    book_parts.pop("OPS/two b.xhtml")

    book = read_epub(archive(book_parts))

    assert "OPS/two b.xhtml is missing" in book.remarks[0].detail


@pytest.mark.parametrize("title", ["Docks & Harbours", "Docks&nbsp;Harbours", "Docks <Harbours>"])
def test_book_with_unescaped_title_is_read(book_parts, title):
    book_parts["OPS/book.opf"] = PACKAGE.replace("Harbours", title, 1)

    book = read_epub(archive(book_parts))

    assert book.title.startswith("Docks")
    assert book.remarks == []


def test_chapter_is_found_in_any_case(book_parts):
    book_parts["OPS/Two B.xhtml"] = book_parts.pop("OPS/two b.xhtml")

    assert read_epub(archive(book_parts)).remarks == []


def test_protected_book_is_refused(book_parts):
    book_parts["META-INF/encryption.xml"] = '<e><CipherReference URI="OPS/one.xhtml"/></e>'

    with pytest.raises(RowError, match="protected against copying"):
        read_epub(archive(book_parts))


def test_chapter_that_the_spine_lacks_follows():
    parts = {
        "META-INF/container.xml": CONTAINER,
        "OPS/book.opf": PACKAGE.replace('<itemref idref="a"/>', ""),
        "OPS/one.xhtml": "<html><body><p>Wood.</p></body></html>",
        "OPS/two b.xhtml": "<html><body><p>Stone.</p></body></html>",
    }

    assert sorted(read_epub(archive(parts)).text.split()) == ["Stone.", "Wood."]


def test_longest_form_of_a_mail_is_read():
    mail = EmailMessage()
    mail["Subject"] = "Ferry times"
    mail["From"] = "Ida <ida@example.org>"
    mail["Date"] = "Tue, 5 Mar 2024 10:00:00 +0100"
    mail.set_content("The ferry is late.")
    mail.add_alternative("<p>The ferry is <b>late</b> today.</p>", subtype="html")
    mail.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="times.pdf")

    extraction = require_complete(read_mail(mail.as_bytes()))

    assert extraction.title == "Ferry times"
    assert extraction.date == "2024-03-05T10:00:00+01:00"
    assert extraction.fields == {"from": "Ida <ida@example.org>"}
    assert extraction.text == "The ferry is late today."
    assert [remark.detail for remark in extraction.remarks] == [
        "the attachment times.pdf is not read"
    ]


def test_forwarded_mail_is_read_with_its_subject():
    inner = EmailMessage()
    inner["Subject"] = "Low tide"
    inner.set_content("Bring boots.")
    mail = EmailMessage()
    mail["Subject"] = "Fwd"
    mail.set_content("See below.")
    mail.add_attachment(inner)
    lines = require_complete(read_mail(mail.as_bytes())).text.split("\n\n")

    assert lines == ["See below.", "Low tide", "Bring boots."]


def test_unreadable_part_of_a_mail_costs_only_itself():
    mail = b"Subject: x\nContent-Type: multipart/mixed; boundary=b\n\n"
    parts = b"--b\nContent-Type: text/plain\n\na\0b\n--b\nContent-Type: text/plain\n\nwords\n--b--"
    extraction = read_mail(mail + parts)

    assert extraction.text.strip() == "words"
    assert [remark.kind for remark in extraction.remarks] == ["unread part"]


def test_words_of_the_other_form_of_a_mail_are_reported():
    mail = EmailMessage()
    mail["Subject"] = "x"
    mail.set_content("one two three four")
    mail.add_alternative("<p>five</p>", subtype="html")

    (remark,) = measure_completeness(read_mail(mail.as_bytes()))

    assert remark.kind == "lost text"
    assert remark.share == 1 / 6


@pytest.mark.parametrize("header", [b"Date: soon\n", b"Subject: =?bad?=\n", b"To: <<>>,,\xff\n"])
def test_malformed_header_refuses_no_mail(header):
    assert read_mail(header + b"X: y\n\nThe text.").text == "The text."


def nested_mail(levels: int) -> bytes:
    """Return a mail with parts in parts."""
    parts = [f'Content-Type: multipart/mixed; boundary="b{n}"\n\n--b{n}\n' for n in range(levels)]
    return ("Subject: x\n" + "".join(parts) + "\nwords").encode()


def test_mail_that_nests_parts_too_deep_is_refused():
    with pytest.raises(RowError, match="nested too deep"):
        read_mail(nested_mail(1_000))


def test_mail_with_too_many_parts_is_refused(monkeypatch):
    parts = b"--b\nContent-Type: text/plain\n\nwords\n" * 20
    content = b"Subject: x\nContent-Type: multipart/mixed; boundary=b\n\n" + parts + b"--b--\n"
    assert read_mail(content).text.count("words") == 20

    monkeypatch.setattr(mail, "MAX_PARTS", 10)
    with pytest.raises(RowError, match="more than 10 parts"):
        read_mail(content)


def test_mail_with_many_boundaries_and_lines_is_refused(monkeypatch):
    monkeypatch.setattr(mail, "MAX_BOUNDARY_COMPARISONS", 1_000)
    with pytest.raises(RowError, match="20 boundaries and too many lines"):
        read_mail(nested_mail(20) + b"\n" * 100)


def test_long_header_of_a_mail_is_cut_and_noted():
    subject = "=?utf-8?q?w=C3=A4?= " * 10_000
    extraction = read_mail(f"Subject: {subject}\n\nwords".encode())

    assert extraction.text == "words"
    assert extraction.title.startswith("wä")
    details = [remark.detail for remark in extraction.remarks]
    assert details == ["only 50,000 characters of the header subject are read"]


def test_notebook_keeps_texts_code_and_outputs():
    output = {"output_type": "stream", "name": "stdout", "text": ["tons: 4\n"]}
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Catch\n", "Use <net> here."]},
        {
            "cell_type": "code",
            "metadata": {},
            "source": "print(catch)",
            "outputs": [output],
            "execution_count": 1,
        },
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    extraction = require_complete(read_notebook(json.dumps(notebook).encode()))

    assert extraction.text == "# Catch\n\nUse <net> here.\n\nprint(catch)\n\ntons: 4\n"


def test_notebook_that_breaks_its_format_is_read():
    cells = [{"cell_type": "markdown", "source": "Words."}]
    content = json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}})

    assert read_notebook(content.encode()).text == "Words."


@pytest.mark.parametrize("content", ["{}", "[]", "[" * 100_000, "words"])
def test_json_that_is_no_notebook_is_refused(content):
    with pytest.raises(RowError, match="it is no notebook"):
        read_notebook(content.encode())


def saved_page(*pages: str) -> bytes:
    """Return pages and a picture as a browser saves them in one file."""
    message = EmailMessage()
    message["From"] = "<Saved by a browser>"
    message["Subject"] = "Harbour"
    message.make_related()
    for page in pages:
        message.add_related(page, subtype="html")
    message.add_related(b"\x89PNG", maintype="image", subtype="png")
    return message.as_bytes()


def test_saved_page_is_read_with_its_frames():
    page = "<title>Quays</title><p>A <b>dry</b> dock für Möwen.</p>"
    extraction = require_complete(read_mhtml(saved_page(page, "<p>A frame.</p>")))

    assert extraction.title == "Quays"
    assert "A dry dock für Möwen." in extraction.text
    assert "A frame." in extraction.text
    assert extraction.remarks == []


def test_saved_page_without_a_page_is_refused():
    with pytest.raises(RowError, match="holds no page"):
        read_mhtml(saved_page())


def test_workbook_that_the_library_cannot_open_keeps_its_texts():
    openpyxl = pytest.importorskip("openpyxl")
    workbook = openpyxl.Workbook()
    workbook.active.append(["sturgeon", "perch"])
    # openpyxl writes an empty chart sheet, and fails to read it.
    workbook.create_chartsheet("Empty")
    stream = io.BytesIO()
    workbook.save(stream)

    extraction = require_complete(read_xlsx(stream.getvalue()))

    assert extraction.text.split() == ["sturgeon", "perch"]
    assert "no numbers" in extraction.remarks[-1].detail


def test_header_of_a_mail_may_have_any_encoding():
    mail = "Subject: Über die Brücke\nFrom: x@y.org\n\nGeöffnet.".encode("cp1252")

    assert read_mail(mail).title == "Über die Brücke"


def test_mail_that_states_no_mark_between_its_parts_is_read():
    mail = b"Subject: Ferry\nContent-Type: multipart/mixed\n\nThe ferry leaves at noon."

    assert read_mail(mail).text == "The ferry leaves at noon."


def test_comment_in_the_code_of_a_notebook_is_no_heading():
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": "# load\n\nrun()"},
        {"cell_type": "markdown", "metadata": {}, "source": "# Tides"},
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    extraction = read_notebook(json.dumps(notebook).encode())

    assert extraction.text == "\\# load\n\nrun()\n\n# Tides"
