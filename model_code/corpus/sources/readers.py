"""Readers of files of rows: JSON lines, CSV, TSV and Parquet, plain or .gz.

Every line becomes a row or a refused row, so that one bad line does not lose the others.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from model_code.corpus.rows import RefusedRow, Row, Table, printable
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.errors import FreshetError

SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")

PARQUET_BATCH_ROWS = 1024
MAX_DETAIL_CHARACTERS = 300

# The message of `csv` for a quoted cell that goes on to the end of the file.
_UNCLOSED_QUOTE = "unexpected end of data"


def read_rows(path: Path, table: Table, name: str) -> Iterator[Row | RefusedRow]:
    """Yield the rows of a file, with its column names.

    Args:
        path: The file. Its suffix tells the format.
        table: The table that the rows belong to.
        name: Name of the file in locations.

    Raises:
        FreshetError: If the format is unknown, or the file cannot be read as a whole.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in SUFFIXES:
        raise FreshetError(
            f"{name} has an unknown format; files that can be read end in {', '.join(SUFFIXES)} "
            f"(rows, also .gz) or {', '.join(DOCUMENT_SUFFIXES)} (one document)"
        )
    try:
        if suffix == ".parquet":
            yield from _read_parquet(path, table, name)
        elif suffix == ".jsonl":
            yield from _read_json_lines(path, table, name)
        elif suffix == ".tsv":
            yield from _read_delimited(path, table, name, "\t")
        else:
            yield from _read_delimited(path, table, name, ",")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FreshetError(f"{name} is not a whole .gz file ({error}); fetch it again") from None


def _open_text(path: Path) -> IO[str]:
    # "surrogateescape" keeps a bad byte inside its own row, and the check of texts refuses only
    # that row.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="\n")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n")


def _read_json_lines(path: Path, table: Table, name: str) -> Iterator[Row | RefusedRow]:
    with _open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            location = f"{name}:{number}"
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield RefusedRow(table, location, "bad JSON", printable(error), printable(line))
                continue
            if isinstance(values, dict):
                yield Row(table, location, values)
            else:
                detail = f"a {type(values).__name__}, not an object"
                yield RefusedRow(table, location, "bad JSON", detail, printable(line))


class _Record(NamedTuple):
    """A record of a delimited file: the line at which it ends, and its cells or its fault."""

    line: int
    cells: list[str]
    fault: str | None = None


def _read_delimited(
    path: Path, table: Table, name: str, delimiter: str
) -> Iterator[Row | RefusedRow]:
    # The check of texts refuses huge ones and names their rows.
    csv.field_size_limit(sys.maxsize)
    # In TSV, as in BEIR's qrels, a quote is a character like any other. In CSV it encloses a cell.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    with _open_text(path) as stream:
        reader = csv.reader(stream, delimiter=delimiter, quoting=quoting, strict=True)
        records = _read_records(reader, name)
        header = _read_header(records, name)
        for record in records:
            location = f"{name}:{record.line}"
            cells = record.cells
            if record.fault is not None:
                yield RefusedRow(table, location, "bad line", record.fault, "")
            elif len(cells) == len(header):
                yield Row(table, location, dict(zip(header, cells, strict=True)))
            elif cells:
                detail = f"{len(cells)} cells under {len(header)} columns"
                excerpt = printable(delimiter.join(cells))
                yield RefusedRow(table, location, "bad line", detail, excerpt)


def _read_records(reader: Any, name: str) -> Iterator[_Record]:
    """Yield the records of a `csv.reader`.

    A stray quote makes later lines part of its cell. Each of these lines is a faulty record, so
    that all of them count as refused.

    Raises:
        FreshetError: If a quote never closes, because all later lines would be part of one cell.
    """
    while True:
        first_line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if str(error) == _UNCLOSED_QUOTE:
                raise FreshetError(
                    f'{name}:{first_line}: a quote (") opens in this row and never closes, so that '
                    "every later row would be part of its text; close it, or write a quote inside "
                    'of a cell twice ("")'
                ) from None
            fault = str(error)
            if first_line != reader.line_num:
                fault = f"{error}, in a row that begins at line {first_line}"
            for line in range(first_line, reader.line_num + 1):
                yield _Record(line, [], fault)
            continue
        if cells is None:
            return
        yield _Record(reader.line_num, cells)


def _read_header(records: Iterator[_Record], name: str) -> list[str]:
    header = next(records, _Record(1, []))
    if header.fault is not None:
        raise FreshetError(
            f"the first line of {name} is no header of columns: {printable(header.fault)}. "
            "Lines must end in \\n or \\r\\n, and quotes come in pairs"
        )
    _require_unique_columns(header.cells, name)
    return header.cells


def _require_unique_columns(columns: Sequence[str], name: str) -> None:
    """Check that columns have different names, because a row keeps one value per name.

    Columns without a name, which spreadsheets leave behind the last one, may be many.

    Raises:
        FreshetError: If two columns have the same name.
    """
    repeated = [column for column in columns if column and columns.count(column) > 1]
    if repeated:
        first = min(printable(column) for column in repeated)
        raise FreshetError(
            f"{name} has more than one column named {first!r}; give each column its own name"
        )


def _read_parquet(path: Path, table: Table, name: str) -> Iterator[Row | RefusedRow]:
    # pyarrow takes long to import, and the other formats do without it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        file = pq.ParquetFile(path)
        _require_unique_columns(file.schema_arrow.names, name)
        for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS):
            for values in _batch_values(batch):
                number += 1
                yield _parquet_row(table, f"{name}:{number}", values)
    except (pa.ArrowException, OSError) as error:
        damage = f"is damaged after row {number}"
        if number == 0:
            damage = "is not a Parquet file, or not a whole one"
        reason = printable(str(error).splitlines()[0])
        raise FreshetError(f"{name} {damage}; fetch it again ({reason})") from None


def _parquet_row(
    table: Table, location: str, values: dict[str, Any] | Exception
) -> Row | RefusedRow:
    if isinstance(values, dict):
        return Row(table, location, values)
    detail = printable(f"a value cannot be read: {values}", MAX_DETAIL_CHARACTERS)
    if isinstance(values, UnicodeError):
        return RefusedRow(table, location, "invalid UTF-8", detail, "")
    return RefusedRow(table, location, "bad line", detail, "")


def _batch_values(batch: Any) -> Iterator[dict[str, Any] | Exception]:
    """Yield the values of each row of a batch.

    For a row with a value that Python cannot hold, such as text that is not UTF-8 or a year after
    9999, the error is yielded in place of the values.
    """
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            yield error
            return
        for row in range(batch.num_rows):
            yield from _batch_values(batch.slice(row, 1))
