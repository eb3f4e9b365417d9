"""Guards garbage collection beside readers: what one has open stays until it is let go, and opening
never fails.

pytest tests/model_code/collection/generations/test_reading.py
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


def add(writer: GenerationBuilder, number: int) -> None:
    writer.apply([Document(f"n{number}", "word1", f"word{number % 5} word2")], up_to(number), {})


def test_files_of_open_searcher_are_kept(live: Path) -> None:
    writer = GenerationBuilder(live, "r", max_segments=1)
    add(writer, 1)
    reader = Searcher.open(live, "r")
    expected = reader.search("word1 word2", k=50)
    for number in range(2, 5):
        add(writer, number)
    freed = writer.collect_garbage(keep=1)
    assert 1 not in freed, "its segment is read"
    assert {2, 3} <= set(freed)
    assert reader.search("word1 word2", k=50) == expected, "texts are read from the folder"
    reader = reader.renewed()
    assert writer.collect_garbage(keep=1) == (1,)
    assert {hit.document_id for hit in reader.search("word1 word2", k=50)} >= {"n1", "n4"}


def test_needed_segments_of_open_generation_are_kept(live: Path) -> None:
    writer = GenerationBuilder(live, "r")
    for event, change in enumerate(
        [Document("n1", "word1", "word2"), Remove("d03"), Document("n2", "word1", "word3")]
    ):
        writer.apply([change], up_to(event + 1), {})
    reader = Searcher.open(live, "r")  # of generation 3, whose removals 2 lists
    writer.compact()
    writer.apply([Remove("d04")], up_to(4), {})
    assert writer.collect_garbage(keep=1) == ()
    assert reader.generation.complete
    del reader
    assert writer.collect_garbage(keep=1) == (1, 2, 3)


def test_readers_survive_garbage_collection_at_every_change(live: Path) -> None:
    writer, stop, wrong = GenerationBuilder(live, "r", max_segments=1), threading.Event(), []
    done = [0] * 4

    def read(place: int) -> None:
        searcher = Searcher.open(live, "r")
        while not stop.is_set():
            try:
                searcher = searcher.renewed() if place % 2 else Searcher.open(live, "r")
                found = [hit.document_id for hit in searcher.search("word1 word2", k=100)]
                stated = searcher.generation.manifest["documents"]
                if len(set(found)) != stated:
                    wrong.append((searcher.generation.number, len(found), stated))
                done[place] += 1
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 16):
        add(writer, number)
        writer.collect_garbage(keep=1)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert min(done) > 0
    writer.collect_garbage(keep=1)
    collection = GenerationStore(live, "r")
    assert [one.number for one in collection.generations()] == sorted(collection.current().needs)


def test_readers_and_a_writer_share_what_is_loaded(live: Path) -> None:
    reader, writer, stop, found = (
        Searcher.open(live, "r"),
        GenerationBuilder(live, "r"),
        threading.Event(),
        [],
    )
    writer.loaded = lambda: reader.parts
    expected = reader.search("word1 word2", k=50)

    def read() -> None:
        while not stop.is_set():
            found.append(reader.search("word1 word2", k=50) == expected)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 11):
        add(writer, number)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(found) == {True}
    assert writer.searcher.base is reader.base
    alone = GenerationBuilder(live, "r")
    assert alone.searcher.base is not reader.base
    assert rankings(writer) == rankings(alone)


def test_folder_lock_of_other_process_ends_with_it(tmp_path: Path) -> None:
    hold = "import sys\nfrom pathlib import Path\nfrom model_code.collection.segments.folder_lock import SharedFolderLock\n"
    hold += (
        "held = SharedFolderLock(Path(sys.argv[1]))\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with exclusive_lock_if_unused(tmp_path) as free:
            assert not free
        other.kill()
        other.wait()
    with exclusive_lock_if_unused(tmp_path) as free:
        assert free


def test_what_is_being_deleted_cannot_be_opened(tmp_path: Path) -> None:
    with exclusive_lock_if_unused(tmp_path) as free:
        assert free
        with pytest.raises(FileNotFoundError, match="is being deleted"):
            SharedFolderLock(tmp_path)
    first, second = SharedFolderLock(tmp_path), SharedFolderLock(tmp_path)
    del first
    with exclusive_lock_if_unused(tmp_path) as free:
        assert not free
    del second
    with exclusive_lock_if_unused(tmp_path) as free:
        assert free
    with pytest.raises(FileNotFoundError):
        SharedFolderLock(tmp_path / "gone")


@pytest.mark.parametrize("made_again", [False, True])
def test_folder_deleted_before_lock_is_refused(tmp_path, monkeypatch, made_again: bool) -> None:
    folder, lock = tmp_path / "000001", fcntl.flock
    folder.mkdir()
    open_files = len(os.listdir("/dev/fd"))

    def late(handle: int, kind: int) -> None:
        folder.rename(tmp_path / ".removing.000001")
        if made_again:
            folder.mkdir()
        lock(handle, kind)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(FileNotFoundError, match="000001 is being deleted, or was"):
        SharedFolderLock(folder)
    assert len(os.listdir("/dev/fd")) == open_files
