"""One pass over a matrix of the collection: scores of all its rows, with a proven bound on their rounding errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from model_code.incdsi.growing import GrowingRows
from model_code.settings import require

FLOAT32, BFLOAT16 = 2.0**-24, 2.0**-8
"""The largest relative error of rounding one number to the type, which keeps 24 or 8 binary digits."""


@dataclass(frozen=True)
class Pass:
    """Scores (n) of the first n rows with `vector` (H): each within `error` x |row| x |vector| of the true score."""

    vector: np.ndarray
    scores: np.ndarray
    error: float

    @property
    def uncertainty(self) -> float:
        """The error per unit of a row's length: a row a is within `uncertainty` x |a| of its score."""
        return self.error * float(np.sqrt(self.vector @ self.vector))


class Scan(Protocol):
    """Whatever multiplies the rows of one matrix with vectors."""

    def passes(self, vectors: np.ndarray) -> list[Pass]:
        """One `Pass` for each of `vectors` (B, H), all from one reading of the matrix."""
        ...


class HostScan:
    """float32 on the CPU by BLAS: a matrix-vector product for one vector, a matrix product for several.

    >>> HostScan(GrowingRows(np.eye(2, dtype=np.float32))).passes(np.array([[3.0, 4.0]]))[0].scores.tolist()
    [3.0, 4.0]
    """

    def __init__(self, rows: GrowingRows) -> None:
        self.rows = rows

    def passes(self, vectors: np.ndarray) -> list[Pass]:
        """One `Pass` for each of `vectors` (B, H)."""
        error = float32_error(vectors.shape[1])
        scores = vectors.astype(np.float32) @ self.rows.view.T
        return [Pass(vector, row, error) for vector, row in zip(vectors, scores, strict=True)]


class DeviceScan:
    """The same by torch on a copy of the matrix: float32 on a GPU, or bfloat16 where the CPU has it in hardware.

    Rows that changed are copied to the device before the next pass. On a GPU, bfloat16 is not offered: its matrix
    products may add partial sums in bfloat16, for which the bound would not hold.
    """

    def __init__(self, rows: GrowingRows, device: str, precision: str) -> None:
        import torch

        self.rows, self.precision, self._changes = rows, precision, rows.watch()
        self.device = torch.device(device)
        on_gpu = self.device.type == "cuda"
        require(
            not (on_gpu and precision == "bfloat16"),
            "precision bfloat16 has a proven bound on a CPU only: choose float32 on a GPU",
        )
        require(
            not (on_gpu and torch.backends.cuda.matmul.allow_tf32),
            "torch multiplies float32 with TF32 here, too coarse for the proven bound: "
            "torch.backends.cuda.matmul.allow_tf32 = False",
        )
        self._dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._mirror: Any = None

    def passes(self, vectors: np.ndarray) -> list[Pass]:
        """One `Pass` for each of `vectors` (B, H)."""
        import torch

        matrix = self._matrix()
        on_device = torch.from_numpy(vectors.astype(np.float32)).to(self.device, self._dtype)
        scores = (on_device @ matrix.T).float().cpu().numpy()
        width = vectors.shape[1]
        error = bfloat16_error(width) if self.precision == "bfloat16" else float32_error(width)
        return [Pass(vector, row, error) for vector, row in zip(vectors, scores, strict=True)]

    def _matrix(self) -> Any:
        import torch

        count, first = len(self.rows), self._changes.first
        if self._mirror is None or len(self._mirror) < count:
            first = 0
            shape = (max(16, count + count // 2), self.rows.view.shape[1])
            self._mirror = torch.empty(shape, dtype=self._dtype, device=self.device)
        if first < count:
            self._mirror[first:count] = torch.from_numpy(self.rows.view[first:]).to(self.device, self._dtype)
        self._changes.first = count
        return self._mirror[:count]


def float32_error(width: int) -> float:
    """Relative error of a float32 score of `width` numbers against float64: rounded vector, products and sums.

    In any order of summation the sum of `width` products is off by at most width x 2^-24 |a||v| (Higham 2002,
    section 3.1), rounding v adds 2^-24; 1.01 covers the terms of second order for widths up to 100,000.
    """
    return 1.01 * (width + 2) * FLOAT32


def bfloat16_error(width: int) -> float:
    """The same where both factors and the score are rounded to bfloat16 and sums are float32: about 2^-6.41."""
    return (1 + BFLOAT16) ** 3 * (1 + float32_error(width)) - 1


def scan(rows: GrowingRows, device: str, precision: str) -> Scan:
    """The scan that the settings ask for; torch is imported only if it is needed.

    Raises SettingsError for bfloat16 on a CPU that would only emulate it.
    """
    if device == "cpu" and precision != "bfloat16":
        return _host_scan(rows, precision)
    from model_code.encoding.hardware import has_bfloat16, pick_device

    chosen = pick_device(device)
    if chosen.type == "cpu" and precision != "bfloat16":
        return _host_scan(rows, precision)
    require(
        precision != "bfloat16" or has_bfloat16(chosen),
        f"precision is bfloat16, but {chosen} does not multiply it in hardware and would be slower: choose float32",
    )
    return DeviceScan(rows, str(chosen), precision)


def _host_scan(rows: GrowingRows, precision: str) -> Scan:
    if precision == "float32":
        return HostScan(rows)
    from model_code.incdsi.compressed import CompressedScan

    return CompressedScan(rows)
