"""Guards against a loss of power: whatever had not reached the disk is dropped, and the old
generation or the new one is whole; what was reported is there. Without any one of the waits for the
disk this fails.

A disk is simulated: content counts once its file was synced, a name once its folder was. What did
not count may be lost, from any moment on. SQLite's own file is trusted to SQLite.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.searcher import Searcher
from model_code.text.documents import Document, Remove
from tests.model_code.collection.laws import up_to

LOSSES = 12
CHANGES = [Document("n", "word1", "word2 word3"), Document("d03", "", "word4"), Remove("d05")]


class PowerLost(BaseException):
    """Nothing happens any more."""


class Disk:
    """Remembers which contents and names of a folder reached the disk; power is lost before
    operation number `at`.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, at: int | None) -> None:
        self.root, self.at, self.done = root, at, 0
        self.safe = {path.stat().st_ino for path in root.rglob("*")}
        # renamed, oldest first, and what was replaced
        self.names: list[tuple[Path, Path, bytes | None]] = []
        self._turn = threading.Lock()
        sync, rename = os.fsync, os.rename
        patch.setattr(os, "fsync", lambda handle: self._counted(self._sync, sync, handle))
        for name in ("rename", "replace"):
            patch.setattr(
                os, name, lambda source, target: self._counted(self._rename, rename, source, target)
            )

    def _counted(self, note: Any, *arguments: Any) -> None:
        with self._turn:
            self.done += 1
            if self.at is not None and self.done >= self.at:
                raise PowerLost
            note(*arguments)

    def _sync(self, sync: Any, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        self.safe.add(path.stat().st_ino)
        self.names = [each for each in self.names if each[1].parent != path]

    def _rename(self, rename: Any, source: Any, target: Any) -> None:
        before = Path(target).read_bytes() if Path(target).is_file() else None
        rename(source, target)
        self.names.append((Path(source), Path(target), before))

    def lose(self, chance: random.Random) -> None:
        """Drop any suffix of the names, and the ends of contents, that had not reached the disk."""
        for source, target, before in reversed(self.names[chance.randint(0, len(self.names)) :]):
            with suppress(FileNotFoundError):
                target.rename(source)
                if before is not None:
                    target.write_bytes(before)
        for path in self.root.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self.safe and path.stat().st_size:
                os.truncate(path, chance.randrange(path.stat().st_size))


def lose_power(
    dense: Path, folder: Path, at: int | None, chance: random.Random
) -> tuple[bool, int]:
    """Apply changes in a copy, and lose power; whether they were reported, and how many operations
    there were.

    What is wrong then is raised.
    """
    shutil.rmtree(folder, ignore_errors=True)
    live = Path(shutil.copytree(dense / "live", folder))
    writer, reported = GenerationBuilder(live, "r"), False
    assert writer.searcher
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(live, patch, at)
        with suppress(PowerLost):
            writer.apply(CHANGES, up_to(1), {})
            reported = True
    disk.lose(chance)
    found = Searcher.open(live, "r")
    found.generation.verify_all()
    is_new = found.generation.watermark == 1
    assert is_new or not reported, "what was reported is lost"
    applied = GenerationBuilder(live, "r").apply(CHANGES, up_to(2), {})
    assert "n" in (applied.unchanged if is_new else applied.added)
    assert all(path.name.isdigit() for path in (live / "r" / "generations").iterdir())
    return reported, disk.done


def test_power_may_be_lost_at_any_moment(dense: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    reported, operations = lose_power(dense, tmp_path / "live", None, chance)
    assert reported
    assert operations > 15
    for at in chance.sample(range(1, operations), LOSSES - 3) + [
        operations - 2,
        operations - 1,
        operations,
    ]:
        assert lose_power(dense, tmp_path / "live", at, chance)[0] is False


@pytest.mark.long
def test_power_may_be_lost_two_hundred_times(dense: Path, tmp_path: Path) -> None:
    for seed in range(200):
        chance = random.Random(seed)
        lose_power(dense, tmp_path / "live", chance.randint(1, 60), chance)


STORE = "model_code.collection.generations.generation_store"


@pytest.mark.parametrize(
    "wait", [f"{STORE}.fsync_tree", f"{STORE}.fsync", "model_code.files.fsync"]
)
def test_power_loss_harms_without_any_one_sync(
    dense: Path, tmp_path: Path, monkeypatch, wait
) -> None:
    monkeypatch.setattr(wait, lambda path: None)
    harm, chance = 0, random.Random(0)
    for _ in range(8):
        try:
            lose_power(dense, tmp_path / "live", None, chance)
        except Exception:  # of any kind: that is the harm
            harm += 1
    assert harm > 0
