"""Guards what is read of files of one document: titles, headings, dates and words of every type,
and each refusal.
"""

from __future__ import annotations

import json

import pytest

from model_code.corpus.cleaning import clean_document, clean_text
from model_code.corpus.rows import RefusedRow, Row
from model_code.corpus.sources import document_files
from model_code.corpus.sources.document_files import read_document, read_document_bytes
from model_code.text.passages import passage_spans, section_at
from tests.document_files import pdf, write_docx
from tests.office_files import docx, paragraph

MARKDOWN = """---
title: On moss
date: 2024-03-05
tags: [green, soft]
---
# On moss

It *grows* in [shade](http://x.org "of trees").

## Kinds

- peat
- ```
  # no heading
  ```

| a | b |
|---|---|
| c | d |
"""
HTML = """<!doctype html><html><head><title>On  ferns</title><meta name="date" content="2023-01-02">
<style>p {color: red}</style></head><body><nav>Home</nav><h1>On ferns</h1><p>They<!-- x --> unroll<br>slowly.</p>
<h2>Use <em>them</em></h2><script>alert(1)</script><ul><li>as food</li></ul></body></html>"""


def read(tmp_path, name, content):
    """Write a file of bytes or text, and read it as a document."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    return read_document(path, name, name)


def values(tmp_path, name, content):
    return dict(read(tmp_path, name, content).values)


def test_markdown_keeps_front_matter_headings_and_words(tmp_path):
    found = values(tmp_path, "notes/moss.md", MARKDOWN)

    assert found["id"] == "notes/moss.md"
    assert found["title"] == "On moss"
    assert str(found["date"]) == "2024-03-05"
    assert found["fields"] == {"tags": ["green", "soft"], "folder": "notes"}
    assert found["text"].startswith("It grows in shade (of trees).\n\n## Kinds\n\n- peat")
    assert clean_text(found["text"]).endswith("\\# no heading\n\na b\n\nc d")


def test_rules_around_text_are_no_front_matter(tmp_path):
    assert values(tmp_path, "rule.md", "---\nwords\n---\n")["text"] == "## words"


def test_html_keeps_what_a_browser_shows(tmp_path):
    found = values(tmp_path, "ferns.html", HTML)

    assert found["title"] == "On ferns"
    assert found["date"] == "2023-01-02"
    assert found["text"] == "They unroll\nslowly.\n\n## Use them\n\n- as food"


def test_declared_text_encodings_are_read(tmp_path):
    latin = '<meta charset="iso-8859-1"><p>caf\u00e9'.encode("latin-1")

    assert values(tmp_path, "a.html", latin)["text"] == "caf\u00e9"
    assert values(tmp_path, "b.txt", "\u6392\u5e8f".encode("utf-16"))["text"] == "\u6392\u5e8f"
    assert values(tmp_path, "c.txt", b"\xef\xbb\xbfx")["text"] == "x"


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", "\U0001f33f\U0001f342", "\U0001f33f\U0001f342"),
        ("a.txt", "moss\rfern\r", "moss\nfern\n"),
        ("a.html", "<table><tr><th>a<th>b</tr><tr><td>c<td>d</table>", "a  b\n\nc  d"),
        ("a.html", "<p>moss&amp;fern &lt;i&gt; &eacute; &#127807;", "moss&fern <i> é \U0001f33f"),
    ],
)
def test_unusual_text_is_read(tmp_path, name, content, text):
    assert values(tmp_path, name, content)["text"] == text


def test_front_matter_with_mark_and_carriage_returns_is_read():
    data = b"\xef\xbb\xbf---\r\ntitle: Moss\r\ndate: 2024-03-05\r\n---\r\n\r\nIt grows.\r\n"

    row = read_document_bytes(data, ".md", "a.md", "a.md")

    assert isinstance(row, Row)
    assert row.values["title"] == "Moss"
    assert row.values["text"] == "It grows."


def test_dates_and_numbers_of_front_matter_are_kept():
    source = "---\ndate: 2024-03-05 22:15:00 +0300\nsize: .nan\nseen: 2024-04-01\nin: {a: [1]}\n---\nMoss."
    row = read_document_bytes(source.encode(), ".md", "a.md", "a.md")
    assert isinstance(row, Row)

    document = clean_document(row, 1000)

    assert document.date == "2024-03-05T22:15:00+03:00"
    assert document.fields == {"size": None, "seen": "2024-04-01", "in": {"a": [1]}}


def test_restructured_text_titles_become_headings(tmp_path):
    text = (
        "=====\nMoss\n=====\n\nIntro.\n\nKinds\n-----\n\n.. unknown:: kept\n\nPeat\n~~~~\nSoft.\n"
    )
    found = values(tmp_path, "moss.rst", text)

    assert found["title"] == "Moss"
    assert found["text"] == "Intro.\n\n\n## Kinds\n\n\n.. unknown:: kept\n\n\n### Peat\n\nSoft."


def test_the_pages_of_a_pdf_are_sections(tmp_path):
    found = values(tmp_path, "book.pdf", pdf(["one moss", "", "two ferns"], "A book"))
    assert found["title"] == "A book"
    assert found["date"] == "2024-03-05T12:00:00+00:00"

    passages = passage_spans(found["text"], 50, 40, "sections")
    assert [section_at(found["text"], one.start) for one in passages] == ["Page 1", "Page 3"]


def test_docx_keeps_headings_and_paragraphs(tmp_path):
    path = tmp_path / "a.docx"
    write_docx(path, "Report", ("Moss", "It grows."), ("Ferns", "They unroll."))

    values = read_document(path, "a.docx", "a.docx").values

    assert values["title"] == "Report"
    assert values["text"].strip() == "# Moss\n\nIt grows.\n\n# Ferns\n\nThey unroll."


def test_first_heading_is_the_title_of_a_docx_without_title(tmp_path):
    path = tmp_path / "a.docx"
    write_docx(path, "", ("Moss", "It grows."), ("Ferns", "They unroll."))

    values = read_document(path, "a.docx", "a.docx").values

    assert values["title"] == "Moss"
    assert values["text"] == "It grows.\n\n# Ferns\n\nThey unroll."


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pdf", b"%PDF-1.4 cut", "unreadable file"),
        ("a.docx", b"PK\x03\x04 cut", "unreadable file"),
        ("scan.pdf", pdf(["", ""]), "empty text"),
        ("a.txt", b"\x00\x01\x02\xff", "binary file"),
        ("a.md", b"a\0b", "binary file"),
        ("old.doc", b"\xd0\xcf\x11\xe0", "unreadable file"),
        ("old.docx", b"\xd0\xcf\x11\xe0", "unreadable file"),
        ("picture.png", b"\x89PNG", "unreadable file"),
        ("deck.key", b"PK\x03\x04", "unreadable file"),
        ("mails.mbox", b"From x\n", "unreadable file"),
        ("report.txt", pdf(["words"]), "unreadable file"),
        ("letter.txt", b"{\\rtf1 words}", "unreadable file"),
    ],
)
def test_unreadable_document_is_refused_with_reason(tmp_path, name, content, reason):
    found = read(tmp_path, name, content)

    assert isinstance(found, RefusedRow)
    assert found.reason == reason
    assert found.record_id == name
    assert found.location == f"{name}:1"


def test_a_huge_file_is_not_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(document_files, "MAX_FILE_BYTES", 3)

    assert read(tmp_path, "a.txt", "four").reason == "huge file"


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("2023-04-05", "2023-04-05"),
        ("2023/04/05", "2023-04-05"),
        ("2023-4-5", "2023-04-05"),
        ("2023.4.5 09:30", "2023-04-05 09:30"),
        ("last spring", None),
        ("2023-4/5", None),
    ],
)
def test_unreadable_date_is_left_out_and_named(tmp_path, date, expected):
    row = read(tmp_path, "a.html", f'<meta name="date" content="{date}"><p>words</p>')

    assert row.values["date"] == expected
    assert "date" not in row.values["fields"]

    kinds = [note.kind for note in row.notes]
    if expected:
        assert kinds == []
    else:
        assert kinds == ["unreadable value"]


def test_fields_that_no_document_can_hold_are_left_out_and_named(tmp_path):
    deep = "[" * 60 + "]" * 60
    source = f"---\ntitle: [x]\nkept: 1\ndeep: {deep}\nlong: {'x' * 90_000}\n---\nwords"
    row = read(tmp_path, "a.md", source)

    assert row.values["title"] == "a"
    assert row.values["fields"] == {}
    assert {note.kind for note in row.notes} == {"unreadable value"}

    row = read(
        tmp_path, "a.md", f"---\ntitle: [x]\nkept: 1\nlist: {deep[:40]}{deep[-40:]}\n---\nwords"
    )
    assert row.values["fields"]["kept"] == 1


def test_first_main_heading_is_the_title_of_last_resort(tmp_path):
    assert values(tmp_path, "a.html", "<p>Welcome</p><h1>Ferns</h1><p>x</p>")["title"] == "Ferns"
    assert values(tmp_path, "a.html", "<p>Welcome</p><h3>Ferns</h3>")["title"] == "a"
    assert values(tmp_path, "a.html", "<title>untitled</title><p>x</p>")["title"] == "a"


@pytest.mark.parametrize(
    "source",
    [
        "Run it.\n\n```sh\n# install\nmake\n```\n",
        "```sh\n# install\n\nmake\n```\n\nThen wait.\n",
        "Run it.\n\n    run(\n\n        # twice\n\n    )\n",
    ],
)
def test_comment_in_code_is_no_title(tmp_path, source):
    path = tmp_path / "setup.md"
    path.write_text(source)
    row = read_document(path, "setup.md", "setup.md")

    assert row.values["title"] == "setup"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("menu.html", b"<nav>Home</nav>", "only hidden text and navigation"),
        ("key.eml", b"Subject: x\nContent-Type: application/pkcs7-mime\n\nAAAA", "pkcs7-mime"),
        ("blank.txt", b" \n", "the file holds none"),
        ("empty.txt", b"", "the file holds none"),
        ("mark.md", b"\xef\xbb\xbf", "the file holds none"),
        ("fields.md", b"---\ntitle: Moss\n---\n", "the file holds none"),
    ],
)
def test_file_without_text_says_why(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    refused = read_document(path, name, name)

    assert isinstance(refused, RefusedRow)
    assert reason in refused.detail


@pytest.mark.parametrize(
    ("suffix", "source", "title", "date"),
    [
        (
            ".org",
            "#+title: On moss\n#+DATE: <2024-03-05 Tue>\n\n* Kinds\n",
            "On moss",
            "2024-03-05",
        ),
        (".adoc", "// draft\n:toc:\n\n= On moss\nIda Holm\n\n== Kinds\n", "On moss", None),
        (
            ".tex",
            "% \\title{old}\n\\title[Moss]{On \\emph{moss}\\\\ and fern}\n",
            "On moss and fern",
            None,
        ),
        (".org", "* Kinds\nNo title: here\n", "a", None),
        (".adoc", "Kinds\n\n= Late\n", "a", None),
        (".tex", "No \\titlepage here\n", "a", None),
    ],
)
def test_titles_of_markup_languages_are_read(suffix, source, title, date):
    row = read_document_bytes(source.encode(), suffix, f"a{suffix}", "a")

    assert isinstance(row, Row)
    assert row.values["title"] == title
    assert row.values["date"] == date
    assert row.values["text"].strip() == source.strip()


@pytest.mark.parametrize("suffix", [".mdx", ".qmd", ".Rmd", ".mkd", ".mdown"])
def test_markdown_has_many_suffixes(suffix):
    row = read_document_bytes(b"# Moss\n\nIt *grows*.", suffix, "a", "a")

    assert isinstance(row, Row)
    assert row.values["title"] == "Moss"
    assert row.values["text"] == "It grows."


@pytest.mark.parametrize("suffix", [".docm", ".dotx", ".dotm"])
def test_template_of_word_is_read(suffix):
    row = read_document_bytes(docx(paragraph("It grows.")), suffix, "a", "a")

    assert isinstance(row, Row)
    assert row.values["text"] == "It grows."


def test_codes_of_terminals_are_no_text():
    log = b"\x1b[1;31mERROR\x1b[0m pump \x1b[?25lfailed"
    cell = {"cell_type": "code", "source": "x", "outputs": [{"text": log.decode()}]}
    notebook = json.dumps({"cells": [cell], "nbformat": 4}).encode()

    for data, suffix in ((log, ".log"), (notebook, ".ipynb")):
        row = read_document_bytes(data, suffix, "a", "a")

        assert isinstance(row, Row)
        assert row.values["text"].endswith("ERROR pump failed")
        assert row.notes == ()


def test_expiry_that_is_no_date_is_noted():
    data = b"---\ntitle: Notice\nexpires: never\n---\nClosed today.\n"

    row = read_document_bytes(data, ".md", "notice.md", "notice.md")

    assert isinstance(row, Row)
    assert "expires" not in row.values["fields"]
    assert "its expires 'never' is no ISO date" in row.notes[0].detail
