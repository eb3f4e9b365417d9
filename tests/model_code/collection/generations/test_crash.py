"""Tests of crashes of a generation builder.

A builder that dies at any file operation, or is killed, leaves the old generation or the new one. The
next builder continues as if nothing had happened, and deletes what was left.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.text.documents import Change, Document, Remove
from tests.model_code.collection.laws import OLD, rankings, up_to

OPERATIONS = ("replace", "rename", "mkdir", "unlink", "rmdir")


class Killed(OSError):
    """The process is dead, so no later operation happens."""


class Crash:
    """Let file operation number `at` and all later ones fail."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.at = at
        self.done = 0
        for name in OPERATIONS:
            patch.setattr(os, name, self._fail_when_dead(getattr(os, name)))

    def _fail_when_dead(self, operation: Any) -> Any:
        def count_and_call(*arguments: Any, **options: Any) -> Any:
            self.done += 1
            if self.done >= self.at:
                raise Killed("dead")
            return operation(*arguments, **options)

        return count_and_call


def make_builder(live: Path) -> GenerationBuilder:
    """Make a builder that compacts after two segments, and open its searcher."""
    builder = GenerationBuilder(live, "r", max_segments=2)
    assert builder.searcher
    return builder


def dies_during(work: Callable[[], object], at: int) -> bool:
    """Do the work and die at operation number `at`; return False if there were fewer."""
    with pytest.MonkeyPatch.context() as patch:
        Crash(patch, at)
        try:
            work()
        except Killed:
            return True
    return False


def changes_of_round(number: int) -> list[Change]:
    """Return an addition, the removal of an earlier addition, and an update."""
    added = Document(f"n{number}", "word1", f"word{number % 30} word3")
    updated = Document("d03", "", f"word{number % 29}")
    return [added, Remove(f"n{number - 3}"), updated]


def require_whole_generations(live: Path) -> None:
    """Check that no folder of an unfinished generation is left."""
    for path in (live / "r" / "generations").iterdir():
        assert path.name.isdigit(), path.name


class CrashRound(NamedTuple):
    """A round of changes during which the process died, or did not.

    Attributes:
        died: Whether an operation failed.
        is_published: Whether the generation was published all the same.
    """

    died: bool
    is_published: bool


def crash_and_apply_again(live: Path, number: int) -> CrashRound:
    """Die at operation `number` of applying a round of changes, and apply them again.

    Either the old generation or the new one must be whole and current after the crash.
    """
    changes = changes_of_round(number)
    old_generation = GenerationStore(live, "r").current()
    old_rankings = rankings(live)
    builder = make_builder(live)

    def apply_changes() -> None:
        builder.apply(changes, up_to(number), {})

    died = dies_during(apply_changes, number)
    searcher = Searcher.open(live, "r")
    searcher.generation.verify_all()
    is_published = searcher.generation.watermark == number
    found_rankings = rankings(searcher)
    if not is_published:
        assert searcher.generation == old_generation
        assert found_rankings == old_rankings

    next_builder = make_builder(live)
    result = next_builder.apply(changes, up_to(number), {})
    if is_published:
        assert f"n{number}" in result.unchanged
        assert found_rankings == rankings(next_builder)
    else:
        assert f"n{number}" in result.added
    documents = next_builder.searcher.generation.manifest["documents"]
    assert documents == len(OLD) + min(number, 3)
    return CrashRound(died, is_published)


@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_dying_at_any_file_operation_is_atomic(live: Path) -> None:
    rounds = [crash_and_apply_again(live, 1)]
    while rounds[-1].died:
        rounds.append(crash_and_apply_again(live, len(rounds) + 1))

    # Some operations come before the publication, and some after it.
    assert {crash.is_published for crash in rounds} == {True, False}
    assert len(rounds) > 12

    make_builder(live).apply([Remove("d03")], up_to(len(rounds) + 1), {})
    require_whole_generations(live)
    # No generation that was never published is left.
    numbers = [generation.number for generation in GenerationStore(live, "r").generations()]
    assert numbers == list(range(len(rounds) + 2))


def test_files_are_on_disk_before_generation_is_named(live: Path, monkeypatch) -> None:
    rename = os.rename
    synced = set()
    unsynced_at_rename = []

    def record_sync(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))

    def record_and_rename(source: Any, target: Any, **options: Any) -> None:
        paths = {str(path) for path in (source, *Path(source).rglob("*"))}
        unsynced_at_rename.append(paths - synced)
        rename(source, target, **options)

    builder = GenerationBuilder(live, "r")
    monkeypatch.setattr("os.fsync", record_sync)
    monkeypatch.setattr("os.rename", record_and_rename)
    builder.apply([Document("n", "word1", "word3"), Remove("d03")], up_to(1), {})

    assert unsynced_at_rename == [set()]


def test_dying_while_garbage_is_deleted_leaves_whole_generations(live: Path) -> None:
    builder = make_builder(live)
    for event in range(1, 7):
        builder.apply([Document(f"n{event}", "word1", "word2")], up_to(event), {})
    expected_rankings = rankings(builder)

    def collect_garbage() -> None:
        builder.collect_garbage(keep=1)

    at = 1
    while dies_during(collect_garbage, at):
        for generation in GenerationStore(live, "r").generations():
            generation.verify_all()
        assert rankings(live) == expected_rankings
        at += 3

    assert rankings(live) == expected_rankings
    assert len(GenerationStore(live, "r").generations()) < 7


CHILD = """
import sys
from pathlib import Path
from model_code.text.documents import Document
from model_code.collection.ledger.events import Position, LedgerCursor
from model_code.collection.generations.generation_builder import GenerationBuilder
builder = GenerationBuilder(Path(sys.argv[1]), "r", max_segments=2)
event = builder.searcher.generation.watermark
while True:
    event += 1
    document = Document(f"n{event}", "word1", f"word{event % 30}")
    builder.apply([document], LedgerCursor(Position("log", event, "mark")), {})
    print(event, flush=True)
"""


def apply_until_killed(live: Path, delay: float) -> int:
    """Let a process apply changes, and kill it after three reports and a delay in seconds.

    Returns:
        The last event that the process reported.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(live)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    )
    assert child.stdout is not None
    first_lines = [child.stdout.readline() for _ in range(3)]
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=delay)
    os.kill(child.pid, signal.SIGKILL)
    last_lines, errors = child.communicate()
    assert all(first_lines), errors
    return int((first_lines + last_lines.split())[-1])


def test_kill_9_loses_no_reported_change(live: Path) -> None:
    random_delay = random.Random()

    for _ in range(2):
        reported = apply_until_killed(live, random_delay.uniform(0.0, 0.15))
        searcher = Searcher.open(live, "r")
        searcher.generation.verify_all()
        watermark = searcher.generation.watermark
        # At most one change was published and not yet reported.
        assert reported <= watermark
        assert watermark <= reported + 1
        added = {f"n{event}" for event in range(1, watermark + 1)}
        found = {hit.document_id for hit in searcher.search("word1", 1000)}
        assert found == added | OLD.keys()

    GenerationBuilder(live, "r").apply([Remove("n1")], up_to(watermark + 1), {})
    require_whole_generations(live)
