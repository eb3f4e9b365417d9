"""Read uploaded files: documents and files of rows, as `freshet add` reads them."""

from __future__ import annotations

import gzip
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from anyio import CapacityLimiter
from fastapi import UploadFile

from model_code.corpus.clean_rows import CleanRows, clean_rows, read_file
from model_code.corpus.rows import Reason, RefusedRow, Row
from model_code.corpus.settings import ColumnSettings, CorpusSettings
from model_code.corpus.sources.file_names import escape_name, is_usable_id
from model_code.errors import FreshetError

# Only one upload is read at a time, so that uploads need a bounded amount of memory.
READING_LIMITER = CapacityLimiter(1)

# Number of bytes that are unpacked at a time while the size of a compressed file is checked.
CHUNK_BYTES = 1_000_000
# Largest size of an uploaded file after it is unpacked.
MAX_UNPACKED_BYTES = 500_000_000

# Least number of bytes that a value of Parquet takes after it is unpacked.
MIN_VALUE_BYTES = 8
# Rows of a Parquet file whose size is measured at once.
MEASURED_BATCH_ROWS = 50_000

_SAFE_SUFFIX = re.compile(r"\.\w{1,10}", re.ASCII)


def upload_name(file: UploadFile) -> str:
    """Return the name of an uploaded file without its folder, in a form that can be printed."""
    name = (file.filename or "").replace("\\", "/")
    return escape_name(PurePosixPath(name).name)


def read_uploads(files: Sequence[UploadFile], settings: CorpusSettings) -> CleanRows:
    """Read and clean the rows of uploaded files. A file that cannot be read is a refused row.

    Args:
        files: The files.
        settings: The limits of a document, and the column names of the project's source.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows = _read_all(files, Path(folder), settings.columns)
        return clean_rows(rows, settings, "upload")


def _read_all(
    files: Sequence[UploadFile], folder: Path, columns: ColumnSettings
) -> Iterator[Row | RefusedRow]:
    """Yield the rows of uploaded files.

    The readers of formats need a path. So each file is copied into `folder` while it is read.
    """
    for number, file in enumerate(files):
        name = upload_name(file)
        if not name or not is_usable_id(name):
            detail = "its name cannot be the id of a document; give the file another name"
            yield _refuse(name, "bad id", detail)
            continue
        # The copy is named by a number, because the name of the upload may be no safe file name.
        path = folder / f"{number}{_suffixes(name)}"
        with path.open("wb") as stream:
            shutil.copyfileobj(file.file, stream)
        try:
            _require_bounded_size(path, name)
            yield from read_file(path, name, columns)
        except FreshetError as error:
            yield _refuse(name, "unreadable file", str(error))
        path.unlink()


def _require_bounded_size(path: Path, name: str) -> None:
    """Check that a compressed file is not too large when it is unpacked.

    Raises:
        FreshetError: If the file is too large, or damaged.
    """
    if path.suffix.lower() == ".parquet":
        _require_bounded_parquet(path, name)
    if path.suffix != ".gz":
        return
    unpacked_bytes = 0
    try:
        with gzip.open(path) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                unpacked_bytes += len(chunk)
                if unpacked_bytes > MAX_UNPACKED_BYTES:
                    raise _too_large(name)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FreshetError(f"{name} is not a whole .gz file ({error}); send it again") from None


def _require_bounded_parquet(path: Path, name: str) -> None:
    """Check the size of the values of a Parquet file without compression.

    A file stores repeated values once, in a dictionary. The size that it states can therefore be
    much smaller than that of its values.

    Raises:
        FreshetError: If the file is too large.
    """
    # pyarrow takes long to import, and the other formats do without it.
    import pyarrow as pa

    unpacked_bytes = 0
    try:
        for size in _parquet_sizes(path):
            unpacked_bytes += size
            if unpacked_bytes > MAX_UNPACKED_BYTES:
                raise _too_large(name)
    except (pa.ArrowException, OSError):
        # The reader of rows refuses a damaged file, and says why.
        return


def _parquet_sizes(path: Path) -> Iterator[int]:
    """Yield sizes in bytes, whose sum is about the size of all values of a Parquet file.

    The sizes that the file states come first, before any value is read.
    """
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    text_columns: set[str] = set()
    for group_number in range(metadata.num_row_groups):
        group = metadata.row_group(group_number)
        for column_number in range(group.num_columns):
            column = group.column(column_number)
            yield max(column.total_uncompressed_size, column.num_values * MIN_VALUE_BYTES)
            if column.physical_type == "BYTE_ARRAY":
                text_columns.add(column.path_in_schema)

    # Columns that are read as dictionaries take little memory, however often a text is repeated.
    with pq.ParquetFile(path, read_dictionary=sorted(text_columns)) as file:
        for column_path in sorted(text_columns):
            for batch in file.iter_batches(MEASURED_BATCH_ROWS, columns=[column_path]):
                for array in batch.columns:
                    yield _text_size(array)


def _text_size(array: Any) -> int:
    """Return the number of bytes of all texts in an array, or in its lists, maps and objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary)
        return pc.sum(lengths.take(array.indices)).as_py() or 0
    if pa.types.is_struct(kind):
        return sum(_text_size(inner_array) for inner_array in array.flatten())
    if pa.types.is_map(kind):
        return _text_size(array.keys) + _text_size(array.items)
    if pa.types.is_nested(kind):
        return _text_size(array.flatten())
    return 0


def _too_large(name: str) -> FreshetError:
    """Return the error for a file that is too large when it is unpacked."""
    return FreshetError(
        f"{name} unpacks to more than {MAX_UNPACKED_BYTES:,} bytes; send it in parts, or use "
        "freshet add"
    )


def _suffixes(name: str) -> str:
    """Return the one or two suffixes that tell a format, such as `.csv.gz`.

    Only short suffixes of letters and digits are kept, so that the result is a safe file name.
    """
    suffixes = PurePosixPath(name).suffixes[-2:]
    return "".join(suffix for suffix in suffixes if _SAFE_SUFFIX.fullmatch(suffix))


def _refuse(name: str, reason: Reason, detail: str) -> RefusedRow:
    """Return the row that stands for a file which could not be read, with the reason."""
    return RefusedRow("documents", f"{name}:1", reason, detail, "", name or None, bool(name))
