"""Guards the properties that become fields: each format states them in its own way."""

from __future__ import annotations

import pytest

from model_code.corpus.formats.docx import read_docx
from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.html import read_html
from model_code.corpus.formats.odt import read_odt
from model_code.corpus.formats.pdf import read_pdf
from model_code.corpus.formats.properties import add_property
from tests.document_files import pdf
from tests.office_files import archive, paragraph, word_part


@pytest.mark.parametrize(
    ("properties", "fields"),
    [
        ([("Keywords", "weir, eel;weir")], {"keywords": ["weir", "eel"]}),
        ([("keyword", "weir"), ("keyword", "eel")], {"keywords": ["weir", "eel"]}),
        ([("DCTERMS.subject", " Slow \n water ")], {"subject": "Slow water"}),
        ([("description", "first"), ("description", "second")], {"description": "first"}),
        ([("keywords", " , "), ("abstract", " "), ("generator", "Writer")], {}),
    ],
)
def test_properties_that_describe_the_content_become_fields(properties, fields):
    extraction = Extraction("text")
    for name, text in properties:
        add_property(extraction, name, text)
    assert extraction.fields == fields


def test_properties_of_a_docx_become_fields():
    body = paragraph("text")
    parts = {
        "word/document.xml": word_part("document", f"<w:body>{body}</w:body>"),
        "docProps/core.xml": '<c xmlns:d="d"><d:keywords>weir</d:keywords></c>',
        "docProps/custom.xml": '<c xmlns:v="v"><property name="abstract">'
        "<v:lpwstr>Few eels.</v:lpwstr></property></c>",
    }
    assert read_docx(archive(parts)).fields == {"keywords": ["weir"], "abstract": "Few eels."}


def test_properties_of_an_open_document_become_fields():
    parts = {
        "content.xml": '<o xmlns:t="t"><t:p>text</t:p></o>',
        "meta.xml": '<o xmlns:m="m"><m:keyword>weir</m:keyword><m:keyword>eel</m:keyword>'
        '<m:user-defined m:name="Abstract">Few eels.</m:user-defined></o>',
    }
    fields = read_odt(archive(parts)).fields
    assert fields == {"keywords": ["weir", "eel"], "abstract": "Few eels."}


def test_properties_of_a_page_become_fields():
    head = "<meta name=Keywords content='weir, eel'><meta property=description content='Few eels.'>"
    fields = read_html(f"{head}text".encode()).fields
    assert fields == {"keywords": ["weir", "eel"], "description": "Few eels."}


def test_front_matter_replaces_properties_of_a_page():
    page = (
        "---\nkeywords: mine\n---\n<meta name=keywords content=weir><meta name=subject content=x>"
    )
    assert read_html(f"{page}text".encode()).fields == {"keywords": "mine", "subject": "x"}


def test_properties_of_a_pdf_become_fields():
    stated = b"/Keywords (weir, eel) /Subject (Slow water) /Title"
    page = pdf(["text"]).replace(b"/Title", stated)
    assert read_pdf(page).fields == {"keywords": ["weir", "eel"], "subject": "Slow water"}


def test_property_of_a_pdf_that_is_no_text_is_ignored():
    page = pdf(["text"]).replace(b"/Title", b"/Keywords 12 /Subject 9 0 R /Title")
    assert read_pdf(page).fields == {}
