"""Readers of JSON lines, CSV, TSV and Parquet files, plain or .gz: every line becomes a row or a
malformed row.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from model_code.corpus.rows import Reason, RefusedRow, Row, Table, printable
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.errors import FreshetError

SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")
# how `csv` says that a quoted cell goes on to the end of the file
_UNCLOSED = "unexpected end of data"


def read_rows(path: Path, table: Table, name: str) -> Iterator[Row | RefusedRow]:
    """Yield the rows of the file at `path`; `name` is what locations call it. The format is told by
    the suffix.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in SUFFIXES:
        kinds = f"{', '.join(SUFFIXES)} (rows, also .gz) or {', '.join(DOCUMENT_SUFFIXES)} (one document)"
        raise FreshetError(f"{name} has an unknown format; files that can be read end in {kinds}")
    try:
        if suffix == ".parquet":
            yield from _read_parquet(path, table, name)
        elif suffix == ".jsonl":
            yield from _read_json_lines(path, table, name)
        else:
            yield from _read_delimited(path, table, name, "\t" if suffix == ".tsv" else ",")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FreshetError(f"{name} is not a whole .gz file ({error}); fetch it again") from None


def _open(path: Path) -> IO[str]:
    # "surrogateescape" keeps a bad byte inside its own row, where the check for it refuses that row
    # alone.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="\n")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n")


def _read_json_lines(path: Path, table: Table, name: str) -> Iterator[Row | RefusedRow]:
    with _open(path) as stream:
        for number, line in enumerate(stream, start=1):
            location = f"{name}:{number}"
            if not line.strip():
                continue
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


def _read_delimited(
    path: Path, table: Table, name: str, delimiter: str
) -> Iterator[Row | RefusedRow]:
    # huge texts are refused by the check for them, with their row's location
    csv.field_size_limit(sys.maxsize)
    # In a TSV file quotes are letters like any other (as in BEIR's qrels); in CSV they enclose.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    with _open(path) as stream:
        records = _records(
            csv.reader(stream, delimiter=delimiter, quoting=quoting, strict=True), name
        )
        header = _header(records, name)
        for line, cells in records:
            location = f"{name}:{line}"
            if isinstance(cells, str):
                yield RefusedRow(table, location, "bad line", cells, "")
            elif len(cells) == len(header):
                yield Row(table, location, dict(zip(header, cells, strict=True)))
            elif cells:
                detail = f"{len(cells)} cells under {len(header)} columns"
                yield RefusedRow(
                    table, location, "bad line", detail, printable(delimiter.join(cells))
                )


def _records(lines: Any, name: str) -> Iterator[tuple[int, list[str] | str]]:
    """The line that each record of a `csv.reader` ends at, and its cells; of a broken one each
    line, and why.
    """
    while True:
        begin = lines.line_num + 1
        try:
            cells = next(lines, None)
        except csv.Error as error:
            if str(error) == _UNCLOSED:
                raise FreshetError(
                    f'{name}:{begin}: a quote (") opens in this row and never closes, so that every later row would be '
                    'part of its text; close it, or write a quote inside of a cell twice ("")'
                ) from None
            # A stray quote makes later rows part of its cell: each line that was taken along counts
            # as refused.
            detail = (
                str(error)
                if begin == lines.line_num
                else f"{error}, in a row that begins at line {begin}"
            )
            yield from ((line, detail) for line in range(begin, lines.line_num + 1))
            continue
        if cells is None:
            return
        yield lines.line_num, cells


def _header(records: Iterator[tuple[int, list[str] | str]], name: str) -> list[str]:
    _, names = next(records, (1, []))
    if isinstance(names, str):
        raise FreshetError(
            f"the first line of {name} is no header of columns: {printable(names)}. "
            "Lines must end in \\n or \\r\\n, and quotes come in pairs"
        )
    _refuse_repeated(names, name)
    return names


def _refuse_repeated(names: Sequence[str], name: str) -> None:
    """Raise `FreshetError` if two columns have one name: a row would keep only the last one's
    value. Columns without a name, as spreadsheets leave them behind the last one, may be many.
    """
    repeated = sorted({printable(column) for column in names if column and names.count(column) > 1})
    if repeated:
        raise FreshetError(
            f"{name} has more than one column named {repeated[0]!r}; give each column its own name"
        )


def _read_parquet(path: Path, table: Table, name: str) -> Iterator[Row | RefusedRow]:
    import pyarrow as pa  # which other formats do without
    import pyarrow.parquet as pq

    number = 0
    try:
        file = pq.ParquetFile(path)
        _refuse_repeated(file.schema_arrow.names, name)
        for batch in file.iter_batches(batch_size=1024):
            for values in _values(batch):
                number += 1
                location = f"{name}:{number}"
                if isinstance(values, dict):
                    yield Row(table, location, values)
                else:
                    reason: Reason = (
                        "invalid UTF-8" if isinstance(values, UnicodeError) else "bad line"
                    )
                    detail = printable(f"a value cannot be read: {values}", 300)
                    yield RefusedRow(table, location, reason, detail, "")
    except (pa.ArrowException, OSError) as error:
        damage = (
            f"is damaged after row {number}"
            if number
            else "is not a Parquet file, or not a whole one"
        )
        raise FreshetError(
            f"{name} {damage}; fetch it again ({printable(str(error).splitlines()[0])})"
        ) from None


def _values(batch: Any) -> Iterator[dict[str, Any] | Exception]:
    """The rows of a batch; for one with a value that Python cannot hold (a text that is no UTF-8, a
    year past 9999), the error that says so.
    """
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            yield error
        else:
            for row in range(batch.num_rows):
                yield from _values(batch.slice(row, 1))
