"""What contracts have in common: one line for a broken rule, files that must be there, numbers that must be finite."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from model_code.errors import FreshetError

PIECE = 4_194_304  # numbers that are looked at in one go, so that an index larger than the memory can be checked
WHOLE = 1 + 1e-9  # the most that a share may be: nDCG's equal sums, added in another order, differ in the last bit


def require(holds: bool, broken: str) -> None:
    """FreshetError with the line `broken`, which names the file and the rule, unless the rule holds."""
    if not holds:
        raise FreshetError(broken)


def require_files(folder: Path, names: Iterable[str]) -> None:
    """FreshetError if one of the files below `folder` is missing or empty."""
    lacking = [name for name in names if not (folder / name).is_file() or not (folder / name).stat().st_size]
    require(not lacking, f"{folder.name}/ must hold {', '.join(lacking)}: missing or empty")


def require_same(what: str, found: Collection[str], expected: Collection[str]) -> None:
    """FreshetError unless both hold the same names; it says one that is missing and one too many."""
    lacking, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    told = [f"{len(lacking):,} missing, such as {lacking[0]!r}"] if lacking else []
    told += [f"{len(extra):,} unknown, such as {extra[0]!r}"] if extra else []
    require(not told, f"{what}: {'; '.join(told)}")


def require_finite(what: str, numbers: np.ndarray) -> None:
    """FreshetError if an array of any shape, memory-mapped or not, holds an infinite number or none at all."""
    flat = numbers.reshape(-1)
    starts = range(0, len(flat), PIECE)
    sound = all(np.isfinite(flat[start : start + PIECE]).all() for start in starts)
    require(sound, f"{what} must be finite numbers, but some are infinite or NaN")


def require_shape(what: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """FreshetError if an array has another shape."""
    require(array.shape == shape, f"{what} must have the shape {shape}, not {array.shape}")
