"""Test `/documents/files`: documents and rows of files, notes, and refusals in bounded memory."""

from __future__ import annotations

import gzip
import io
import resource

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestration.service import uploads
from tests.document_files import pdf
from tests.office_files import archive, docx, paragraph


def upload(client, *files):
    return client.post("/documents/files", files=[("files", file) for file in files])


@pytest.mark.parametrize(
    ("text", "document_id"), [("cider", "note.docx"), ("almond", "r1"), ("barley", "r2")]
)
def test_uploaded_files_are_searchable_when_answered(serve, text, document_id):
    client = serve()
    rows = b"_id,text\nr1,almond\nr2,barley\n"

    answer = upload(client, ("note.docx", docx(paragraph("cider"))), ("rows.csv", rows))

    assert answer.status_code == 200
    assert answer.json()["received"] == 3
    assert answer.json()["notes"] == []
    hits = client.get("/search", params={"text": text}).json()["hits"]
    assert [hit["document_id"] for hit in hits] == [document_id]


def test_notes_of_uploaded_files_are_answered(serve):
    answer = upload(serve(), ("half.pdf", pdf(["cider", ""])))

    (note,) = answer.json()["notes"]
    assert note["file"] == "half.pdf"
    assert note["kind"] == "pages without text"


def test_unreadable_upload_is_rejected_with_reason(serve):
    answer = upload(serve(), ("half.pdf", pdf(["cider", ""])), ("old.doc", b"\xd0\xcf"))

    (rejected,) = answer.json()["rejected"]
    assert rejected["document_id"] == "old.doc"
    assert "an old Office format" in rejected["reason"]


def test_malformed_upload_is_explained(serve):
    headers = {"Content-Type": "multipart/form-data"}

    answer = serve().post("/documents/files", content=b"no form", headers=headers)

    assert answer.status_code == 422
    assert "the uploaded files cannot be read: Missing boundary" in answer.json()["error"]


def test_notes_of_uploaded_files_are_kept(serve):
    client = serve()
    answer = upload(client, ("half.pdf", pdf(["cider", ""])), ("old.doc", b"\xd0\xcf"))

    status = client.get("/status").json()

    assert status["reading_notes"] == answer.json()["notes"]
    assert status["reading_notes_total"] == 1


def test_notes_end_with_a_readable_upload(serve):
    client = serve()
    upload(client, ("half.pdf", pdf(["cider", ""])))

    upload(client, ("half.pdf", pdf(["cider", "whole"])))

    assert client.get("/status").json()["reading_notes"] == []


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a.docx", "word/document.xml"),
        ("a.xlsx", "xl/workbook.xml"),
        ("a.epub", "META-INF/container.xml"),
    ],
)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<x>" + b"a" * 60_000_000 + b"</x>", "at most 40,000,000 are read"),
        (b'<!DOCTYPE x [<!ENTITY a "a">]><x>&a;</x>', "declares XML entities"),
        (b"<x>" * 50_000 + b"</x>" * 50_000, "more than 250 deep"),
    ],
)
def test_unsafe_upload_is_refused_with_reason(serve, name, part, content, reason):
    client = serve()
    bomb = archive({part: content})
    # The unit is kilobytes.
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    answer = upload(client, (name, bomb))

    assert answer.status_code == 422
    assert reason in answer.json()["error"]
    memory_after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert memory_after - memory_before < 20_000


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pptx", archive({"ppt/presentation.xml": "<x>" * 300}), "more than 250 deep"),
        ("a.odt", archive({"content.xml": "<x>" * 300}), "more than 250 deep"),
        ("a.rtf", b"{\\rtf1 " + b"{" * 50_000, "more than 5,000 deep"),
        ("a.ipynb", b'{"cells": ' + b"[" * 50_000, "recursion depth"),
        ("a.eml", b"Content-Type: message/rfc822\n\n" * 2_000, "nested too deep"),
    ],
)
def test_deeply_nested_upload_is_refused_with_reason(serve, name, content, reason):
    answer = upload(serve(), (name, content))

    assert answer.status_code == 422
    assert reason in answer.json()["error"]


def test_large_unpacked_rows_are_refused(serve, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_UNPACKED_BYTES", 1000)

    answer = upload(serve(), ("rows.jsonl.gz", gzip.compress(b"\n" * 2000)))

    assert answer.status_code == 422
    assert "unpacks to more than 1,000 bytes" in answer.json()["error"]


def test_large_unpacked_parquet_is_refused(serve, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_UNPACKED_BYTES", 1000)
    table = pa.table({"id": ["a"], "text": ["word " * 2000]})
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    assert len(stream.getvalue()) < 2000

    answer = upload(serve(), ("rows.parquet", stream.getvalue()))

    assert answer.status_code == 422
    assert "unpacks to more than 1,000 bytes" in answer.json()["error"]


@pytest.mark.parametrize("kind", ["text", "list", "object", "map"])
def test_repeated_texts_of_parquet_count_each_time(serve, monkeypatch, kind):
    long_text = "wool " * 400
    columns = {
        "text": [long_text] * 50,
        "list": pa.array([[long_text]] * 50),
        "object": pa.array([{"inner": long_text}] * 50),
        "map": pa.array([[("key", long_text)]] * 50, pa.map_(pa.string(), pa.string())),
    }
    table = pa.table({"id": [str(number) for number in range(50)], kind: columns[kind]})
    stream = io.BytesIO()
    pq.write_table(table, stream)
    assert len(stream.getvalue()) < 10_000
    monkeypatch.setattr(uploads, "MAX_UNPACKED_BYTES", 50 * len(long_text))

    answer = upload(serve(), ("rows.parquet", stream.getvalue()))

    assert answer.status_code == 422
    assert "unpacks to more than 100,000 bytes" in answer.json()["error"]


@pytest.mark.parametrize("name", ["a.unknown", "noname", "x" * 3000 + ".md"])
def test_file_without_reader_is_refused_by_name(serve, name):
    answer = upload(serve(), (name, b"text"), ("good.txt", b"cider"))

    assert answer.status_code == 200
    (rejected,) = answer.json()["rejected"]
    assert rejected["document_id"].startswith(name[:5])
    assert answer.json()["events"] == [0]


def test_upload_names_lose_their_folders(serve):
    client = serve()

    assert upload(client, ("../../etc/a.txt", b"cider")).status_code == 200
    assert client.get("/documents/a.txt").json()["text"] == "cider"


def test_deeply_nested_json_is_refused(serve):
    nested = b"[" * 200_000 + b"]" * 200_000
    body = b'{"documents": [{"_id": "x", "text": "y", "f": ' + nested + b"}]}"
    headers = {"Content-Type": "application/json"}

    answer = serve().post("/documents", content=body, headers=headers)

    assert answer.status_code == 422
    assert "\n" not in answer.json()["error"]
