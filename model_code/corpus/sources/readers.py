"""Readers of JSON lines, CSV, TSV and Parquet files, plain or .gz: every line becomes a row or a malformed row."""

from __future__ import annotations

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from model_code.corpus.rows import Malformed, Row, Table, printable
from model_code.errors import FreshetError

SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")


def read_rows(path: Path, table: Table, name: str) -> Iterator[Row | Malformed]:
    """Yield the rows of the file at `path`; `name` is what locations call it. The format is told by the suffix."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in SUFFIXES:
        raise FreshetError(f"{name} has an unknown format; source files end in {', '.join(SUFFIXES)}, or .gz after it")
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
    # "surrogateescape" keeps a bad byte inside its own row, where the check for it refuses that row alone.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="\n")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n")


def _read_json_lines(path: Path, table: Table, name: str) -> Iterator[Row | Malformed]:
    with _open(path) as stream:
        for number, line in enumerate(stream, start=1):
            location = f"{name}:{number}"
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield Malformed(table, location, "bad JSON", printable(error), printable(line))
                continue
            if isinstance(values, dict):
                yield Row(table, location, values)
            else:
                detail = f"a {type(values).__name__}, not an object"
                yield Malformed(table, location, "bad JSON", detail, printable(line))


def _read_delimited(path: Path, table: Table, name: str, delimiter: str) -> Iterator[Row | Malformed]:
    csv.field_size_limit(sys.maxsize)  # huge texts are refused by the check for them, with their row's location
    # In a TSV file quotes are letters like any other (as in BEIR's qrels); in CSV they enclose.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    with _open(path) as stream:
        lines = csv.reader(stream, delimiter=delimiter, quoting=quoting)
        header = next(lines, [])
        while (cells := _next_line(lines)) is not None:
            location = f"{name}:{lines.line_num}"
            if isinstance(cells, str):
                yield Malformed(table, location, "bad line", cells, "")
            elif len(cells) == len(header):
                yield Row(table, location, dict(zip(header, cells, strict=True)))
            elif cells:
                detail = f"{len(cells)} cells under {len(header)} columns"
                yield Malformed(table, location, "bad line", detail, printable(delimiter.join(cells)))


def _next_line(lines: Iterator[list[str]]) -> list[str] | str | None:
    """The cells of the next line, what is wrong with it, or None at the end."""
    try:
        return next(lines, None)
    except csv.Error as error:
        return str(error)


def _read_parquet(path: Path, table: Table, name: str) -> Iterator[Row | Malformed]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise FreshetError(f"{name} is not a Parquet file: {error}") from None
    number = 0
    for batch in file.iter_batches(batch_size=1024):
        for values in batch.to_pylist():
            number += 1
            yield Row(table, f"{name}:{number}", values)
