"""Rows of an array in a file, read one by one instead of mapped into memory.

A mapped file needs no memory at first. But a search reads a few hundred rows at random places, and
the kernel makes 64 KB resident around each of them. After some searches the whole file is resident.
Rows that are read with `preadv` stay in the kernel's cache only, which all processes share.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from weakref import finalize

import numpy as np

from model_code.errors import Damaged
from model_code.files import BUILD

MIN_FILE_BYTES = 2**24
"""Size from which rows are read from the file. A smaller file is mapped, which is faster."""


class RowFile:
    """Reads rows of a two-dimensional array in a `.npy` file. Threads may share it.

    The file may be deleted or replaced meanwhile: an instance reads the content that it opened.

    Attributes:
        path: Path of the file when it was opened.
    """

    def __init__(self, path: Path) -> None:
        """Open a file that `numpy.save` wrote from an array in C order.

        Args:
            path: The file.
        """
        mapped = np.load(path, mmap_mode="r")
        self.path = path
        self._rows = len(mapped)
        self._width = mapped.shape[1]
        self._dtype = mapped.dtype
        self._row_bytes = mapped.shape[1] * mapped.itemsize
        self._data_start = mapped.offset
        self._descriptor = os.open(path, os.O_RDONLY)
        finalize(self, os.close, self._descriptor)

    @classmethod
    def open_large(cls, path: Path) -> RowFile | None:
        """Open a file; None if it is smaller than `MIN_FILE_BYTES`, or the system lacks `preadv`.

        Args:
            path: The file.
        """
        if path.stat().st_size < MIN_FILE_BYTES or not hasattr(os, "preadv"):
            return None
        return cls(path)

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
        buffer = memoryview(result).cast("B")
        offsets = (starts * self._row_bytes + self._data_start).tolist()
        end = 0
        read = 0
        for offset, size in zip(offsets, sizes, strict=False):
            start = end
            end += size
            read += os.preadv(self._descriptor, [buffer[start:end]], offset)
        if read != len(buffer):
            raise Damaged(f"{self.path} is torn: rows are missing", BUILD)
