"""Test look-ups in the file of documents by the ids that it has and has not."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from model_code.collection.segments.documents import (
    COLUMNS,
    DocumentFile,
    document_row,
    write_rows,
)
from model_code.text.documents import Document

IDS = [f"package.module{number % 7}.näme{number}" for number in range(163)]
ROWS = {one: document_row(Document(one, f"title of {one}", f"text of {one}")) for one in IDS}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("documents") / "documents.safetensors"
    write_rows(iter(ROWS.values()), file)
    return file


def test_every_document_is_found_by_its_id(path: Path):
    file = DocumentFile(path)
    assert file.read(IDS) == ROWS
    for one in sorted(IDS)[::15]:
        assert file.read([one]) == {one: ROWS[one]}
    chosen = random.Random(0).sample(IDS, 10)
    assert file.read(chosen) == {one: ROWS[one] for one in chosen}


def test_others_are_left_out(path: Path, tmp_path: Path):
    assert DocumentFile(path).read(["a", "package.module3", "zzz", IDS[5]]).keys() == {IDS[5]}
    assert DocumentFile(path).read([]) == {}
    write_rows([], tmp_path / "documents.safetensors")
    assert DocumentFile(tmp_path / "documents.safetensors").read(["a"]) == {}


def test_only_the_wanted_columns_are_read(path: Path):
    row = {"document_id": IDS[0], "title": f"title of {IDS[0]}"}
    assert DocumentFile(path).read([IDS[0]], ("title",)) == {IDS[0]: row}
    assert tuple(DocumentFile(path).read([IDS[0]])[IDS[0]]) == COLUMNS


def test_threads_share_one(path: Path):
    file = DocumentFile(path)
    parts = [IDS[start : start + 20] for start in range(0, len(IDS), 20)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(file.read, parts))
    assert [set(one) for one in found] == [set(part) for part in parts]
