"""Arrays of a safetensors file, mapped into memory instead of read, and written without a copy.

safetensors' own reader for numpy copies every array. A mapped array costs no memory until it is
read, and processes share its pages. safetensors' writer holds a copy of all arrays.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_code.errors import Damaged
from model_code.files import BUILD, atomic_write

HEADER_LENGTH_BYTES = 8

DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "F16": np.float16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "F64": np.float64,
}
"""numpy's types by their names in the format."""


# The order in which safetensors writes the types of arrays.
WRITTEN_ORDER = (
    "U64",
    "I64",
    "F64",
    "F32",
    "U32",
    "I32",
    "F16",
    "U16",
    "I16",
    "I8",
    "U8",
    "BOOL",
)
# The header ends at a multiple of this number of bytes.
HEADER_ALIGNMENT = 8


def write_tensors(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """Write arrays to a safetensors file, one after the other, without a copy of them in memory.

    The bytes equal those of `safetensors.numpy.save_file`.

    Args:
        arrays: Arrays by name, of the types in `DTYPES`.
        path: File to write. It is replaced at once, see `atomic_write`.
    """
    type_names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    named_types = {name: type_names[array.dtype] for name, array in arrays.items()}
    order = sorted(arrays, key=lambda name: (WRITTEN_ORDER.index(named_types[name]), name))

    header: dict[str, Any] = {}
    start = 0
    for name in order:
        array = arrays[name]
        end = start + array.nbytes
        header[name] = {
            "dtype": named_types[name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
        start = end
    header_text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    header_text += b" " * (-len(header_text) % HEADER_ALIGNMENT)

    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        stream.write(len(header_text).to_bytes(HEADER_LENGTH_BYTES, "little"))
        stream.write(header_text)
        for name in order:
            np.ascontiguousarray(arrays[name]).tofile(stream)


def map_tensors(path: Path) -> dict[str, np.ndarray]:
    """Map the arrays of a safetensors file, read-only.

    The file may be deleted or replaced while the arrays are in use. The arrays keep its content.

    Args:
        path: File that `safetensors.numpy.save_file` wrote.

    Raises:
        Damaged: If the file is cut off.
    """
    with path.open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {}
    for name, entry in _read_header(path, content).items():
        start, end = entry["data_offsets"]
        dtype = np.dtype(DTYPES[entry["dtype"]])
        count = (end - start) // dtype.itemsize
        array = np.frombuffer(content, dtype, count, start)
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def tensor_range(path: Path, name: str) -> tuple[int, int]:
    """Return where the bytes of an array begin and end in a safetensors file.

    Args:
        path: The file.
        name: Name of the array.

    Raises:
        Damaged: If the file is cut off.
    """
    with path.open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    start, end = _read_header(path, content)[name]["data_offsets"]
    return start, end


def _read_header(path: Path, content: mmap.mmap) -> dict[str, Any]:
    """Return the entry of each array. Its `data_offsets` count from the start of the file.

    A safetensors file begins with the length of its header, 8 bytes. The header, in JSON, has an
    entry with the type, shape and place of each array. The data of the arrays follow.

    Raises:
        Damaged: If the file is cut off.
    """
    header_length = int.from_bytes(content[:HEADER_LENGTH_BYTES], "little")
    data_start = HEADER_LENGTH_BYTES + header_length
    try:
        header: dict[str, Any] = json.loads(content[HEADER_LENGTH_BYTES:data_start])
    except ValueError:
        raise Damaged(f"{path} is torn", BUILD) from None
    header.pop("__metadata__", None)

    for name, entry in header.items():
        start, end = entry["data_offsets"]
        if data_start + end > len(content):
            raise Damaged(f"{path} is torn: it ends within {name}", BUILD)
        entry["data_offsets"] = (data_start + start, data_start + end)
    return header
