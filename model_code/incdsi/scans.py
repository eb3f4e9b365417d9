"""One pass over a matrix of the collection: scores of all its rows, on the CPU or on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_code.incdsi.growing import GrowingRows
from model_code.incdsi.passes import Pass, bfloat16_error, float32_error
from model_code.settings import require


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
