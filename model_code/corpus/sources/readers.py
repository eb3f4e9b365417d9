"""Read files of rows: JSON lines, JSON arrays, CSV, TSV and Parquet, plain or .gz.

Every line becomes a row or a refused row, so that a bad line does not affect the other lines.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from freshet.results import ReadingNote
from model_code.corpus.formats.character_sets import detect_encoding
from model_code.corpus.rows import RefusedRow, Row, RowError, Table, printable
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.errors import FreshetError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")

# Delimiters of CSV, in the order in which the header is searched for them. Spreadsheets write
# semicolons where the comma is the decimal sign, and some programs write tabs or bars.
CSV_DELIMITERS = (",", ";", "\t", "|")
# A line before the header, by which Excel states the delimiter.
DELIMITER_LINE = re.compile(r"sep=([,;\t|])\s*", re.IGNORECASE)

# Rows of a Parquet file that are in memory at once.
PARQUET_BATCH_ROWS = 1024

# Longest message of a library that a reason quotes, in characters.
MAX_DETAIL_CHARACTERS = 300

# Largest JSON array, in bytes. It is parsed in memory; JSON lines have no such limit.
MAX_JSON_BYTES = 200_000_000

# Longest line, and longest cell of CSV, in characters. Each of them is held in memory.
MAX_LINE_CHARACTERS = 50_000_000

# Number of bytes at the beginning of a file from which its encoding is detected.
SAMPLE_BYTES = 4_000_000

# The message of `csv` for a quoted cell that goes on to the end of the file.
_UNCLOSED_QUOTE = "unexpected end of data"


def require_row_format(path: Path, name: str) -> str:
    """Return the suffix of a file of rows, without `.gz` and in lower case.

    Args:
        path: The file.
        name: Name of the file in messages.

    Raises:
        FreshetError: If no format of rows has this suffix.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in SUFFIXES:
        return suffix
    row_suffixes = ", ".join(SUFFIXES)
    if suffix in DOCUMENT_SUFFIXES:
        raise FreshetError(
            f"{name} is one document, and a source is a folder of documents or a file of rows "
            f"({row_suffixes}, also .gz); name the folder of the document"
        )
    raise FreshetError(
        f"{name} has an unknown format; files that can be read end in {row_suffixes} (rows, also "
        f".gz) or {', '.join(DOCUMENT_SUFFIXES)} (one document)"
    )


def read_rows(path: Path, table: Table, name: str) -> Iterator[Row | RefusedRow]:
    """Yield the rows of a file, with its column names.

    Args:
        path: The file. Its suffix tells the format.
        table: The table that the rows belong to.
        name: Name of the file in locations.

    Raises:
        FreshetError: If the format is unknown, or the file cannot be read as a whole.
    """
    suffix = require_row_format(path, name)
    try:
        if suffix == ".parquet":
            yield from _read_parquet(path, table, name)
        elif suffix == ".json":
            yield from _read_json_array(path, table, name)
        elif suffix in (".jsonl", ".ndjson"):
            yield from _read_json_lines(path, table, name)
        elif suffix == ".tsv":
            yield from _read_delimited(path, table, name, "\t")
        else:
            yield from _read_delimited(path, table, name, ",")
    except UnicodeDecodeError as error:
        raise FreshetError(
            f"{name} is not whole in the encoding {error.encoding} that it begins with; save it as "
            "UTF-8"
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FreshetError(f"{name} is not a whole .gz file ({error}); fetch it again") from None


def _open_bytes(path: Path) -> IO[bytes]:
    """Open a file to read its bytes, which are unpacked if it ends in .gz."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")


def _detect_encoding(path: Path) -> str | None:
    """Detect the encoding of a text file from its first bytes; None for UTF-8."""
    with _open_bytes(path) as stream:
        sample = stream.read(SAMPLE_BYTES)
        is_whole = not stream.read(1)
    try:
        return detect_encoding(sample, is_whole)
    except RowError:
        # The file is binary. It is read as UTF-8, and its rows are refused one by one.
        return None


def open_text(path: Path) -> IO[str]:
    """Open a text file, plain or .gz, in the encoding that its first bytes suggest.

    Bytes that are not valid UTF-8 become surrogates, which later checks of a row refuse.
    """
    return _open_text(path, _detect_encoding(path))


def _open_text(path: Path, encoding: str | None) -> IO[str]:
    """Open a text file in an encoding; None is UTF-8."""
    if encoding is not None:
        return io.TextIOWrapper(_open_bytes(path), encoding, newline="\n")
    # "surrogateescape" keeps a bad byte inside its own row, and the check of texts refuses only
    # that row.
    return io.TextIOWrapper(_open_bytes(path), "utf-8-sig", "surrogateescape", newline="\n")


def _read_lines(stream: IO[str], name: str) -> Iterator[str]:
    """Yield the lines of a file.

    Raises:
        FreshetError: If a line is too long, as in a compressed file of zeros.
    """
    number = 0
    while True:
        line = stream.readline(MAX_LINE_CHARACTERS + 1)
        if not line:
            return
        number += 1
        if len(line) > MAX_LINE_CHARACTERS:
            raise FreshetError(
                f"{name}:{number} is a line of more than {MAX_LINE_CHARACTERS:,} characters; "
                "split it into rows"
            )
        if number == 1:
            # A second byte order mark may follow the one that the decoder removed.
            line = line.removeprefix("\ufeff")
        yield line


def _with_encoding_note(
    rows: Iterator[Row | RefusedRow], name: str, encoding: str | None
) -> Iterator[Row | RefusedRow]:
    """Yield rows, the first accepted one with a note if the encoding of the file was guessed."""
    is_guessed = encoding is not None and not encoding.startswith("utf")
    for row in rows:
        if is_guessed and isinstance(row, Row):
            detail = f"decoded as {encoding}, which is a guess"
            note = ReadingNote(name, "encoding", detail, None)
            yield Row(row.table, row.location, row.values, (note,))
            is_guessed = False
        else:
            yield row


def _read_json_array(path: Path, table: Table, name: str) -> Iterator[Row | RefusedRow]:
    """Yield one row for each object in the array that a JSON file holds.

    The file may also hold an object instead of an array. If the object has a single key whose value
    is an array, as in `{"documents": [...]}`, the objects of this array are the rows. Any other
    object is itself the only row. Items of the array that are no objects are refused.
    """
    with _open_bytes(path) as stream:
        data = stream.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise FreshetError(
            f"{name} has more than {MAX_JSON_BYTES:,} bytes, and a JSON array is read as a whole; "
            "write an object per line into a .jsonl file"
        )
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FreshetError(
            f"{name} is no JSON ({printable(error, MAX_DETAIL_CHARACTERS)}); a .json file holds an "
            "array of objects, and a .jsonl file one object per line"
        ) from None

    items = value
    if isinstance(value, dict):
        inner_values = list(value.values())
        is_wrapper = len(inner_values) == 1 and isinstance(inner_values[0], list)
        items = inner_values[0] if is_wrapper else [value]
    if not isinstance(items, list):
        raise FreshetError(f"{name} holds a {type(items).__name__}, not an array of objects")

    for number, item in enumerate(items, start=1):
        location = f"{name}:{number}"
        if isinstance(item, dict):
            yield Row(table, location, item)
        else:
            detail = f"a {type(item).__name__}, not an object"
            yield RefusedRow(table, location, "bad JSON", detail, printable(item))


def _read_json_lines(path: Path, table: Table, name: str) -> Iterator[Row | RefusedRow]:
    """Yield the objects of JSON lines. Other lines are refused, and empty lines are skipped."""
    encoding = _detect_encoding(path)
    if encoding is not None and not encoding.startswith("utf"):
        # JSON is always Unicode. The file is read as UTF-8, and rows with bad bytes are refused.
        encoding = None
    with _open_text(path, encoding) as stream:
        for number, line in enumerate(_read_lines(stream, name), start=1):
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
    """Yield the rows of a CSV or TSV file, whose first line names the columns.

    Args:
        path: The file.
        table: The table that the rows belong to.
        name: Name of the file in locations.
        delimiter: "," for CSV, or a tab for TSV.
    """
    csv.field_size_limit(MAX_LINE_CHARACTERS)
    # In TSV, as in BEIR's qrels, a quote is a character like any other. In CSV it encloses a cell.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    encoding = _detect_encoding(path)
    with _open_text(path, encoding) as stream:
        lines = iter(_read_lines(stream, name))
        header_line = next(lines, "")
        if delimiter == ",":
            stated = DELIMITER_LINE.fullmatch(header_line)
            if stated is None:
                delimiter = _find_delimiter(header_line)
            else:
                delimiter = stated[1]
                # An empty line takes the place of the line with the delimiter, so later lines keep
                # their numbers.
                header_line = "\n"
        all_lines = chain([header_line], lines)
        # A file with a blank behind each delimiter also has one before the quotes of its cells.
        reader = csv.reader(
            all_lines,
            delimiter=delimiter,
            quoting=quoting,
            strict=True,
            skipinitialspace=f"{delimiter} " in header_line,
        )
        records = _read_records(reader, name)
        header = _read_header(records, name)
        rows = _delimited_rows(records, header, table, name, delimiter)
        yield from _with_encoding_note(rows, name, encoding)


def _find_delimiter(header_line: str) -> str:
    """Return the delimiter of a CSV file, judged by its header."""
    for delimiter in CSV_DELIMITERS:
        if delimiter in header_line:
            return delimiter
    return CSV_DELIMITERS[0]


def _delimited_rows(
    records: Iterator[_Record], header: Sequence[str], table: Table, name: str, delimiter: str
) -> Iterator[Row | RefusedRow]:
    """Yield a row for each record. A record with a fault, or missing or extra cells, is refused.

    Args:
        records: The records after the header.
        header: Names of the columns.
        table: The table that the rows belong to.
        name: Name of the file in locations.
        delimiter: The delimiter, with which an excerpt of a refused row is written.
    """
    for record in records:
        location = f"{name}:{record.line}"
        cells = record.cells
        if record.fault is not None:
            yield RefusedRow(table, location, "bad line", record.fault, "")
        elif len(cells) == len(header):
            yield Row(table, location, dict(zip(header, cells, strict=True)))
        elif cells:
            # A record without cells is an empty line, which is skipped.
            detail = f"{len(cells)} cells under {len(header)} columns"
            excerpt = printable(delimiter.join(cells))
            yield RefusedRow(table, location, "bad line", detail, excerpt)


def _read_records(reader: Any, name: str) -> Iterator[_Record]:
    """Yield the records of a `csv.reader`.

    A stray quote makes the following lines part of one cell. Each of these lines is yielded as a
    faulty record, so that all of them count as refused rows.

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
    """Take the first record, and return its cells, without outer blanks, as names of columns.

    Raises:
        FreshetError: If the record is faulty, or names a column twice.
    """
    # Empty lines before the header are skipped.
    filled = (record for record in records if record.cells or record.fault is not None)
    header = next(filled, _Record(1, []))
    if header.fault is not None:
        raise FreshetError(
            f"the first line of {name} is no header of columns: {printable(header.fault)}. "
            "Lines must end in \\n or \\r\\n, and quotes come in pairs"
        )
    columns = [cell.strip() for cell in header.cells]
    _require_unique_columns(columns, name)
    return columns


def _require_unique_columns(columns: Sequence[str], name: str) -> None:
    """Check that columns have different names, because a row keeps one value per name.

    Several columns without a name are allowed, because spreadsheets often write empty columns after
    the last one.

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
    """Yield the rows of a Parquet file, of which one batch is in memory at a time.

    Raises:
        FreshetError: If the file is damaged. The rows before the damage were yielded.
    """
    # pyarrow takes long to import, and the other formats do without it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        file = pq.ParquetFile(path)
        _require_unique_columns(file.schema_arrow.names, name)
        for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS):
            for values in _batch_values(_with_text_columns(batch)):
                number += 1
                yield _parquet_row(table, f"{name}:{number}", values)
    except (pa.ArrowException, OSError) as error:
        damage = f"is damaged after row {number}"
        if number == 0:
            damage = "is not a Parquet file, or not a whole one"
        reason = printable(str(error).splitlines()[0])
        raise FreshetError(f"{name} {damage}; fetch it again ({reason})") from None


def _with_text_columns(batch: Any) -> Any:
    """Return a batch in which columns of bytes are text, if all their values are UTF-8.

    Some programs write text without stating that it is text.
    """
    import pyarrow as pa

    columns: list[Any] = []
    for column in batch.columns:
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            # Bytes that are no text stay bytes. The check of the row's values decides about them.
            with suppress(pa.ArrowInvalid):
                column = column.cast(pa.large_string())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _parquet_row(
    table: Table, location: str, values: dict[str, Any] | Exception
) -> Row | RefusedRow:
    """Return the row of the values that `_batch_values` yielded, or a refused row for an error."""
    if isinstance(values, dict):
        return Row(table, location, values)
    detail = printable(f"a value cannot be read: {values}", MAX_DETAIL_CHARACTERS)
    if isinstance(values, UnicodeError):
        return RefusedRow(table, location, "invalid UTF-8", detail, "")
    return RefusedRow(table, location, "bad line", detail, "")


def _batch_values(batch: Any) -> Iterator[dict[str, Any] | Exception]:
    """Yield the values of each row of a batch.

    A map becomes an object. Python cannot hold some values, such as text that is not UTF-8, a year
    after 9999, or a map with equal keys. For a row with such a value, the error is yielded in place
    of the values.
    """
    try:
        yield from batch.to_pylist(maps_as_pydicts="strict")
    except (ValueError, OverflowError, KeyError) as error:
        if batch.num_rows == 1:
            yield error
            return
        # The error does not say which row it is about, so each row is read on its own.
        for row in range(batch.num_rows):
            yield from _batch_values(batch.slice(row, 1))
