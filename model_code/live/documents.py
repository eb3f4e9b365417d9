"""The searchable documents' titles, texts and fields, on disk: texts are read for the few documents of a result."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import replacing

COLUMNS = ("document_id", "title", "text", "fields")
ROW_GROUP = 1024  # documents; a lookup reads whole row groups, found by the range of their ids


def write_documents(source: Path, target: Path, document_ids: Collection[str]) -> None:
    """Write id, title, text and fields (a JSON object) of `document_ids` from a corpus's `documents.parquet`.

    Rows ascend by id. FreshetError if the corpus lacks one of them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(source, columns=list(COLUMNS), filters=[("document_id", "in", sorted(document_ids))])
    missing = sorted(set(document_ids) - set(table["document_id"].to_pylist()))
    if missing:
        raise FreshetError(f"{source} lacks {len(missing)} documents that the index holds, first {missing[0]!r}")
    table = table.sort_by("document_id").cast(pa.schema([(name, pa.string()) for name in COLUMNS]))
    with replacing(target) as aside:
        pq.write_table(table.replace_schema_metadata(None), aside, row_group_size=ROW_GROUP)


def read_documents(path: Path, document_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Title, text and fields of each of `document_ids` from a file that `write_documents` wrote, by document id.

    Rows are chosen by hand, since pyarrow's own filters and selections import pandas: a second of a cold search.
    """
    import pyarrow.parquet as pq

    wanted = set(document_ids)
    with pq.ParquetFile(path) as file:
        ranges = [file.metadata.row_group(group).column(0).statistics for group in range(file.num_row_groups)]
        groups = [i for i, ids in enumerate(ranges) if any(ids.min <= document <= ids.max for document in wanted)]
        table = file.read_row_groups(groups)
    ids = table["document_id"].to_pylist()
    return {ids[row]: table.slice(row, 1).to_pylist()[0] for row in range(len(ids)) if ids[row] in wanted}


def read_columns(path: Path, *columns: str) -> list[list[str]]:
    """Whole columns of a file that `write_documents` wrote, each in the order of the documents' ids.

    FreshetError if the file has been written by a version that did not keep one of them.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        missing = sorted(set(columns) - set(file.schema_arrow.names))
        if missing:
            raise FreshetError(f"{path} has no column {missing[0]!r}: an older version wrote it; freshet promote again")
        table = file.read(columns=list(columns))
    return [table[column].to_pylist() for column in columns]
