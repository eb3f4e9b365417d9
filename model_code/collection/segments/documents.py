"""The file of a segment's documents: titles, texts and fields stay on disk and are looked up by id.

pyarrow is slow to import, so it is imported where a file is read or written.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import atomic_write
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.text.documents import Document, canonical_fields

ENCODER, INDEX, DOCUMENTS, HIERARCHY = "encoder", "index", "documents.parquet", "hierarchy"
PASSAGES = f"{HIERARCHY}/{DOCUMENT_IDS}"
SOURCE = ("document_id", "title", "text", "fields")
# columns that files of earlier versions lack, and what they then mean
LATER = {"queries": "[]", "date": None}
COLUMNS = (*SOURCE, "content_hash", *LATER)
ROW_GROUP = 64  # documents; a lookup reads whole row groups, found by their first ids
Row = dict[str, Any]


def document_from_row(row: Row) -> Document:
    """The document that a row tells; one of an earlier version tells neither queries nor date."""
    queries = tuple(json.loads(row.get("queries", "[]")))
    fields = json.loads(row["fields"])
    return Document(row["document_id"], row["title"], row["text"], fields, queries, row.get("date"))


def write_documents(source: Path, target: Path, document_ids: Collection[str]) -> None:
    """Write documents of a corpus as the documents of a segment, in ascending order of ids.

    Args:
        source: The corpus's `documents.parquet`. Its column `queries` may be missing.
        target: The file to write.
        document_ids: Ids of the documents to write.

    Raises:
        FreshetError: If the corpus lacks one of them.
    """
    import pyarrow.parquet as pq

    columns = [*SOURCE, "date"]
    if "queries" in pq.read_schema(source).names:
        columns.append("queries")
    wanted = [("document_id", "in", sorted(document_ids))]
    rows = pq.read_table(source, columns=columns, filters=wanted).to_pylist()

    missing = sorted(set(document_ids) - {row["document_id"] for row in rows})
    if missing:
        raise FreshetError(
            f"{source} lacks {len(missing)} documents that the index holds, first {missing[0]!r}"
        )
    for row in rows:
        row["queries"] = row.get("queries") or "[]"
    write_rows((document_row(document_from_row(row)) for row in rows), target)


def document_row(document: Document) -> Row:
    """A document as it is kept."""
    queries, fields = (
        json.dumps(list(document.queries), ensure_ascii=False),
        canonical_fields(document.fields),
    )
    texts = document.document_id, document.title, document.text
    return dict(
        zip(COLUMNS, (*texts, fields, document.content_hash, queries, document.date), strict=True)
    )


def write_rows(rows: Iterable[Row], target: Path) -> None:
    """Write rows that `document_row` made, by ascending id."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    table = pa.Table.from_pylist(sorted(rows, key=lambda row: row["document_id"]), schema)
    with atomic_write(target) as aside:
        pq.write_table(table, aside, row_group_size=ROW_GROUP)


class DocumentFile:
    """Look-up of documents in a file that `write_rows` wrote, whose footer it reads once; any
    thread may ask.

    Rows are chosen by hand, since pyarrow's own filters and selections import pandas: a second of a
    cold search.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.path, self._footer = path, pq.read_metadata(path)
        groups = (self._footer.row_group(group) for group in range(self._footer.num_row_groups))
        self._first: list[str] = [
            group.column(0).statistics.min for group in groups if group.num_rows
        ]

    def read(
        self, document_ids: Collection[str], columns: Sequence[str] = COLUMNS
    ) -> dict[str, dict[str, Any]]:
        """Those of `document_ids` that the file has, by id; the columns, of which `document_id` is
        always one.
        """
        import pyarrow.parquet as pq

        keys = set(document_ids)
        groups = sorted({bisect_right(self._first, document) - 1 for document in keys} - {-1})
        names = self._footer.schema.names
        named = [name for name in dict.fromkeys(("document_id", *columns)) if name in names]
        with pq.ParquetFile(self.path, metadata=self._footer) as file:
            table = file.read_row_groups(groups, named, use_threads=False)
        ids = table["document_id"].to_pylist()
        return {
            ids[row]: table.slice(row, 1).to_pylist()[0]
            for row in range(len(ids))
            if ids[row] in keys
        }


def read_columns(path: Path, *columns: str) -> list[list[str]]:
    """Whole columns of a file that `write_rows` wrote, each in the order of the documents' ids.

    FreshetError if the file has been written by a version that did not keep one of them.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        available = set(file.schema_arrow.names)
        missing = sorted(set(columns) - available - LATER.keys())
        if missing:
            raise FreshetError(
                f"{path} has no column {missing[0]!r}: an older version wrote it; freshet promote again"
            )
        table = file.read(columns=[name for name in columns if name in available])
    return [
        table[name].to_pylist() if name in available else [LATER[name]] * len(table)
        for name in columns
    ]
