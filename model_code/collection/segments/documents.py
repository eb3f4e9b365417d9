"""The documents file of a segment, a Parquet file from which documents are read by id.

So the texts of a large collection need no memory. pyarrow is slow to import. It is imported inside
the functions that read or write a file.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from model_code.errors import FreshetError
from model_code.files import atomic_write
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.text.documents import Document, canonical_fields
from model_code.text.known_queries import KnownQuery, QuerySource

ENCODER, INDEX, DOCUMENTS, HIERARCHY = "encoder", "index", "documents.parquet", "hierarchy"
PASSAGES = f"{HIERARCHY}/{DOCUMENT_IDS}"
CORPUS_COLUMNS = ("document_id", "title", "text", "fields", "date")
COLUMNS = ("document_id", "title", "text", "fields", "content_hash", "queries", "date")

# Name of the field with the date from which a document is not found any more.
EXPIRES = "expires"

# Value of the column `queries` of a document without queries, as JSON.
NO_QUERIES = "[]"

# Number of documents in a row group of the file. It is small, because lookups read whole groups.
ROW_GROUP = 32

# Bytes of text after which a column begins a new chunk. Arrow's offsets in a chunk have 32 bits.
MAX_CHUNK_BYTES = 2**29

Row = dict[str, Any]


def document_from_row(row: Row) -> Document:
    """Return the document of a row with all `COLUMNS`."""
    return Document(
        row["document_id"],
        row["title"],
        row["text"],
        json.loads(row["fields"]),
        tuple(json.loads(row["queries"])),
        row["date"],
    )


def document_row(document: Document) -> Row:
    """Return the row of a document for the documents file. Fields and queries become JSON texts."""
    return {
        "document_id": document.document_id,
        "title": document.title,
        "text": document.text,
        "fields": canonical_fields(document.fields),
        "content_hash": document.content_hash,
        "queries": json.dumps(list(document.queries), ensure_ascii=False),
        "date": document.date,
    }


def any_document_expires(path: Path) -> bool:
    """Return whether a document of a file may have the field `expires`.

    The index of the fields answers this without reading a document. The result is cached, because a
    documents file never changes.

    Args:
        path: Documents file.
    """
    state = path.stat()
    return _file_has_expiry(path, state.st_ino, state.st_mtime_ns)


@lru_cache(maxsize=1024)
def _file_has_expiry(path: Path, inode: int, modified: int) -> bool:
    """Search the index of the fields for the field `expires`.

    `inode` and `modified` are only part of the cache key. They distinguish a file from an earlier
    file with the same path.
    """
    from model_code.collection.segments.field_index import FIELD_INDEX, FieldIndex

    return EXPIRES in FieldIndex.load(path.with_name(FIELD_INDEX)).value_ranges


def write_documents(source: Path, target: Path, document_ids: Collection[str]) -> None:
    """Copy documents from a corpus to a documents file.

    Args:
        source: File `documents.parquet` of the corpus. The column `queries` may be missing.
        target: Documents file to write. Its rows are sorted by id.
        document_ids: Ids of the documents to copy.

    Raises:
        FreshetError: If the corpus does not have one of the documents.
    """
    import pyarrow.parquet as pq

    columns = list(CORPUS_COLUMNS)
    if "queries" in pq.read_schema(source).names:
        columns.append("queries")
    is_wanted = [("document_id", "in", sorted(document_ids))]
    corpus_rows = pq.read_table(source, columns=columns, filters=is_wanted).to_pylist()
    missing = sorted(set(document_ids) - {row["document_id"] for row in corpus_rows})
    if missing:
        raise FreshetError(
            f"{source} lacks {len(missing)} documents that the index holds, first {missing[0]!r}"
        )
    rows: list[Row] = []
    for row in corpus_rows:
        row["queries"] = row.get("queries") or NO_QUERIES
        rows.append(document_row(document_from_row(row)))
    write_rows(rows, target)


def write_rows(rows: Iterable[Row], target: Path) -> None:
    """Write a documents file and the index of the documents' fields to the same folder.

    Args:
        rows: Rows that `document_row` made, in any order. They are written by ascending id.
        target: Documents file to write.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from model_code.collection.segments.field_index import FIELD_INDEX, FieldIndex, fields_of_row

    sorted_rows = sorted(rows, key=lambda row: row["document_id"])
    index = FieldIndex.build(fields_of_row(row["fields"], row["date"]) for row in sorted_rows)
    index.save(target.with_name(FIELD_INDEX))
    columns = {name: _string_column([row[name] for row in sorted_rows]) for name in COLUMNS}
    table = pa.Table.from_arrays(list(columns.values()), names=list(columns))
    with atomic_write(target) as path:
        # Both options make lookups cheaper. A lookup decodes whole row groups, and dictionaries
        # double the number of pages in them. Statistics stay in memory, and only ids are found by
        # them.
        pq.write_table(
            table,
            path,
            row_group_size=ROW_GROUP,
            use_dictionary=False,
            write_statistics=["document_id"],
        )


def _string_column(texts: Sequence[str | None]) -> Any:
    """Convert texts to an Arrow column, without pyarrow's own conversion.

    pyarrow's conversion imports pandas. That would make the first change of a process a second
    slower.

    Args:
        texts: The texts. None is a missing value.

    Returns:
        A column with as many chunks as the length of the texts needs.
    """
    import pyarrow as pa

    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    first_rows = np.flatnonzero(np.diff(ends // MAX_CHUNK_BYTES)) + 1
    boundaries = [0, *first_rows.tolist(), len(texts)]

    chunks = []
    for start, end in zip(boundaries, boundaries[1:], strict=False):
        offsets = np.zeros(end - start + 1, np.int32)
        offsets[1:] = np.cumsum([len(text) for text in encoded[start:end]])
        is_present = np.array([text is not None for text in texts[start:end]], bool)
        buffers = (
            offsets.tobytes(),
            b"".join(encoded[start:end]),
            np.packbits(is_present, bitorder="little").tobytes(),
        )
        chunks.append(pa.StringArray.from_buffers(end - start, *map(pa.py_buffer, buffers)))
    return pa.chunked_array(chunks)


class DocumentFile:
    """Reads documents by their ids from a file that `write_rows` wrote. Threads may share it.

    Rows are selected in Python. pyarrow's own filters import pandas, which would make the first
    search of a process a second slower.
    """

    def __init__(self, path: Path) -> None:
        """Read the footer of a documents file, which has the first id of each row group."""
        import pyarrow.parquet as pq

        self.path = path
        self._footer = pq.read_metadata(path)
        self._first_ids: list[str] = []
        for number in range(self._footer.num_row_groups):
            group = self._footer.row_group(number)
            if group.num_rows:
                self._first_ids.append(group.column(0).statistics.min)

    def read(
        self, document_ids: Collection[str], columns: Sequence[str] = COLUMNS
    ) -> dict[str, Row]:
        """Read documents by their ids.

        Args:
            document_ids: Ids of the documents. Documents that are not in the file are left out.
            columns: Columns to read. `document_id` is always included.

        Returns:
            Rows by document id.
        """
        import pyarrow.parquet as pq

        wanted = set(document_ids)
        groups = {bisect_right(self._first_ids, document_id) - 1 for document_id in wanted}
        # `bisect_right` gives group -1 for an id that is smaller than all ids of the file.
        groups.discard(-1)
        names = list(dict.fromkeys(("document_id", *columns)))
        with pq.ParquetFile(self.path, metadata=self._footer) as file:
            table = file.read_row_groups(sorted(groups), names, use_threads=False)

        positions: dict[str, int] = {}
        for position, document_id in enumerate(table["document_id"].to_pylist()):
            if document_id in wanted:
                positions[document_id] = position

        rows: dict[str, Row] = {document_id: {} for document_id in positions}
        for name in names:
            column = table[name]
            for document_id, position in positions.items():
                rows[document_id][name] = column[position].as_py()
        return rows


def read_columns(path: Path, *columns: str) -> list[list[str]]:
    """Read whole columns of a Parquet file. Each is a list of values in the order of the rows."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        table = file.read(columns=list(columns))
    return [table[name].to_pylist() for name in columns]


def row_queries(path: Path) -> dict[str, list[KnownQuery]]:
    """Read the queries in the rows of a documents file, as known queries by document id."""
    columns = read_columns(path, "document_id", "queries", "date")
    queries: dict[str, list[KnownQuery]] = {}
    for document_id, texts, date in zip(*columns, strict=True):
        if texts != NO_QUERIES:
            queries[document_id] = [
                KnownQuery(document_id, text, QuerySource.ROW, date=date)
                for text in json.loads(texts)
            ]
    return queries
