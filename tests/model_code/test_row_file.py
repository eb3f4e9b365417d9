"""Test that rows read from a file equal the rows of the array, and that searches use the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code import row_file
from model_code.encoding.token_signs import TokenSigns
from model_code.errors import Damaged
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import IndexSettings
from model_code.row_file import RowFile
from tests.mapped_files import needs_smaps, resident_kilobytes

ROWS = 4000


@pytest.fixture
def array() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)


@pytest.fixture
def file(array: np.ndarray, tmp_path: Path) -> RowFile:
    np.save(tmp_path / "rows.npy", array)
    return RowFile.of_array(tmp_path / "rows.npy")


@pytest.mark.parametrize("rows", [[3], [49, 0, 3, 3], [-1, 5], [[1, 2], [2, -1]], []])
def test_rows_equal_those_of_the_array(file: RowFile, array: np.ndarray, rows: list[int]) -> None:
    numbers = np.array(rows, np.int64)

    np.testing.assert_array_equal(file.read(numbers), array[numbers])


def test_runs_equal_slices_of_the_array(file: RowFile, array: np.ndarray) -> None:
    runs = file.read_runs(np.array([40, 0, 7]), np.array([10, 0, 2]))

    np.testing.assert_array_equal(runs, np.concatenate([array[40:50], array[7:9]]))


def test_deleted_file_is_still_read(file: RowFile, array: np.ndarray) -> None:
    file.path.unlink()

    np.testing.assert_array_equal(file.read(np.array([8])), array[[8]])


def test_file_cut_off_later_is_reported(file: RowFile) -> None:
    with file.path.open("r+b") as stream:
        stream.truncate(file.path.stat().st_size - 1)

    with pytest.raises(Damaged, match=r"rows.npy is torn: rows are missing"):
        file.read(np.array([0, 49]))


def test_small_files_are_left_to_mapping(file: RowFile) -> None:
    assert RowFile.open_large(file.path) is None


def make_index(folder: Path) -> np.ndarray:
    """Save an approximate index with token signs, and return its vectors."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((ROWS, 64)).astype(np.float32)
    bits = rng.integers(0, 2**63, (3 * ROWS, 6), np.uint64)
    tokens = TokenSigns(bits, np.arange(0, 3 * ROWS + 1, 3))
    ids = [f"d{row}" for row in range(ROWS)]
    index = DenseIndex.build(vectors, ids, "f", IndexSettings(flat_below=1), token_signs=tokens)
    index.save(folder)
    return vectors


def test_large_index_finds_the_same_from_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    vectors = make_index(tmp_path)
    mapped = DenseIndex.load(tmp_path)
    monkeypatch.setattr(row_file, "MIN_FILE_BYTES", 0)
    read = DenseIndex.load(tmp_path)
    documents = [f"d{row}" for row in range(0, ROWS, 50)]

    assert read.search(vectors[:20], 10, "f") == mapped.search(vectors[:20], 10, "f")
    expected = mapped.vectors_of(documents)
    found = read.vectors_of(documents)
    np.testing.assert_array_equal(found.vectors, expected.vectors)
    assert found.token_signs is not None
    assert expected.token_signs is not None
    np.testing.assert_array_equal(found.token_signs.bits, expected.token_signs.bits)
    np.testing.assert_array_equal(found.token_signs.starts, expected.token_signs.starts)


@needs_smaps
def test_searches_of_a_large_index_map_no_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    vectors = make_index(tmp_path)
    monkeypatch.setattr(row_file, "MIN_FILE_BYTES", 0)
    index = DenseIndex.load(tmp_path)

    index.search(vectors[:20], 10, "f")
    index.vectors_of([f"d{row}" for row in range(0, ROWS, 50)])

    assert resident_kilobytes(tmp_path / "vectors.npy") == 0
    assert resident_kilobytes(tmp_path / "token_signs.npy") == 0
