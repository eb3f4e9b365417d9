"""Rules about files, names and arrays. A broken rule raises `FreshetError` with one line."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from model_code.errors import FreshetError

# Largest allowed difference between the norm of a unit vector and 1. Vectors are normalised in
# float32 even if the encoder computes in half precision, so the difference is small.
UNIT_NORM_TOLERANCE = 1e-3
# Numbers of a memory-mapped array that are checked at once. An index may be larger than the memory.
CHUNK_NUMBERS = 4_194_304


def require(condition: bool, message: str) -> None:
    """Raise `FreshetError` unless the condition holds.

    Args:
        condition: Whether the rule is kept.
        message: Message of the error, which names the file and the rule.
    """
    if not condition:
        raise FreshetError(message)


def require_files(folder: Path, names: Iterable[str]) -> None:
    """Require the named files below `folder` to exist and not to be empty."""
    missing = []
    for name in names:
        path = folder / name
        if not path.is_file() or path.stat().st_size == 0:
            missing.append(name)
    require(not missing, f"{folder.name}/ must hold {', '.join(missing)}: missing or empty")


def require_same_names(rule: str, names: Collection[str], expected: Collection[str]) -> None:
    """Require two collections to hold the same names.

    The message begins with `rule`, and gives one missing and one unknown name.
    """
    missing = sorted(set(expected) - set(names))
    unknown = sorted(set(names) - set(expected))
    differences = []
    if missing:
        differences.append(f"{len(missing):,} missing, such as {missing[0]!r}")
    if unknown:
        differences.append(f"{len(unknown):,} unknown, such as {unknown[0]!r}")
    require(not differences, f"{rule}: {'; '.join(differences)}")


def require_finite(name: str, numbers: np.ndarray) -> None:
    """Require finite numbers in an array of any shape, which may be memory-mapped."""
    flat = numbers.reshape(-1)
    for start in range(0, len(flat), CHUNK_NUMBERS):
        is_finite = bool(np.isfinite(flat[start : start + CHUNK_NUMBERS]).all())
        require(is_finite, f"{name} must be finite numbers, but some are infinite or NaN")


def require_unit(name: str, vectors: np.ndarray) -> None:
    """Require rows of norm 1 in an array (n, H), which may be memory-mapped."""
    chunk_rows = max(1, CHUNK_NUMBERS // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), chunk_rows):
        norms = np.linalg.norm(vectors[start : start + chunk_rows], axis=1)
        deviation = float(np.abs(norms - 1).max())
        # The comparison is false for NaN as well, so NaN breaks the rule.
        require(
            deviation <= UNIT_NORM_TOLERANCE,
            f"{name} must have unit norm; one after row {start} is off by {deviation:.3g}",
        )
