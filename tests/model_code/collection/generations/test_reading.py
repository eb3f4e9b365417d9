"""Tests of garbage collection beside readers.

The files of an open searcher stay until it is released, and opening a collection never fails.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.folder_lock import SharedFolderLock, exclusive_lock_if_unused
from model_code.text.documents import Document, Remove
from tests.model_code.collection.laws import rankings, up_to

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

QUERY = "word1 word2"


def add_document(builder: GenerationBuilder, number: int) -> None:
    """Add a document in a generation of its own."""
    document = Document(f"n{number}", "word1", f"word{number % 5} word2")
    builder.apply([document], up_to(number), {})


def test_files_of_open_searcher_are_kept(live: Path) -> None:
    builder = GenerationBuilder(live, "r", max_segments=1)
    add_document(builder, 1)
    reader = Searcher.open(live, "r")
    expected = reader.search(QUERY, k=50)
    for number in range(2, 5):
        add_document(builder, number)

    deleted = builder.collect_garbage(keep=1)

    assert 1 not in deleted
    assert {2, 3} <= set(deleted)
    # Texts are read from the folder.
    assert reader.search(QUERY, k=50) == expected


def test_files_of_renewed_searcher_are_deleted(live: Path) -> None:
    builder = GenerationBuilder(live, "r", max_segments=1)
    add_document(builder, 1)
    reader = Searcher.open(live, "r")
    for number in range(2, 5):
        add_document(builder, number)
    builder.collect_garbage(keep=1)

    reader = reader.renewed()

    assert builder.collect_garbage(keep=1) == (1,)
    found = {hit.document_id for hit in reader.search(QUERY, k=50)}
    assert {"n1", "n4"} <= found


def test_needed_segments_of_open_generation_are_kept(live: Path) -> None:
    builder = GenerationBuilder(live, "r")
    builder.apply([Document("n1", "word1", "word2")], up_to(1), {})
    builder.apply([Remove("d03")], up_to(2), {})
    builder.apply([Document("n2", "word1", "word3")], up_to(3), {})
    # Generation 3 needs the list of removals in generation 2.
    reader = Searcher.open(live, "r")
    builder.compact()
    builder.apply([Remove("d04")], up_to(4), {})

    deleted_beside_reader = builder.collect_garbage(keep=1)
    is_complete = reader.generation.complete
    del reader
    deleted_later = builder.collect_garbage(keep=1)

    assert deleted_beside_reader == ()
    assert is_complete
    assert deleted_later == (1, 2, 3)


class RepeatingReader:
    """A thread that opens or renews a searcher until it is stopped, and checks what it finds."""

    def __init__(self, live: Path, renews: bool) -> None:
        self.live = live
        self.renews = renews
        self.searches = 0
        self.problems: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current search."""
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        searcher = Searcher.open(self.live, "r")
        while not self._stop.is_set():
            # An error in a thread would fail no test.
            try:
                if self.renews:
                    searcher = searcher.renewed()
                else:
                    searcher = Searcher.open(self.live, "r")
                self._check(searcher)
            except Exception as error:
                self.problems.append(error)

    def _check(self, searcher: Searcher) -> None:
        found = {hit.document_id for hit in searcher.search(QUERY, k=100)}
        documents = searcher.generation.manifest["documents"]
        if len(found) != documents:
            self.problems.append((searcher.generation.number, len(found), documents))
        self.searches += 1


def test_readers_survive_garbage_collection_at_every_change(live: Path) -> None:
    builder = GenerationBuilder(live, "r", max_segments=1)
    readers = [RepeatingReader(live, renews) for renews in (False, True, False, True)]

    for number in range(1, 16):
        add_document(builder, number)
        builder.collect_garbage(keep=1)
    for reader in readers:
        reader.stop()

    for reader in readers:
        assert reader.problems == []
        assert reader.searches > 0
    builder.collect_garbage(keep=1)
    store = GenerationStore(live, "r")
    numbers = [generation.number for generation in store.generations()]
    assert numbers == sorted(store.current().needs)


def test_reader_and_builder_share_loaded_segments(live: Path) -> None:
    reader = Searcher.open(live, "r")
    builder = GenerationBuilder(live, "r")

    def parts_of_reader() -> object:
        return reader.parts

    builder.loaded = parts_of_reader
    add_document(builder, 1)

    assert builder.searcher.base is reader.base


def test_builder_alone_loads_its_own_segments(live: Path) -> None:
    reader = Searcher.open(live, "r")
    builder = GenerationBuilder(live, "r")
    add_document(builder, 1)

    assert builder.searcher.base is not reader.base
    assert rankings(builder) == rankings(Searcher.open(live, "r"))


def test_reader_of_shared_segments_finds_the_same(live: Path) -> None:
    reader = Searcher.open(live, "r")
    builder = GenerationBuilder(live, "r")
    expected = reader.search(QUERY, k=50)
    stop = threading.Event()
    are_equal: list[bool] = []

    def parts_of_reader() -> object:
        return reader.parts

    def search_repeatedly() -> None:
        while not stop.is_set():
            are_equal.append(reader.search(QUERY, k=50) == expected)

    builder.loaded = parts_of_reader
    threads = [threading.Thread(target=search_repeatedly) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 11):
        add_document(builder, number)
    stop.set()
    for thread in threads:
        thread.join()

    assert set(are_equal) == {True}
    assert rankings(builder) == rankings(GenerationBuilder(live, "r"))


HOLD_LOCK = """
import sys
from pathlib import Path
from model_code.collection.segments.folder_lock import SharedFolderLock

lock = SharedFolderLock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def is_unused(folder: Path) -> bool:
    """Return whether no process holds a lock of the folder."""
    with exclusive_lock_if_unused(folder) as unused:
        return unused


def test_folder_lock_of_other_process_ends_with_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        unused_while_running = is_unused(tmp_path)
        process.kill()
        process.wait()

    assert not unused_while_running
    assert is_unused(tmp_path)


def test_error_inside_the_block_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    with (
        pytest.raises(BlockingIOError, match="of the caller"),
        exclusive_lock_if_unused(tmp_path),
    ):
        raise BlockingIOError("of the caller")


def test_folder_that_is_being_deleted_cannot_be_opened(tmp_path: Path) -> None:
    with exclusive_lock_if_unused(tmp_path) as unused:
        assert unused
        with pytest.raises(FileNotFoundError, match="is being deleted"):
            SharedFolderLock(tmp_path)


def test_folder_is_used_until_its_last_lock_ends(tmp_path: Path) -> None:
    first = SharedFolderLock(tmp_path)
    second = SharedFolderLock(tmp_path)

    del first
    unused_with_second = is_unused(tmp_path)
    del second

    assert not unused_with_second
    assert is_unused(tmp_path)


def test_missing_folder_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SharedFolderLock(tmp_path / "gone")


@pytest.mark.parametrize("is_made_again", [False, True])
def test_folder_deleted_before_lock_is_refused(
    tmp_path: Path, monkeypatch, is_made_again: bool
) -> None:
    folder = tmp_path / "000001"
    folder.mkdir()
    flock = fcntl.flock
    open_files = len(os.listdir("/dev/fd"))

    def delete_and_lock(handle: int, kind: int) -> None:
        folder.rename(tmp_path / ".removing.000001")
        if is_made_again:
            folder.mkdir()
        flock(handle, kind)

    monkeypatch.setattr(fcntl, "flock", delete_and_lock)
    with pytest.raises(FileNotFoundError, match="000001 is being deleted, or was"):
        SharedFolderLock(folder)

    assert len(os.listdir("/dev/fd")) == open_files
