"""Guards what is on the disk when: a file replaced whole or not at all, and a folder whose files
wait for one sync; a sealed folder with facts and files that come later, and files that change
behind its back.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.files import (
    add_to_manifest,
    atomic_write,
    deferred_fsync,
    fsync_tree,
    read_manifest,
    verify_checksums,
    write_array,
    write_manifest,
    write_text,
)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files and folders that were forced to the disk; those written aside without
    their suffix.
    """
    names: list[str] = []

    def record(handle: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{handle}")).name
        if name.startswith("."):
            name = name.rpartition(".")[0].lstrip(".")
        names.append(name)

    monkeypatch.setattr("os.fsync", record)
    return names


def test_writes_sync_file_and_folder_unless_deferred(tmp_path, synced):
    waiting = tmp_path / "waiting"
    with deferred_fsync(waiting):
        write_text(waiting / "below" / "a", "1")
        assert synced == []
        write_text(tmp_path / "beside" / "pointer", "1")
        assert synced == ["pointer", "beside"]
        other = threading.Thread(target=write_text, args=(waiting / "b", "1"))
        other.start()
        other.join()
        # The other thread asked for nothing.
        assert synced[2:] == ["b", "waiting"]
    write_text(waiting / "c", "1")

    assert synced[4:] == ["c", "waiting"]


def test_fsync_tree_syncs_everything_and_raises_errors(tmp_path, synced, monkeypatch):
    for name in ("a", "x/b", "x/y/c"):
        write_text(tmp_path / name, name)
    (tmp_path / "link").symlink_to("nowhere")
    synced.clear()
    fsync_tree(tmp_path)
    assert sorted(synced) == sorted(["a", "x", "b", "y", "c", tmp_path.name])

    def full(handle: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        fsync_tree(tmp_path)


def test_forked_process_syncs_with_own_threads(tmp_path):
    fsync_tree(tmp_path)
    child = os.fork()
    if child == 0:
        # The alarm ends a child that waits for threads that only its parent has.
        signal.alarm(20)
        fsync_tree(tmp_path)
        os._exit(0)

    assert os.waitpid(child, 0)[1] == 0


def test_array_is_written_atomically_under_its_exact_name(tmp_path, synced):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)

    write_array(tmp_path / "vectors", array)

    assert synced == ["vectors", tmp_path.name]
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]
    np.testing.assert_array_equal(np.load(tmp_path / "vectors"), array)


def test_failed_write_leaves_only_old_file(tmp_path):
    write_text(tmp_path / "a", "old")

    def half_way() -> None:
        with atomic_write(tmp_path / "a") as aside:
            aside.write_text("ne")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        half_way()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "vectors").write_bytes(b"abc")
    write_manifest(tmp_path, 3, {"kind": "dense"})
    return tmp_path


def test_manifest_additions_keep_facts_and_seal_files(sealed: Path) -> None:
    (sealed / "queries").write_bytes(b"d")
    with pytest.raises(FreshetError, match="queries was added"):
        verify_checksums(sealed, read_manifest(sealed, 3))

    add_to_manifest(sealed, {"kind": "dsi", "precision": "auto"})
    manifest = read_manifest(sealed, 3)

    assert manifest["kind"] == "dsi"
    assert manifest["precision"] == "auto"
    assert list(manifest["checksums"]) == ["below/vectors", "queries"]

    verify_checksums(sealed, manifest)


def test_manifest_additions_do_not_seal_changed_files(sealed: Path) -> None:
    (sealed / "below" / "vectors").write_bytes(b"abd")
    add_to_manifest(sealed, {"precision": "auto"})

    with pytest.raises(FreshetError, match="vectors was changed"):
        verify_checksums(sealed, read_manifest(sealed, 3))


def test_another_format_is_refused(sealed: Path) -> None:
    with pytest.raises(FreshetError, match="format 3, but this version reads 4"):
        read_manifest(sealed, 4)
    with pytest.raises(FreshetError, match="has no manifest.json"):
        read_manifest(sealed / "below", 3)
