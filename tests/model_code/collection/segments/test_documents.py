"""Guards that documents are written as pyarrow writes them, without importing pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_code.collection.segments import documents
from model_code.collection.segments.documents import COLUMNS, Row, write_rows


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


@pytest.mark.parametrize("chunk_bytes", [1, 8, 2**29])
@pytest.mark.parametrize("count", [0, 1, 70])
def test_rows_are_read_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, chunk_bytes: int
) -> None:
    monkeypatch.setattr(documents, "MAX_CHUNK_BYTES", chunk_bytes)
    rows = make_rows(count)
    write_rows(rows, tmp_path / "documents.parquet")
    table = pq.read_table(tmp_path / "documents.parquet")
    assert table.to_pylist() == rows
    assert table.schema.types == [pa.string()] * len(COLUMNS)


def test_writing_documents_imports_no_pandas(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from model_code.collection.segments.documents import document_row, write_rows;"
        "from model_code.text.documents import Document;"
        "write_rows([document_row(Document('a', 't', 'text', {}))], Path(sys.argv[1]));"
        "print('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "documents.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
