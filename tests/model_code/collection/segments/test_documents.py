"""Test that documents are read as they were written, without importing pyarrow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_code.collection.segments import documents
from model_code.collection.segments.documents import (
    COLUMNS,
    Row,
    read_columns,
    write_documents,
    write_rows,
)
from model_code.errors import FreshetError


def make_rows(count: int) -> list[Row]:
    rows = []
    for number in range(count):
        row: Row = dict.fromkeys(COLUMNS, "[]")
        row["document_id"] = f"d{number:03d}"
        row["text"] = "é\x00" * number
        row["fields"] = "{}"
        row["date"] = "2024-01-01" if number % 3 else None
        rows.append(row)
    return rows


@pytest.mark.parametrize("count", [0, 1, 70])
def test_columns_are_read_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(documents, "RECORDS_AT_ONCE", 8)
    rows = make_rows(count)
    write_rows(rows[::-1], tmp_path / "documents.safetensors")

    columns = read_columns(tmp_path / "documents.safetensors", *COLUMNS)

    assert columns == [[row[name] for row in rows] for name in COLUMNS]


def test_documents_of_a_corpus_are_sorted_by_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "RECORDS_AT_ONCE", 2)
    corpus_ids = ["d", "b", "é", "a", "c"]
    corpus = dict.fromkeys(["title", "text", "date"], corpus_ids)
    table = pa.table({"document_id": corpus_ids, **corpus, "fields": ["{}"] * 5})
    pq.write_table(table, tmp_path / "documents.parquet")
    target = tmp_path / "documents.safetensors"

    write_documents(tmp_path / "documents.parquet", target, {"a", "b", "d", "é"})

    assert read_columns(target, "document_id", "text") == [["a", "b", "d", "é"]] * 2


def test_document_that_the_corpus_lacks_is_named(tmp_path: Path) -> None:
    columns = {name: ["a"] for name in ("document_id", "title", "text", "date")}
    pq.write_table(pa.table({**columns, "fields": ["{}"]}), tmp_path / "documents.parquet")

    with pytest.raises(FreshetError, match="lacks 2 documents .* first 'x'"):
        write_documents(tmp_path / "documents.parquet", tmp_path / "out", {"a", "x", "y"})


def test_large_records_are_read_in_several_runs(tmp_path, monkeypatch):
    """One read of all records could exceed the memory, and the 2 GiB that Linux reads at once."""
    monkeypatch.setattr(documents, "BYTES_AT_ONCE", 100)
    rows = make_rows(40)
    path = tmp_path / "documents.safetensors"
    write_rows(rows, path)
    file = documents.DocumentFile(path)
    sizes = []
    read_runs = file._records.read_runs

    def read_and_note_size(starts, counts):
        sizes.append(int(counts.sum()))
        return read_runs(starts, counts)

    monkeypatch.setattr(file._records, "read_runs", read_and_note_size)

    (texts,) = file.read_columns(["text"])

    assert texts == [row["text"] for row in rows]
    # A record that alone is larger than the limit is read on its own.
    largest_record = max(len(row["text"].encode()) for row in rows) + 100
    assert max(sizes) <= largest_record


def test_reading_and_writing_documents_imports_no_pyarrow(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from model_code.collection.segments.documents import (DocumentFile, document_row,"
        " write_rows);"
        "from model_code.text.documents import Document;"
        "path = Path(sys.argv[1]);"
        "write_rows([document_row(Document('a', 't', 'text', {}))], path);"
        "print(DocumentFile(path).read(['a'])['a']['text'], 'pyarrow' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "documents.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "text False"
