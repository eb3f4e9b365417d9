"""Guards the inbox: each finished file once, by content, through crashes; unreadable ones aside
with their reason.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from model_code.collection.sync import inbox
from model_code.errors import FreshetError
from orchestration.sensors import receive_inbox_and_request_tasks
from tests.live_example import add, collection_of, make_project, row

LINE = '{{"_id": "{0}", "title": "{0}", "text": "{1}"}}\n'


@pytest.fixture
def collection(tmp_path):
    (tmp_path / "inbox").mkdir()
    return collection_of(make_project(tmp_path))


def drop(collection, name: str, content: str, age: float = 0) -> Path:
    path = collection.project.root / "inbox" / name
    path.write_text(content)
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def take(collection, name: str, content: str) -> inbox.InboxResult:
    """Drop a file, and take it, which is all that there is."""
    drop(collection, name, content)
    (taken,) = inbox.receive_inbox(collection)
    return taken


def listing(collection) -> list[str]:
    folder = collection.project.root / "inbox"
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_finished_files_are_received_in_order_and_moved(collection):
    """One with rows, or a document of its own, which has the file's name."""
    drop(collection, "fern.md", "# Ferns\n\nThey unroll.", age=3)
    drop(collection, "new.jsonl", LINE.format("a", "2"), age=1)
    drop(collection, "old.csv", "_id,title,text\na,a,1\nb,,\n", age=2)
    drop(collection, "growing.jsonl.part", "{")
    drop(collection, ".hidden.jsonl", "{")
    fern, old, new = inbox.receive_inbox(collection)

    assert old.file == "old.csv"
    assert len(old.receipt.events) == 1
    assert len(old.receipt.rejected) == 1
    assert new.file == "new.jsonl"
    assert len(new.receipt.events) == 1
    assert new.reason is None
    assert fern.file == "fern.md"
    assert len(fern.receipt.events) == 1
    assert fern.reason is None

    done = ["done/fern.md", "done/new.jsonl", "done/old.csv"]
    assert listing(collection) == [".hidden.jsonl", ".lock", *done, "growing.jsonl.part"]
    assert collection.apply().added == ("a", "fern.md")
    assert collection.ledger_view.life("a")[-1].payload["text"] == "2"
    assert collection.ledger_view.life("a")[-1].source == "inbox/new.jsonl"
    assert inbox.receive_inbox(collection) == []


def test_broken_params_leave_file_in_inbox(collection):
    drop(collection, "good.jsonl", LINE.format("a", "1"))
    params = collection.project.root / "params.yaml"
    params.write_text("{corpus: {path: notes, retrievers: {}}\n")

    with pytest.raises(FreshetError, match=r"params\.yaml"):
        inbox.receive_inbox(collection)

    assert listing(collection)[-1] == "good.jsonl"


def test_unreadable_file_stays_in_inbox(collection, monkeypatch):
    drop(collection, "good.jsonl", LINE.format("a", "1"))
    fail_to_read = Mock(side_effect=OSError(24, "Too many open files"))
    monkeypatch.setattr(inbox, "read_file", fail_to_read)

    results = inbox.receive_inbox(collection)

    assert results == []
    assert fail_to_read.called
    assert listing(collection)[-1] == "good.jsonl"


def test_same_error_of_a_file_is_logged_once(collection, monkeypatch, caplog):
    drop(collection, "good.jsonl", LINE.format("a", "1"))
    monkeypatch.setattr(inbox, "read_file", Mock(side_effect=OSError(24, "Too many open files")))

    inbox.receive_inbox(collection)
    inbox.receive_inbox(collection)
    assert caplog.text.count("good.jsonl stays in inbox/") == 1

    monkeypatch.setattr(inbox, "read_file", Mock(side_effect=OSError(5, "Input/output error")))
    inbox.receive_inbox(collection)
    assert caplog.text.count("good.jsonl stays in inbox/") == 2


def test_empty_or_missing_inbox_creates_no_ledger(collection):
    assert inbox.receive_inbox(collection) == []

    (collection.project.root / "inbox").rmdir()
    assert inbox.receive_inbox(collection) == []
    assert not (collection.project.live / "ledger.sqlite").exists()


def test_inbox_file_taken_by_other_process_is_skipped(collection, monkeypatch):
    for name in ("taken.jsonl", "stays.jsonl"):
        drop(collection, name, LINE.format(name[0], "1"))
    really = Path.stat

    def stat(path, **options):
        if path.name == "taken.jsonl":
            raise FileNotFoundError(path)
        return really(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert [path.name for path in inbox.waiting(collection.project)] == ["stays.jsonl"]


def test_same_content_is_received_once(collection):
    take(collection, "one.jsonl", LINE.format("a", "1"))
    collection.receive([row("a", "2")], "api")

    assert take(collection, "two.jsonl", LINE.format("a", "1")).receipt.events == ()
    assert collection.ledger_view.life("a")[-1].payload["text"] == "2"
    assert listing(collection) == [".lock", "done/one.jsonl", "done/two.jsonl"]


def test_reverted_file_is_received_again(collection):
    take(collection, "one.jsonl", LINE.format("a", "1"))
    collection.apply()
    collection.revert(0)
    for _ in range(2):
        again = take(collection, "one.jsonl", LINE.format("a", "1"))
        collection.apply()

    assert [event.state for event in collection.ledger_view.life("a")] == [
        "rolled_back",
        None,
        "live",
    ]
    assert again.receipt.events == ()
    assert again.receipt.unchanged == 1


def test_wholly_refused_file_is_received_again(collection):
    """Also if another file of its name was refused for the same row."""
    first_row = LINE.format("a", "word " * 9)
    second_row = LINE.format("b", "word " * 9)
    params = collection.project.params_file
    params.write_text("{retrievers: {hce: {}}, corpus: {max_characters: 10}}\n")
    for content in (first_row, first_row, first_row + second_row):
        refused = take(collection, "feed.jsonl", content).receipt
        assert len(refused.rejected) == content.count("\n")
        assert refused.events == ()

    params.write_text("{retrievers: {hce: {}}}\n")
    received = take(collection, "feed.jsonl", first_row).receipt

    assert len(received.events) == 1


def test_file_without_accepted_rows_fails_with_reason(collection):
    taken = take(collection, "bad.jsonl", '{"_id": "a", "title": "", "text": ""}\n' * 25)
    assert len(taken.receipt.rejected) == 25
    assert taken.receipt.events == ()
    assert listing(collection) == [".lock", "failed/bad.jsonl", "failed/bad.jsonl.reason"]

    lines = (collection.project.root / "inbox/failed/bad.jsonl.reason").read_text().splitlines()
    assert lines[0] == "no row was accepted, 25 were refused:"
    assert lines[1].startswith("row 1  a  empty text")
    assert lines[-2:] == ["and 5 more", "Correct the file and put it into inbox/ again."]
    assert collection.ledger_view.counts()["rejected"] == 25


def test_unchanged_file_is_received_again_after_revert(collection):
    add(collection, row("a", "1"))
    for _ in range(2):
        assert take(collection, "one.jsonl", LINE.format("a", "1")).receipt.events == ()

    collection.revert(0)
    take(collection, "one.jsonl", LINE.format("a", "1"))

    assert collection.apply().added == ("a",)


def test_unchanged_file_does_not_undo_later_changes(collection):
    collection.receive([row("a", "1")], "api")
    for again in (False, True):
        take(collection, "one.jsonl", LINE.format("a", "1"))
        expected = "2" if again else "1"
        assert collection.ledger_view.life("a")[-1].payload["text"] == expected
        collection.receive([row("a", "2")], "api")


def test_files_with_same_name_are_all_kept(
    collection,
):
    for number in "123":
        take(collection, "x.jsonl", LINE.format("a", number))
        take(collection, "x.pdf", f"%PDF {number}")
    assert len(collection.ledger_view.life("a")) == 3

    folder = collection.project.root / "inbox"
    assert len(list((folder / "done").iterdir())) == 3

    failed = {path.name for path in (folder / "failed").iterdir()}
    assert len(failed) == 6
    assert {f"{name}.reason" for name in failed if not name.endswith(".reason")} <= failed


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.xyz", "%PDF", "unknown format"),
        ("x.parquet", "no parquet", "not a Parquet file"),
        ("x.jsonl.gz", "no gzip", "not a whole .gz file"),
    ],
)
def test_an_unreadable_file_fails_alone_and_says_why(collection, name, content, reason):
    drop(collection, name, content, age=9)
    drop(collection, "good.jsonl", LINE.format("a", "1"))
    bad, good = inbox.receive_inbox(collection)

    assert bad.receipt is None
    assert reason in bad.reason
    assert len(good.receipt.events) == 1
    assert listing(collection) == [
        ".lock",
        "done/good.jsonl",
        f"failed/{name}",
        f"failed/{name}.reason",
    ]
    assert reason in (collection.project.root / "inbox" / "failed" / f"{name}.reason").read_text()


def crash_at_odd_calls(function):
    """Return a function that fails at its first call and at every second one after it."""
    calls = 0

    def crash_or_call(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls % 2:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return crash_or_call


@pytest.mark.parametrize("point", ["receive", "_move", "write_text"])
def test_crash_at_any_point_receives_everything_once(collection, monkeypatch, point):
    drop(collection, "bad.pdf", "%PDF", age=3)
    drop(collection, "a.jsonl", LINE.format("a", "1"), age=2)
    drop(collection, "b.jsonl", LINE.format("a", "2"), age=1)
    owner = collection if point == "receive" else inbox
    monkeypatch.setattr(owner, point, crash_at_odd_calls(getattr(owner, point)))

    for _ in range(4):
        with suppress(KeyboardInterrupt):
            inbox.receive_inbox(collection)

    events = collection.ledger_view.life("a")
    assert [event.payload["text"] for event in events] == ["1", "2"]
    assert listing(collection) == [
        ".lock",
        "done/a.jsonl",
        "done/b.jsonl",
        "failed/bad.pdf",
        "failed/bad.pdf.reason",
    ]


def test_file_changed_while_read_is_left_in_inbox(collection, monkeypatch):
    path = drop(collection, "a.jsonl", LINE.format("a", "1"))
    clean = inbox.clean_rows

    def slow(*arguments):
        rows = clean(*arguments)
        path.write_text(path.read_text() + LINE.format("b", "1"))
        return rows

    monkeypatch.setattr(inbox, "clean_rows", slow)
    assert inbox.receive_inbox(collection) == []
    monkeypatch.setattr(inbox, "clean_rows", clean)
    assert len(inbox.receive_inbox(collection)[0].receipt.events) == 2


def test_inbox_file_with_non_utf8_name_is_received(collection):
    folder = collection.project.root / "inbox"
    for name, content in ((b"caf\xe9.jsonl", LINE.format("a", "1")), (b"caf\xe9.xls", "?")):
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_text(content)
    found = {taken.file: taken.reason for taken in inbox.receive_inbox(collection)}

    assert found.keys() == {"caf?.jsonl", "caf?.xls"}
    assert "an old Office format" in found["caf?.xls"]
    assert collection.ledger_view.life("a")[-1].source == "inbox/caf?.jsonl"
    assert [os.fsencode(name) for name in listing(collection)] == [
        b".lock",
        b"done/caf\xe9.jsonl",
        b"failed/caf\xe9.xls",
        b"failed/caf\xe9.xls.reason",
    ]


def test_only_too_deeply_nested_rows_are_refused(collection):
    rows = [
        json.dumps({"id": "x", "title": "x", "text": "x", "f": 1}).replace(
            "1", "[" * n + "NaN" + "]" * n
        )
        for n in (900, 970, 101)
    ]
    taken = take(collection, "deep.jsonl", "\n".join([*rows, LINE.format("a", "1")]))

    assert len(taken.receipt.events) == 1
    assert [one.row for one in taken.receipt.rejected] == [1, 2, 3]
    assert taken.receipt.rejected[-1].reason == "bad JSON: values are nested more than 100 deep"


def test_long_names_of_archived_files_are_cut(collection):
    for text in "12":
        drop(collection, "x" * 249 + ".jsonl", LINE.format("a", text), age=2)
        drop(collection, "é" * 125 + ".pdf", f"%PDF {text}", age=1)
        assert [taken.reason is None for taken in inbox.receive_inbox(collection)] == [True, False]
    names = [name.rpartition("/")[2] for name in listing(collection)]

    assert sum(name.endswith("x.jsonl") for name in names) == 2
    assert sum(name.endswith("é.pdf") for name in names) == 2
    assert sum(name.endswith("é.pdf.reason") for name in names) == 2


def test_unmovable_inbox_file_stops_nothing_else(collection, monkeypatch, caplog):
    bad = drop(collection, "bad.jsonl", LINE.format("b", "1"), age=9)
    drop(collection, "good.jsonl", LINE.format("a", "1"))
    hash_path = inbox.hash_path

    def unreadable(path):
        if path == bad:
            raise PermissionError(f"permission denied: {path}")
        return hash_path(path)

    monkeypatch.setattr(inbox, "hash_path", unreadable)
    assert [step.kind for step in receive_inbox_and_request_tasks(collection.project)] == ["add"]
    assert listing(collection) == [".lock", "bad.jsonl", "done/good.jsonl"]
    assert "bad.jsonl stays in inbox/: permission denied" in caplog.text
    monkeypatch.setattr(inbox, "hash_path", hash_path)
    assert [taken.file for taken in inbox.receive_inbox(collection)] == ["bad.jsonl"]
