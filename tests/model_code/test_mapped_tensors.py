"""Test that arrays are written as safetensors writes them.

Run: python -m pytest tests/model_code/test_mapped_tensors.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from model_code.mapped_tensors import DTYPES, map_tensors, write_tensors


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """Arrays of every type, some of them empty, with names that JSON must escape."""
    arrays = {}
    for number, (name, dtype) in enumerate(DTYPES.items()):
        arrays[f"z {name}"] = np.arange(number * 3).astype(dtype).reshape(number, 3)
        arrays[f"a {name}"] = np.zeros(0, dtype)
    arrays['ü"\\'] = np.arange(4.0).reshape(2, 2).T
    return arrays


def test_bytes_equal_those_of_safetensors(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, tmp_path / "a")

    write_tensors(arrays, tmp_path / "b")

    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_written_arrays_are_mapped_again(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    write_tensors(arrays, tmp_path / "file")

    mapped = map_tensors(tmp_path / "file")

    assert mapped.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(mapped[name], array)
        assert mapped[name].dtype == array.dtype
