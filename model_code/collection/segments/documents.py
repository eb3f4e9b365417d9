"""The documents file of a segment, from which documents are read by id.

The file holds a record of each document: the texts of its columns, one after the other. A search
reads the records of its hits, so that the texts of a large collection need no memory. The file is
not Parquet, because reading ten documents of a Parquet file took ten times as long, and pyarrow and
the footer of the file took 67 MB at 100,000 documents.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from model_code.collection.segments.conditions import matches_fields, parse_filters
from model_code.errors import FreshetError
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.mapped_tensors import map_tensors, write_tensors
from model_code.row_file import RowFile
from model_code.text.documents import EXPIRES, Document, canonical_fields
from model_code.text.known_queries import KnownQuery, QuerySource

# Files and folders of a segment.
ENCODER = "encoder"
INDEX = "index"
DOCUMENTS = "documents.safetensors"
HIERARCHY = "hierarchy"
# File of the documents of a corpus.
CORPUS_DOCUMENTS = "documents.parquet"
PASSAGES = f"{HIERARCHY}/{DOCUMENT_IDS}"
CORPUS_COLUMNS = ("document_id", "title", "text", "fields", "date")
COLUMNS = ("document_id", "title", "text", "fields", "content_hash", "queries", "date")

# Value of the column `queries` of a document without queries, as JSON.
NO_QUERIES = "[]"

# Arrays of the file; see `DocumentFile`.
RECORDS, STARTS, ENDS = "records", "starts", "ends"
IDS, ID_STARTS = "ids", "id_starts"

# Entry of `ENDS` for a column without a value, such as a missing date.
NO_VALUE = -1

# Largest number of records that are read together when whole columns are read, and the number of
# bytes from which no further record is added. Linux reads at most 2 GiB at once.
RECORDS_AT_ONCE = 4096
BYTES_AT_ONCE = 2**26

# Ids and texts may hold lone surrogates, which plain UTF-8 cannot encode.
ENCODING = ("utf-8", "surrogatepass")

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


def has_expired(expires: Any, now: datetime) -> bool:
    """Return whether a value of the field `expires` is a past date.

    Args:
        expires: The value; None if the document has none.
        now: The present time.
    """
    return matches_fields(parse_filters({EXPIRES: {"<=": now.isoformat()}}), {EXPIRES: expires})


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
    """Return whether any document of a file has the field `expires`, with a cached result.

    The folder of a documents file also has a field index, a file that lists all fields of the
    documents. Only the field index is read.

    Args:
        path: Documents file.
        inode: Inode of the file. Like `modified`, it only serves the cache: it distinguishes the
            file from an earlier file with the same path.
        modified: Time of the file's last change, in nanoseconds.
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
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(CORPUS_COLUMNS)
    if "queries" in pq.read_schema(source).names:
        names.append("queries")
    # Plain strings of Arrow are limited to 2 GB per array, large strings are not.
    columns = [column.cast(pa.large_string()) for column in pq.read_table(source, columns=names)]
    corpus = pa.table(columns, names)

    corpus_ids = corpus["document_id"].to_pylist()
    wanted = set(document_ids)
    missing = sorted(wanted.difference(corpus_ids))
    if missing:
        raise FreshetError(
            f"{source} lacks {len(missing)} documents that the index holds, first {missing[0]!r}"
        )
    numbers = [number for number, name in enumerate(corpus_ids) if name in wanted]
    numbers.sort(key=corpus_ids.__getitem__)

    def read_rows() -> Iterator[Row]:
        """Yield the rows of the documents by ascending id, and hold some of them at a time."""
        for start in range(0, len(numbers), RECORDS_AT_ONCE):
            for row in corpus.take(numbers[start : start + RECORDS_AT_ONCE]).to_pylist():
                row["queries"] = row.get("queries") or NO_QUERIES
                yield document_row(document_from_row(row))

    write_sorted_rows(read_rows(), target)


def write_rows(rows: Iterable[Row], target: Path) -> None:
    """Write a documents file and the index of the documents' fields to the same folder.

    Args:
        rows: Rows that `document_row` made, in any order. They are written by ascending id.
        target: Documents file to write.
    """
    write_sorted_rows(sorted(rows, key=lambda row: row["document_id"]), target)


def write_sorted_rows(rows: Iterable[Row], target: Path) -> None:
    """Write a documents file and the index of the fields; see `write_rows`.

    Each row is used once, so that all rows need not be in memory.

    Args:
        rows: Rows by ascending id.
        target: Documents file to write.
    """
    from model_code.collection.segments.field_index import FIELD_INDEX, FieldIndex, fields_of_row

    records = _Records()

    def collect_records() -> Iterator[dict[str, Any]]:
        """Add the record of each row, and yield the row's fields."""
        for row in rows:
            records.append(row)
            yield fields_of_row(row["fields"], row["date"])

    index = FieldIndex.build(collect_records())
    index.save(target.with_name(FIELD_INDEX))
    write_tensors(records.arrays(), target)


class _Records:
    """The records of documents in the making, in compact buffers.

    A record is the texts of a document's columns, one after the other.
    """

    def __init__(self) -> None:
        self._texts = bytearray()
        self._sizes = array("q")
        # Where each column ends inside the record of its document, document after document.
        self._ends = array("q")
        self._ids = bytearray()
        self._id_sizes = array("q")

    def append(self, row: Row) -> None:
        """Add the record of a document."""
        size = 0
        for name in COLUMNS:
            end = NO_VALUE
            if row[name] is not None:
                text = _encode(row[name])
                self._texts += text
                size += len(text)
                end = size
            self._ends.append(end)
        self._sizes.append(size)

        document_id = _encode(row["document_id"])
        self._ids += document_id
        self._id_sizes.append(len(document_id))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a documents file; see `DocumentFile`."""
        return {
            RECORDS: np.frombuffer(self._texts, np.uint8),
            STARTS: _starts(self._sizes),
            ENDS: np.array(self._ends, np.int64).reshape(-1, len(COLUMNS)),
            IDS: np.frombuffer(self._ids, np.uint8),
            ID_STARTS: _starts(self._id_sizes),
        }


class DocumentFile:
    """Reads documents by their ids from a file that `write_rows` wrote. Threads may share it.

    Documents are numbered by ascending id. The record of document i is `starts[i]` to
    `starts[i + 1]` of the records. Its column j ends at `ends[i, j]` of the record, and begins
    where the column before it ends.
    """

    def __init__(self, path: Path) -> None:
        """Map the index of a documents file. Records are read when they are needed."""
        arrays = map_tensors(path)
        self.path = path
        self._starts = arrays[STARTS]
        self._ends = arrays[ENDS]
        self._ids = arrays[IDS]
        self._id_starts = arrays[ID_STARTS]
        self._records = RowFile.of_bytes(path, RECORDS)

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._starts) - 1

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
        # The ids are sorted, so binary search finds the number of a document.
        found: list[int] = []
        for document_id in set(document_ids):
            text = _encode(document_id)
            number = bisect_left(range(len(self)), text, key=self._id_text)
            if number < len(self) and self._id_text(number) == text:
                found.append(number)

        numbers = np.array(sorted(found), np.int64)
        starts = self._starts[numbers]
        sizes = self._starts[numbers + 1] - starts
        records = self._records.read_runs(starts, sizes)
        # `dict.fromkeys` leaves a column out that occurs twice.
        names = tuple(dict.fromkeys(("document_id", *columns)))
        rows = self._split_records(records.tobytes(), numbers, names)
        return {row["document_id"]: row for row in rows}

    def read_columns(self, columns: Sequence[str]) -> list[list[Any]]:
        """Read columns of all documents. Each is a list of values in the order of the ids."""
        values: list[list[Any]] = [[] for _ in columns]
        first = 0
        while first < len(self):
            end = self._end_of_run(first)
            # The records of neighbouring documents are one run of bytes.
            start = self._starts[first]
            size = self._starts[end] - start
            records = self._records.read_runs(np.array([start]), np.array([size]))
            numbers = np.arange(first, end)
            for row in self._split_records(records.tobytes(), numbers, columns):
                for column, name in zip(values, columns, strict=True):
                    column.append(row[name])
            first = end
        return values

    def _end_of_run(self, first: int) -> int:
        """Return the number of the document before which a run of records to read together ends.

        The run has at least one record.

        Args:
            first: Number of the first document of the run.
        """
        last_byte = self._starts[first] + BYTES_AT_ONCE
        end = int(np.searchsorted(self._starts, last_byte, side="right")) - 1
        return min(max(end, first + 1), first + RECORDS_AT_ONCE, len(self))

    def _split_records(
        self, records: bytes, numbers: np.ndarray, columns: Sequence[str]
    ) -> Iterator[Row]:
        """Yield columns of documents.

        Args:
            records: The records of the documents, one after the other.
            numbers: Numbers of the documents, shape (n,).
            columns: Names of the columns.
        """
        sizes = self._starts[numbers + 1] - self._starts[numbers]
        # Where each record starts in `records`, which has no gaps.
        record_starts = np.cumsum(sizes) - sizes
        all_ends = self._ends[numbers].tolist()
        for record_start, ends in zip(record_starts.tolist(), all_ends, strict=True):
            row: Row = {}
            for name in columns:
                column = COLUMNS.index(name)
                row[name] = None
                if ends[column] != NO_VALUE:
                    # A column starts where the last column before it ends. Columns without a value
                    # have no end, so the largest end is taken.
                    start = max([0, *ends[:column]])
                    text = records[record_start + start : record_start + ends[column]]
                    row[name] = text.decode(*ENCODING)
            yield row

    def _id_text(self, number: int) -> bytes:
        """Return the id of a document, encoded as in the file."""
        return self._ids[self._id_starts[number] : self._id_starts[number + 1]].tobytes()


def read_columns(path: Path, *columns: str) -> list[list[str]]:
    """Read columns of a documents file. Each is a list of values in the order of the ids."""
    return DocumentFile(path).read_columns(columns)


def read_parquet_columns(path: Path, *columns: str) -> list[list[str]]:
    """Read columns of a Parquet file. Each is a list of values in the order of the rows."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        table = file.read(columns=list(columns))
    return [table[name].to_pylist() for name in columns]


def _encode(text: str) -> bytes:
    return text.encode(*ENCODING)


def _starts(sizes: Sequence[int]) -> np.ndarray:
    """Return where each of n items starts if they are joined, and at the end the total size.

    >>> _starts([3, 2]).tolist()
    [0, 3, 5]
    """
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


def row_queries(path: Path) -> dict[str, list[KnownQuery]]:
    """Read the queries in the rows of a documents file, as known queries by document id.

    A row can name queries that its document answers.
    """
    columns = read_columns(path, "document_id", "queries", "date")
    queries: dict[str, list[KnownQuery]] = {}
    for document_id, texts, date in zip(*columns, strict=True):
        if texts == NO_QUERIES:
            continue
        evidence: list[KnownQuery] = []
        for text in json.loads(texts):
            evidence.append(KnownQuery(document_id, text, QuerySource.ROW, date=date))
        queries[document_id] = evidence
    return queries


def added_segment_queries(
    path: Path,
    document_ids: Iterable[str],
    judged_queries: Callable[[str], Sequence[KnownQuery]],
) -> dict[str, list[KnownQuery]]:
    """Return the queries that documents of an added segment are known to answer, by document id.

    They are the queries of the documents' rows. A document that replaces one of the build also
    keeps the queries that judgements of the build assign to it.

    Args:
        path: Documents file of the segment.
        document_ids: Ids of all documents in the file.
        judged_queries: Function that returns the queries that judgements of the build assign to a
            document.
    """
    queries = row_queries(path)
    for document_id in document_ids:
        judged = judged_queries(document_id)
        if judged:
            queries[document_id] = [*queries.get(document_id, ()), *judged]
    return queries


def select_judged(evidence: Iterable[KnownQuery]) -> list[KnownQuery]:
    """Return the known queries that come from judgements."""
    return [query for query in evidence if query.source == QuerySource.QRELS]
