"""A small BEIR folder with one malformed row of each kind, and a source made of rows given in the
test.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from model_code.corpus.rows import Row


class RowSource:
    """A `Source` over {table: [values]}; locations are `table:number`, from 1."""

    def __init__(self, **tables):
        self.tables = tables

    def describe(self):
        return {"versions": {}, "watermark": None, "content_hash": "none"}

    def rows(self, table, progress=None):
        for number, values in enumerate(self.tables.get(table, []), start=1):
            yield Row(table, f"{table}:{number}", values)


@pytest.fixture
def row_source() -> type[RowSource]:
    return RowSource


@pytest.fixture
def write_beir() -> Callable[..., Path]:
    """Write a BEIR folder: documents and queries as lists of records (or raw bytes for a line),
    qrels by split.
    """

    def write(
        folder: Path, documents, queries=(), qrels=None, compress=False, qrels_folder="qrels"
    ) -> Path:
        (folder / qrels_folder).mkdir(parents=True, exist_ok=True)
        texts = {"corpus.jsonl": _lines(documents)}
        if queries:
            texts["queries.jsonl"] = _lines(queries)
        for split, rows in (qrels or {}).items():
            cells = [("query-id", "corpus-id", "score"), *rows]
            texts[f"{qrels_folder}/{split}.tsv"] = "".join(
                "\t".join(map(str, row)) + "\n" for row in cells
            ).encode()
        for name, content in texts.items():
            if compress:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
            else:
                (folder / name).write_bytes(content)
        return folder

    return write


def _lines(records) -> bytes:
    lines = []
    for record in records:
        if not isinstance(record, bytes):
            record = json.dumps(record, ensure_ascii=False).encode()
        lines.append(record + b"\n")
    return b"".join(lines)
