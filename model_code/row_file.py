"""Rows of an array in a file, read one by one instead of mapped into memory.

A mapped file needs no memory at first. But a search reads a few hundred rows at random places, and
the kernel makes 64 KB resident around each of them. After some searches the whole file is resident.
Rows that are read with `preadv` stay in the kernel's cache only, which all processes share.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path
from weakref import finalize

import numpy as np

from model_code.errors import Damaged
from model_code.files import BUILD
from model_code.mapped_tensors import tensor_range

MIN_FILE_BYTES = 2**24
"""Size from which rows are read from the file. A smaller file is mapped, which is faster."""


class RowFile:
    """Reads rows of an array in a file. Threads may share it.

    The file may be deleted or replaced meanwhile: an instance reads the content that it opened.

    Attributes:
        path: Path of the file when it was opened.
    """

    def __init__(
        self, path: Path, data_start: int, shape: tuple[int, int], dtype: np.dtype
    ) -> None:
        """Open a file. Use `of_array` or `of_tensor` instead.

        Args:
            path: The file.
            data_start: Position of the array in the file, in bytes.
            shape: Number of rows, and number of components of a row.
            dtype: Type of the components.
        """
        self.path = path
        self._rows, self._width = shape
        self._dtype = dtype
        self._row_bytes = self._width * dtype.itemsize
        self._data_start = data_start
        self._descriptor = os.open(path, os.O_RDONLY)
        finalize(self, os.close, self._descriptor)

    @classmethod
    def of_array(cls, path: Path) -> RowFile:
        """Open a `.npy` file of a two-dimensional array in C order.

        Args:
            path: The file.
        """
        mapped = np.load(path, mmap_mode="r")
        return cls(path, mapped.offset, mapped.shape, mapped.dtype)

    @classmethod
    def of_bytes(cls, path: Path, name: str) -> RowFile:
        """Open an array of bytes in a safetensors file, as rows of one byte.

        Args:
            path: The file.
            name: Name of the array, which has one dimension.
        """
        start, end = tensor_range(path, name)
        return cls(path, start, (end - start, 1), np.dtype(np.uint8))

    @classmethod
    def open_large(cls, path: Path) -> RowFile | None:
        """Open a `.npy` file; None if it is smaller than `MIN_FILE_BYTES`.

        Args:
            path: The file.
        """
        if path.stat().st_size < MIN_FILE_BYTES:
            return None
        return cls.of_array(path)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return rows, as indexing the array does: a row of -1 is the last one.

        Args:
            rows: Row numbers of any shape (...).

        Returns:
            The rows, shape (..., width).

        Raises:
            Damaged: If the file was cut off.
        """
        flat_rows = rows.ravel()
        starts = np.where(flat_rows < 0, flat_rows + self._rows, flat_rows)
        result = np.empty((len(starts), self._width), self._dtype)
        self._read_into(result, starts, repeat(self._row_bytes))
        return result.reshape(*rows.shape, self._width)

    def read_runs(self, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return several runs of consecutive rows, one run after the other.

        Args:
            starts: First row of each run, shape (n,).
            counts: Number of rows of each run, shape (n,).

        Returns:
            The rows of all runs, shape (sum of `counts`, width).

        Raises:
            Damaged: If the file was cut off.
        """
        result = np.empty((int(counts.sum()), self._width), self._dtype)
        self._read_into(result, starts, (counts * self._row_bytes).tolist())
        return result

    def _read_into(self, result: np.ndarray, starts: np.ndarray, sizes: Iterable[int]) -> None:
        """Fill an array (r, width) with runs of rows.

        Args:
            result: Array to fill.
            starts: First row of each run, shape (n,).
            sizes: Number of bytes of each run.
        """
        if not result.size:
            return
        # The bytes of the array, and the position in the file of each run.
        buffer = memoryview(result).cast("B")
        offsets = (starts * self._row_bytes + self._data_start).tolist()
        # Not every system has `preadv`.
        read_into = getattr(os, "preadv", _copy_into)
        end = 0
        bytes_read = 0
        for offset, size in zip(offsets, sizes, strict=False):
            start = end
            end += size
            bytes_read += read_into(self._descriptor, [buffer[start:end]], offset)
        if bytes_read != len(buffer):
            raise Damaged(f"{self.path} is torn: rows are missing", BUILD)


def _copy_into(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Read into the first buffer like `os.preadv`, and return the number of bytes."""
    content = os.pread(descriptor, len(buffers[0]), offset)
    buffers[0][: len(content)] = content
    return len(content)
