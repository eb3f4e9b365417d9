"""A sealed folder: facts and files that come later, and files that change behind its back."""

from pathlib import Path

import pytest

from model_code.errors import FreshetError
from model_code.manifest import add_facts, read_manifest, seal, verify


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "vectors").write_bytes(b"abc")
    seal(tmp_path, 3, {"kind": "dense"})
    return tmp_path


def test_facts_join_those_that_stand(folder: Path) -> None:
    add_facts(folder, {"kind": "dsi", "precision": "auto"})
    manifest = read_manifest(folder, 3)
    assert (manifest["kind"], manifest["precision"], list(manifest["checksums"])) == ("dsi", "auto", ["below/vectors"])
    verify(folder, manifest)


def test_files_that_came_since_are_sealed_too(folder: Path) -> None:
    (folder / "queries").write_bytes(b"d")
    with pytest.raises(FreshetError, match="queries was added"):
        verify(folder, read_manifest(folder, 3))
    add_facts(folder, {})
    verify(folder, read_manifest(folder, 3))


def test_a_file_that_changed_since_is_not_sealed_by_more_facts(folder: Path) -> None:
    (folder / "below" / "vectors").write_bytes(b"abd")
    add_facts(folder, {"precision": "auto"})
    with pytest.raises(FreshetError, match="vectors was changed"):
        verify(folder, read_manifest(folder, 3))


def test_another_format_is_refused(folder: Path) -> None:
    with pytest.raises(FreshetError, match="format 3, but this version reads 4"):
        read_manifest(folder, 4)
    with pytest.raises(FreshetError, match="has no manifest.json"):
        read_manifest(folder / "below", 3)
