"""Guards against crashes: a writer that dies at any file operation, or is killed, leaves the old
generation or the new one, and the next writer goes on as if nothing had been, and clears up.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.text.documents import Document, Remove
from tests.model_code.collection.laws import OLD, rankings, up_to

OPERATIONS = ("replace", "rename", "mkdir", "unlink", "rmdir")


class Killed(OSError):
    """The process is dead: nothing that it would still do happens."""


class Crash:
    """Dies at file operation number `at`: that one and all later ones fail."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.at, self.done = at, 0
        for name in OPERATIONS:
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, real: Any) -> Any:
        def operation(*arguments: Any, **options: Any) -> Any:
            self.done += 1
            if self.done >= self.at:
                raise Killed("dead")
            return real(*arguments, **options)

        return operation


def crash(live: Path, changes: list[Document | Remove], event: int, at: int) -> bool:
    """Apply `changes` and die at an operation; False if there were fewer."""
    writer = GenerationBuilder(live, "r", max_segments=2)
    assert writer.searcher
    with pytest.MonkeyPatch.context() as patch:
        Crash(patch, at)
        try:
            writer.apply(changes, up_to(event), {})
        except Killed:
            return True
    return False


@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_dying_at_any_file_operation_is_atomic(live: Path) -> None:
    seen, at, died = set(), 0, True
    while died:
        at += 1
        added, updated = (
            Document(f"n{at}", "word1", f"word{at % 30} word3"),
            Document("d03", "", f"word{at % 29}"),
        )
        changes = [added, Remove(f"n{at - 3}"), updated]
        old, before = GenerationStore(live, "r").current(), rankings(live)
        died = crash(live, changes, at, at)
        found = Searcher.open(live, "r")
        found.generation.verify_all()
        seen.add(is_new := found.generation.watermark == at)
        assert is_new or (found.generation == old and rankings(found) == before)
        writer = GenerationBuilder(live, "r", max_segments=2)
        applied = writer.apply(changes, up_to(at), {})
        assert f"n{at}" in (applied.unchanged if is_new else applied.added)
        assert not is_new or rankings(found) == rankings(writer)
        assert writer.searcher.generation.manifest["documents"] == len(OLD) + min(at, 3)
    assert seen == {True, False}
    assert at > 12
    writer.apply([Remove("d03")], up_to(at + 1), {})
    assert all(path.name.isdigit() for path in (live / "r" / "generations").iterdir())
    numbers = [generation.number for generation in GenerationStore(live, "r").generations()]
    assert numbers == list(range(at + 2)), "no generation was left that was never switched to"


def test_files_are_on_disk_before_generation_is_named(live: Path, monkeypatch) -> None:
    synced, named = set(), []
    rename = os.rename

    def sync(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))

    def checked(source: Any, target: Any, **options: Any) -> None:
        named.append({str(path) for path in (source, *Path(source).rglob("*"))} - synced)
        rename(source, target, **options)

    writer = GenerationBuilder(live, "r")
    monkeypatch.setattr("os.fsync", sync)
    monkeypatch.setattr("os.rename", checked)
    writer.apply([Document("n", "word1", "word3"), Remove("d03")], up_to(1), {})
    assert named == [set()]


def test_dying_while_garbage_is_deleted_leaves_whole_generations(live: Path) -> None:
    writer, at = GenerationBuilder(live, "r", max_segments=2), 0
    for event in range(1, 7):
        writer.apply([Document(f"n{event}", "word1", "word2")], up_to(event), {})
    expected, died = rankings(writer), True
    while died:
        at += 1
        with pytest.MonkeyPatch.context() as patch:
            Crash(patch, at)
            try:
                writer.collect_garbage(keep=1)
                died = False
            except Killed:
                pass
        for generation in GenerationStore(live, "r").generations():
            generation.verify_all()
        assert rankings(live) == expected
        at += 2
    assert len(GenerationStore(live, "r").generations()) < 7


CHILD = """
import sys
from pathlib import Path
from model_code.text.documents import Document
from model_code.collection.ledger.events import Position, LedgerCursor
from model_code.collection.generations.generation_builder import GenerationBuilder
up_to = lambda event: LedgerCursor(Position("log", event, "mark"))
writer = GenerationBuilder(Path(sys.argv[1]), "r", max_segments=2)
event = writer.searcher.generation.watermark
while True:
    event += 1
    writer.apply([Document(f"n{event}", "word1", f"word{event % 30}")], up_to(event), {})
    print(event, flush=True)
"""


def test_kill_9_loses_no_reported_change(live: Path) -> None:
    rng, root = random.Random(), Path(__file__).parents[4]
    for _ in range(2):
        command, pipe = [sys.executable, "-c", CHILD, str(live)], subprocess.PIPE
        child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=root)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(3)]
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=rng.uniform(0.0, 0.15))
        os.kill(child.pid, signal.SIGKILL)
        rest, errors = child.communicate()
        assert all(lines), errors
        reported = int((lines + rest.split())[-1])
        searcher = Searcher.open(live, "r")
        searcher.generation.verify_all()
        watermark = searcher.generation.watermark
        assert reported <= watermark <= reported + 1
        added = {f"n{event}" for event in range(1, watermark + 1)}
        assert {hit.document_id for hit in searcher.search("word1", 1000)} == added | OLD.keys()
    GenerationBuilder(live, "r").apply([Remove("n1")], up_to(watermark + 1), {})
    assert all(path.name.isdigit() for path in (live / "r" / "generations").iterdir())
