"""Tests of a loss of power.

Everything that had not reached the disk is dropped. Then the old generation or the new one is whole,
and what was reported is present. Without any one of the syncs this fails.

The disk is simulated: content counts once its file was synced, and a name once its folder was. The
rest may be lost, from any moment on. SQLite's own file is trusted to SQLite.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.searcher import Searcher
from model_code.text.documents import Document, Remove
from tests.model_code.collection.laws import up_to

LOSSES = 9
CHANGES = [Document("n", "word1", "word2 word3"), Document("d03", "", "word4"), Remove("d05")]


class PowerLost(BaseException):
    """No later operation happens."""


class Renaming(NamedTuple):
    """A file or folder that was renamed, and the content of the file that it replaced."""

    source: Path
    target: Path
    replaced: bytes | None


class Disk:
    """Remember which contents and names of a folder reached the disk.

    Args:
        root: Folder whose files may be lost.
        patch: Patches the functions of `os`.
        at: Number of the operation before which power is lost. None: never.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, at: int | None) -> None:
        self.root = root
        self.at = at
        self.done = 0
        # Inodes of the files and folders that were synced.
        self.synced = {path.stat().st_ino for path in root.rglob("*")}
        # Names that had not reached the disk, oldest first.
        self.renamed: list[Renaming] = []
        self._lock = threading.Lock()
        self._real_fsync = os.fsync
        self._real_rename = os.rename
        patch.setattr(os, "fsync", self._fsync)
        patch.setattr(os, "rename", self._rename)
        patch.setattr(os, "replace", self._rename)

    def _count_operation(self) -> None:
        self.done += 1
        if self.at is not None and self.done >= self.at:
            raise PowerLost

    def _fsync(self, handle: int) -> None:
        with self._lock:
            self._count_operation()
            self._real_fsync(handle)
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            self.synced.add(path.stat().st_ino)
            self.renamed = [name for name in self.renamed if name.target.parent != path]

    def _rename(self, source: Any, target: Any) -> None:
        with self._lock:
            self._count_operation()
            replaced = None
            if Path(target).is_file():
                replaced = Path(target).read_bytes()
            self._real_rename(source, target)
            self.renamed.append(Renaming(Path(source), Path(target), replaced))

    def lose_unsynced(self, chance: random.Random) -> None:
        """Undo the latest names, and cut contents, that had not reached the disk."""
        first_lost = chance.randint(0, len(self.renamed))
        for name in reversed(self.renamed[first_lost:]):
            with suppress(FileNotFoundError):
                name.target.rename(name.source)
                if name.replaced is not None:
                    name.target.write_bytes(name.replaced)

        for path in self.root.rglob("*"):
            size = path.stat().st_size
            if path.is_file() and path.stat().st_ino not in self.synced and size:
                os.truncate(path, chance.randrange(size))


class PowerLoss(NamedTuple):
    """Changes during which power was lost.

    Attributes:
        is_reported: Whether the changes were reported as applied.
        operations: Number of file operations before power was lost.
    """

    is_reported: bool
    operations: int


def lose_power(dense: Path, folder: Path, at: int | None, chance: random.Random) -> PowerLoss:
    """Apply changes in a copy, lose power, and check what is left.

    Args:
        dense: Folder of a live collection.
        folder: Folder of the copy.
        at: Number of the operation before which power is lost. None: after the changes.
        chance: Decides which unsynced data is lost.
    """
    shutil.rmtree(folder, ignore_errors=True)
    live = Path(shutil.copytree(dense / "live", folder))
    builder = GenerationBuilder(live, "r")
    assert builder.searcher

    is_reported = False
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(live, patch, at)
        with suppress(PowerLost):
            builder.apply(CHANGES, up_to(1), {})
            is_reported = True
    disk.lose_unsynced(chance)

    searcher = Searcher.open(live, "r")
    searcher.generation.verify_all()
    is_published = searcher.generation.watermark == 1
    if is_reported:
        assert is_published, "a reported change is lost"
    result = GenerationBuilder(live, "r").apply(CHANGES, up_to(2), {})
    if is_published:
        assert "n" in result.unchanged
    else:
        assert "n" in result.added
    assert all(path.name.isdigit() for path in (live / "r" / "generations").iterdir())
    return PowerLoss(is_reported, disk.done)


def test_changes_survive_a_later_power_loss(dense: Path, tmp_path: Path) -> None:
    loss = lose_power(dense, tmp_path / "live", None, random.Random(0))

    assert loss.is_reported
    assert loss.operations > 15


def test_power_may_be_lost_at_any_moment(dense: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    last = lose_power(dense, tmp_path / "live", None, chance).operations
    random_moments = chance.sample(range(1, last), LOSSES)

    for at in [*random_moments, last - 2, last - 1, last]:
        loss = lose_power(dense, tmp_path / "live", at, chance)
        assert not loss.is_reported


@pytest.mark.long
def test_power_may_be_lost_two_hundred_times(dense: Path, tmp_path: Path) -> None:
    for seed in range(200):
        chance = random.Random(seed)
        lose_power(dense, tmp_path / "live", chance.randint(1, 60), chance)


STORE = "model_code.collection.generations.generation_store"


@pytest.mark.parametrize(
    "function", [f"{STORE}.fsync_tree", f"{STORE}.fsync", "model_code.files.fsync"]
)
def test_power_loss_harms_without_any_one_sync(
    dense: Path, tmp_path: Path, monkeypatch, function: str
) -> None:
    def skip_sync(path: Path) -> None:
        """Leave the data in the cache."""

    monkeypatch.setattr(function, skip_sync)
    chance = random.Random(0)

    failures = 0
    for _ in range(8):
        # Lost data may cause an error of any kind.
        try:
            lose_power(dense, tmp_path / "live", None, chance)
        except Exception:
            failures += 1

    assert failures > 0
