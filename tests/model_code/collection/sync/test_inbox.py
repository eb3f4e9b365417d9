"""Guards the inbox: each finished file once, by content, through crashes; unreadable ones aside
with their reason.
"""

from __future__ import annotations

import json
import os
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
    assert (old.file, len(old.receipt.events), len(old.receipt.rejected)) == ("old.csv", 1, 1)
    assert (new.file, len(new.receipt.events), new.reason) == ("new.jsonl", 1, None)
    assert (fern.file, len(fern.receipt.events), fern.reason) == ("fern.md", 1, None)
    done = ["done/fern.md", "done/new.jsonl", "done/old.csv"]
    assert listing(collection) == [".hidden.jsonl", ".lock", *done, "growing.jsonl.part"]
    assert collection.apply().added == ("a", "fern.md")
    assert collection.ledger_view.life("a")[-1].payload["text"] == "2"
    assert collection.ledger_view.life("a")[-1].source == "inbox/new.jsonl"
    assert inbox.receive_inbox(collection) == []


@pytest.mark.parametrize("trouble", ["params.yaml", "reading"])
def test_what_is_no_fault_of_a_file_leaves_it_in_the_inbox(collection, monkeypatch, trouble):
    drop(collection, "good.jsonl", LINE.format("a", "1"))
    if trouble == "params.yaml":
        (collection.project.root / "params.yaml").write_text(
            "{corpus: {path: notes, retrievers: {}}\n"
        )
        with pytest.raises(FreshetError, match=r"params\.yaml"):
            inbox.receive_inbox(collection)
    else:
        monkeypatch.setattr(
            inbox, "read_file", fail := Mock(side_effect=OSError(24, "Too many open files"))
        )
        assert inbox.receive_inbox(collection) == []
        assert fail.called
    assert listing(collection)[-1] == "good.jsonl"


def test_an_empty_or_missing_inbox_is_no_work_and_no_ledger(collection):
    assert inbox.receive_inbox(collection) == []
    (collection.project.root / "inbox").rmdir()
    assert inbox.receive_inbox(collection) == []
    assert not (collection.project.live / "ledger.sqlite").exists()


def test_a_file_that_somebody_else_takes_meanwhile_waits_no_more(collection, monkeypatch):
    for name in ("taken.jsonl", "stays.jsonl"):
        drop(collection, name, LINE.format(name[0], "1"))
    really = Path.stat

    def stat(path, **options):
        if path.name == "taken.jsonl":
            raise FileNotFoundError(path)
        return really(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert [path.name for path in inbox.waiting(collection.project)] == ["stays.jsonl"]


def test_the_same_content_again_is_received_no_more_whatever_its_name(collection):
    take(collection, "one.jsonl", LINE.format("a", "1"))
    collection.receive([row("a", "2")], "api")
    assert take(collection, "two.jsonl", LINE.format("a", "1")).receipt.events == ()
    assert collection.ledger_view.life("a")[-1].payload["text"] == "2"
    assert listing(collection) == [".lock", "done/one.jsonl", "done/two.jsonl"]


def test_a_file_whose_documents_were_rolled_back_is_received_again(collection):
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
    assert (again.receipt.events, again.receipt.unchanged) == ((), 1)


def test_a_file_that_was_refused_as_a_whole_is_received_again(collection):
    """Also if another of its name was refused for the same row."""
    rows, settings = [LINE.format(one, "word " * 9) for one in "ab"], collection.project.params_file
    settings.write_text("{retrievers: {hce: {}}, corpus: {max_characters: 10}}\n")
    for content in (rows[0], rows[0], "".join(rows)):
        refused = take(collection, "feed.jsonl", content).receipt
        assert (len(refused.rejected), refused.events) == (content.count("\n"), ())
    settings.write_text("{retrievers: {hce: {}}}\n")
    assert len(take(collection, "feed.jsonl", rows[0]).receipt.events) == 1


def test_a_file_of_which_every_row_was_refused_fails_and_says_why(collection):
    taken = take(collection, "bad.jsonl", '{"_id": "a", "title": "", "text": ""}\n' * 25)
    assert (len(taken.receipt.rejected), taken.receipt.events) == (25, ())
    assert listing(collection) == [".lock", "failed/bad.jsonl", "failed/bad.jsonl.reason"]
    lines = (collection.project.root / "inbox/failed/bad.jsonl.reason").read_text().splitlines()
    assert lines[0] == "no row was accepted, 25 were refused:"
    assert lines[1].startswith("row 1  a  empty text")
    assert lines[-2:] == ["and 5 more", "Correct the file and put it into inbox/ again."]
    assert collection.ledger_view.counts()["rejected"] == 25


def test_a_file_that_said_nothing_new_is_received_again_after_a_rollback(collection):
    add(collection, row("a", "1"))
    for _ in range(2):
        assert take(collection, "one.jsonl", LINE.format("a", "1")).receipt.events == ()
    collection.revert(0)
    take(collection, "one.jsonl", LINE.format("a", "1"))
    assert collection.apply().added == ("a",)


def test_a_file_that_said_nothing_new_does_not_undo_what_came_after_it(collection):
    collection.receive([row("a", "1")], "api")
    for again in (False, True):
        take(collection, "one.jsonl", LINE.format("a", "1"))
        assert collection.ledger_view.life("a")[-1].payload["text"] == ("2" if again else "1")
        collection.receive([row("a", "2")], "api")


def test_files_of_one_name_and_other_content_are_all_kept_and_broken_ones_each_with_their_reason(
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
        ("x.xls", "%PDF", "unknown format"),
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


@pytest.mark.parametrize("point", ["receive", "_move", "write_text"])
def test_a_crash_at_any_point_receives_everything_once(collection, monkeypatch, point):
    drop(collection, "bad.pdf", "%PDF", age=3)
    drop(collection, "a.jsonl", LINE.format("a", "1"), age=2)
    drop(collection, "b.jsonl", LINE.format("a", "2"), age=1)
    where = collection if point == "receive" else inbox
    kept, calls = getattr(where, point), []

    def crash(*arguments, **named):
        calls.append(1)
        if len(calls) % 2:
            raise KeyboardInterrupt
        return kept(*arguments, **named)

    monkeypatch.setattr(where, point, crash)
    for _ in range(4):
        try:
            inbox.receive_inbox(collection)
        except KeyboardInterrupt:
            continue
    assert [event.payload["text"] for event in collection.ledger_view.life("a")] == ["1", "2"]
    assert listing(collection) == [
        ".lock",
        "done/a.jsonl",
        "done/b.jsonl",
        "failed/bad.pdf",
        "failed/bad.pdf.reason",
    ]


def test_a_file_that_changes_while_it_is_read_is_left_for_later(collection, monkeypatch):
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


def test_a_name_that_is_no_utf_8_is_received_like_any_other(collection):
    folder = collection.project.root / "inbox"
    for name, content in ((b"caf\xe9.jsonl", LINE.format("a", "1")), (b"caf\xe9.xls", "?")):
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_text(content)
    found = {taken.file: taken.reason for taken in inbox.receive_inbox(collection)}
    assert found.keys() == {"caf?.jsonl", "caf?.xls"}
    assert "caf?.xls has an unknown format" in found["caf?.xls"]
    assert collection.ledger_view.life("a")[-1].source == "inbox/caf?.jsonl"
    assert [os.fsencode(name) for name in listing(collection)] == [
        b".lock",
        b"done/caf\xe9.jsonl",
        b"failed/caf\xe9.xls",
        b"failed/caf\xe9.xls.reason",
    ]


def test_rows_that_are_nested_too_deeply_are_refused_alone(collection):
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


def test_long_names_are_cut_where_files_are_put_aside(collection):
    for text in "12":
        drop(collection, "x" * 249 + ".jsonl", LINE.format("a", text), age=2)
        drop(collection, "é" * 125 + ".pdf", f"%PDF {text}", age=1)
        assert [taken.reason is None for taken in inbox.receive_inbox(collection)] == [True, False]
    names = [name.rpartition("/")[2] for name in listing(collection)]
    assert sum(name.endswith("x.jsonl") for name in names) == 2
    assert (
        sum(name.endswith("é.pdf") for name in names)
        == sum(name.endswith("é.pdf.reason") for name in names)
        == 2
    )


def test_a_file_that_cannot_be_taken_stays_and_stops_neither_the_others_nor_the_sensor(
    collection, monkeypatch, caplog
):
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
