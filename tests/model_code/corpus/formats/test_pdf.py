"""Guards the PDF reader: every page is read or named, and no property refuses a file."""

from __future__ import annotations

import io

import pytest
from pypdf.generic import NameObject, TextStringObject

from model_code.corpus.formats import pdf as pdf_reader
from model_code.corpus.formats.pdf import join_cut_words, read_pdf
from model_code.corpus.rows import RowError
from tests.document_files import pdf


def test_pages_without_text_are_named():
    extraction = read_pdf(pdf(["one", "", "", "four", ""]))
    (remark,) = extraction.remarks
    assert remark.kind == "pages without text"
    assert remark.detail.startswith("pages 2-3, 5 of 5 have no text layer")
    assert "# Page 4\n\nfour" in extraction.text


def test_pages_that_would_take_long_are_named(monkeypatch):
    monkeypatch.setattr(pdf_reader, "MAX_WORK", 2)
    extraction = read_pdf(pdf(["one", "two", "three"]))
    assert "two" in extraction.text
    assert "three" not in extraction.text
    (remark,) = extraction.remarks
    assert remark.detail == "page 3 of 3 would take too long to read"


def test_scanned_file_is_refused():
    with pytest.raises(RowError, match="scanned pages need text recognition"):
        read_pdf(pdf(["", ""]))


@pytest.mark.parametrize("date", ["12/31/1999", "yesterday", "D:20240230", "D:2024-13-01", "D:"])
def test_unreadable_date_is_left_out_and_named(date):
    content = pdf(["text"]).replace(b"D:20240305120000Z", date.encode())
    extraction = read_pdf(content)
    assert "text" in extraction.text
    assert extraction.date is None
    if date != "D:":
        assert [remark.kind for remark in extraction.remarks] == ["unreadable value"]
        assert date in extraction.remarks[0].detail


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("D:20240305120000Z'", "2024-03-05T12:00:00"),
        ("D:20240305T", "2024-03-05T00:00:00"),
        ("2024-03-05 12:00", "2024-03-05 12:00"),
    ],
)
def test_date_with_a_faulty_time_zone_is_read(date, expected):
    extraction = read_pdf(pdf(["text"]).replace(b"D:20240305120000Z", date.encode()))
    assert extraction.date == expected
    assert extraction.remarks == []


@pytest.mark.parametrize("title", ["Microsoft Word - plan v2.docx", "untitled", "thesis.dvi", "-"])
def test_title_of_a_program_is_no_title(title):
    assert read_pdf(pdf(["text"], title)).title == ""


@pytest.mark.parametrize(
    ("title", "read"), [("(Silt\\000)", "Silt"), ("(Silt\\nand clay)", "Silt and clay")]
)
def test_control_characters_are_no_part_of_a_title(title, read):
    assert read_pdf(pdf(["text"]).replace(b"/Title ()", f"/Title {title}".encode())).title == read


@pytest.mark.parametrize("title", ["123", "[(Silt)]", "null", "<FEFF00>", "<< /Silt 1 >>"])
def test_title_that_is_no_text_is_left_out_and_named(title):
    extraction = read_pdf(pdf(["text"]).replace(b"/Title ()", f"/Title {title}".encode()))

    assert extraction.title == ""
    assert [remark.detail for remark in extraction.remarks] == ["its title cannot be read"]


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("the naviga-\ntion lights", "the navigation lights"),
        ("the naviga\u2010\n  tion lights", "the navigation lights"),
        ("the naviga\u00ad\ntion lights", "the navigation lights"),
        ("Austro-\nHungarian", "Austro-Hungarian"),
        ("a self-\nmade raft", "a self-made raft"),
        ("pages 3-\n5 and a -\nb", "pages 3-\n5 and a -\nb"),
        ("in-\nter-\nnal", "internal"),
        ("an out-of-the-\nway inlet", "an out-of-the-way inlet"),
        ("a flat-bot-\ntomed barge", "a flat-bottomed barge"),
        ("an A-\nframe", "an A-frame"),
    ],
)
def test_words_cut_at_line_ends_are_joined(text, joined):
    assert join_cut_words(text) == joined


def test_hyphen_that_the_document_writes_elsewhere_stays():
    assert join_cut_words("a deep-\nsea crab", {"deep-sea"}) == "a deep-sea crab"


def test_word_cut_by_a_page_is_joined():
    text = read_pdf(pdf(["The pilot sta-", "tion, by day.", "Ends with Anglo-", "Saxon"])).text

    assert text.split("\n\n") == [
        *("# Page 1", "The pilot station,"),
        *("# Page 2", "by day."),
        *("# Page 3", "Ends with Anglo-"),
        *("# Page 4", "Saxon"),
    ]


@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        ("(quay) Tj /F1 8 Tf 30 4 Td (12) Tj /F1 12 Tf 9 -4 Td (is) Tj", "quay 12 is"),
        ("(quay) Tj 4 Ts /F1 8 Tf (3,4) Tj 0 Ts /F1 12 Tf ( is) Tj", "quay 3,4 is"),
        ("/F1 7 Tf (5) Tj /F1 10 Tf (Dredged twice) Tj", "5 Dredged twice"),
        ("(40 m) Tj /F1 8 Tf 30 4 Td (2) Tj /F1 12 Tf 5 -4 Td (, H) Tj", "40 m2, H"),
        ("(berth 7) Tj (12) Tj", "berth 712"),
        ("(pier7) Tj /F1 8 Tf 38 4 Td (12) Tj", "pier7 12"),
    ],
)
def test_mark_of_a_footnote_is_a_word_of_its_own(drawn, text):
    page = pdf(["x) Tj " + drawn + " (x"])

    words = read_pdf(page).text.removeprefix("# Page 1\n\n")

    assert " ".join(words.removeprefix("x").removesuffix("x").split()) == text


def draw_letters(text: str, letters: str) -> bytes:
    """Return a PDF that draws a text, in which A, B and so on stand for other letters."""
    names = " ".join(f"/uni{ord(letter):04X}" for letter in letters)
    encoding = f"/BaseFont /Helvetica /Encoding << /Differences [65 {names}] >> >>"
    return pdf([text]).replace(b"/BaseFont /Helvetica >>", encoding.encode())


@pytest.mark.parametrize("drawn", ["AB", "AB C", "C AB", "x C AB", "C x AB", "C) Tj 0 -20 Td (AB"])
def test_number_in_arabic_digits_keeps_its_order(drawn):
    # The digits are drawn from left to right: four and two.
    assert "\u0664\u0662" in read_pdf(draw_letters(drawn, "\u0664\u0662\u0628")).text


@pytest.mark.parametrize(
    ("drawn", "letters", "share"),
    [("AAAA AAA dock", "東", 7 / 11), ("A dock", "\0", 1 / 5), ("A dock", "東", None)],
)
def test_letters_that_the_fonts_lack_are_reported(drawn, letters, share):
    shares = [remark.share for remark in read_pdf(draw_letters(drawn, letters)).remarks]
    assert shares == ([] if share is None else [pytest.approx(share)])


@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        ("(oat) Tj /Span << /ActualText <FEFF00AD> >> BDC (-) Tj EMC (meal) Tj", "oat\u00admeal"),
        ("(wa) Tj /Span << /ActualText (ffl) >> BDC [(X) 20 (Y)] TJ EMC (e) Tj", "waffle"),
        (
            "/Span << /ActualText (tea) >> BDC (X) Tj /P BMC (Y) Tj EMC (Z) Tj EMC (pot) Tj",
            "teapot",
        ),
        ("/Span << /ActualText () >> BDC (rye) Tj EMC", "rye"),
        ("/Span << /MCID 3 >> BDC (rye) Tj EMC", "rye"),
        ("EMC (rye) Tj", "rye"),
    ],
)
def test_text_that_is_stated_for_letters_replaces_them(drawn, text):
    assert read_pdf(pdf([f") Tj {drawn} ("])).text == f"# Page 1\n\n{text}"


def test_stated_text_is_as_wide_as_the_drawn_letters():
    # The letter M is ten units wide, and the next letter follows without a gap.
    stated = "/Span << /ActualText <FEFF6771> >> BDC (M) Tj EMC"
    page = pdf([f") Tj {stated} 10 0 Td (x) Tj {stated} 24 0 Td (y"])

    assert read_pdf(page).text == "# Page 1\n\n東x東 y"


def test_words_that_lie_left_of_a_word_are_not_joined_to_it():
    page = pdf(["bread) Tj ET BT /F1 12 Tf 20 700 Td (7"])
    assert read_pdf(page).text == "# Page 1\n\nbread 7"


def test_word_of_the_other_direction_is_not_joined():
    assert "dock \u05d0\u05d1" in read_pdf(draw_letters("dock) Tj (BA", "\u05d0\u05d1")).text


@pytest.mark.parametrize(
    ("places", "text"),
    [
        # Drawn from left to right, as LibreOffice and Chromium do: the right one is read first.
        ((80, 100, 120), "\u05d3 \u0664\u0662 \u05d1"),
        # Drawn from right to left, as Word does, or in cells that are far apart.
        ((120, 100, 80), "\u05d1 \u0664\u0662 \u05d3"),
        ((80, 200, 320), "\u05d1 \u0664\u0662 \u05d3"),
    ],
)
def test_pieces_from_right_to_left_are_read_in_order(places, text):
    pieces = ""
    for letters, place in zip(("C", "AB", "D"), places, strict=True):
        pieces += f") Tj ET BT /F1 12 Tf {place} 700 Td ({letters}"
    page = draw_letters(pieces, "\u0664\u0662\u05d1\u05d3")

    assert " ".join(read_pdf(page).text.split()[3:]) == text


def test_cells_from_left_to_right_are_not_joined():
    cells = "A) Tj ET BT /F1 12 Tf 280 700 Td (BA) Tj ET BT /F1 12 Tf 72 680 Td (B"
    page = draw_letters(cells, "\u05d3\u05d1")
    assert read_pdf(page).text.split()[3:] == ["\u05d3", "\u05d3\u05d1", "\u05d1"]


@pytest.mark.parametrize(
    ("drawn", "kinds"),
    [("AB", ["lost text"]), ("B dock", ["unreadable value"]), ("B 12", []), ("dock", [])],
)
def test_uncertain_order_of_letters_is_noted(drawn, kinds):
    # A is a vowel sign, and B is a letter of Hebrew.
    extraction = read_pdf(draw_letters(drawn, "\u05b8\u05d1"))
    assert [remark.kind for remark in extraction.remarks] == kinds


def test_comments_are_read_and_attachments_named():
    from pypdf import PdfReader, PdfWriter
    from pypdf.annotations import FreeText, Link

    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf(["Ships wait."]))))
    box = (10, 10, 90, 90)
    writer.add_annotation(0, FreeText(text="dredge here", rect=box))
    link = Link(rect=box, url="http://x.org")
    link[NameObject("/Contents")] = TextStringObject("a link")
    writer.add_annotation(0, link)
    writer.add_attachment("plan.txt", b"depth")
    stream = io.BytesIO()
    writer.write(stream)

    extraction = read_pdf(stream.getvalue())

    assert extraction.text == "# Page 1\n\nShips wait.\n\ndredge here"
    assert [remark.detail for remark in extraction.remarks] == [
        "the attachment plan.txt is not read"
    ]
