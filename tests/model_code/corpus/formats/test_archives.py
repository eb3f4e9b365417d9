"""Guards that archives which would need memory or time without a bound are refused at once."""

from __future__ import annotations

import resource
import struct
import time

import pytest

from model_code.corpus.formats import archives
from model_code.corpus.rows import RefusedRow, Row
from model_code.corpus.sources.document_files import read_document_bytes
from tests.office_files import archive, docx, paragraph

MEGABYTE = 1_000_000
ENTITIES = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]><x>&b;</x>'
)
EXTERNAL = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]><x>&a;</x>'
# The part that the reader of each format begins with.
MAIN_PARTS = {
    ".docx": "word/document.xml",
    ".xlsx": "xl/workbook.xml",
    ".pptx": "ppt/presentation.xml",
    ".odt": "content.xml",
    ".ods": "content.xml",
    ".odp": "content.xml",
    ".epub": "META-INF/container.xml",
}


def refusal(data: bytes, suffix: str) -> RefusedRow:
    row = read_document_bytes(data, suffix, f"a{suffix}", f"a{suffix}")
    assert isinstance(row, RefusedRow)
    return row


@pytest.mark.parametrize("suffix", MAIN_PARTS)
def test_bomb_is_refused_within_bounded_memory_and_time(suffix):
    letters = b"a" * (60 * MEGABYTE)
    bomb = archive({MAIN_PARTS[suffix]: b"<x>" + letters + b"</x>"})
    del letters
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()

    row = refusal(bomb, suffix)

    assert row.reason == "huge file"
    assert "at most 40,000,000 are read" in row.detail
    assert time.process_time() - started < 2
    # Kilobytes: the part was not unpacked.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before < 20_000


@pytest.mark.parametrize("suffix", MAIN_PARTS)
@pytest.mark.parametrize("content", [ENTITIES, EXTERNAL])
def test_declared_entities_are_refused(suffix, content):
    assert "declares XML entities" in refusal(archive({MAIN_PARTS[suffix]: content}), suffix).detail


@pytest.mark.parametrize("suffix", MAIN_PARTS)
def test_deep_nesting_is_refused(suffix):
    deep = "<x>" * 100_000 + "</x>" * 100_000
    assert "more than 250 deep" in refusal(archive({MAIN_PARTS[suffix]: deep}), suffix).detail


def test_size_that_an_archive_hides_is_not_unpacked():
    content = archive({"word/document.xml": b"<x>" + b"a" * (5 * MEGABYTE) + b"</x>"})
    # The stated size is in the record of the part and in the directory at the end.
    stated = struct.pack("<I", 5 * MEGABYTE + 7)
    assert content.count(stated) == 2
    row = refusal(content.replace(stated, struct.pack("<I", 100)), ".docx")
    assert row.reason == "unreadable file"


def test_archive_with_too_many_parts_is_refused(monkeypatch):
    monkeypatch.setattr(archives, "MAX_PARTS", 3)
    assert "at most 3 are read" in refusal(docx(paragraph("x")), ".docx").detail


def test_part_with_too_many_elements_is_refused(monkeypatch):
    monkeypatch.setattr(archives, "MAX_XML_ELEMENTS", 100)
    assert "more than 100 elements" in refusal(docx(paragraph("x") * 60), ".docx").detail


@pytest.mark.parametrize("suffix", MAIN_PARTS)
@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 cut", archive({"other.xml": "<x/>"}), b"\xd0\xcf\x11\xe0 old"]
)
def test_damaged_archive_is_refused_with_reason(suffix, content):
    assert refusal(content, suffix).reason == "unreadable file"


def test_deep_html_is_read_and_entities_in_html_are_not_expanded():
    deep = "<div>" * 50_000 + "deep" + "</div>" * 50_000 + ENTITIES
    row = read_document_bytes(deep.encode(), ".html", "a.html", "a.html")
    assert isinstance(row, Row)
    assert "deep" in row.values["text"]
    assert "aaaaaaaaaaaaaaaaaaaa" not in row.values["text"]


def test_aliases_of_front_matter_are_bounded():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 10):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        levels.append(f"a{level}: &a{level} [{aliases}]")
    source = "---\n" + "\n".join(levels) + "\n---\nText"
    row = read_document_bytes(source.encode(), ".md", "a.md", "a.md")
    assert isinstance(row, Row)
    assert row.values["text"] == "Text"
    assert row.values["fields"] == {}
    assert [note.kind for note in row.notes] == ["unreadable value"]
