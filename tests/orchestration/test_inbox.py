"""Guards the inbox: each finished file once, by content, through crashes; unreadable ones aside with their reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestration import inbox
from orchestration.freshness_sensor import tick
from tests.orchestration.live_example import freshener_of, make_project

LINE = '{{"_id": "{0}", "title": "{0}", "text": "{1}"}}\n'


@pytest.fixture
def freshener(tmp_path, monkeypatch):
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    (tmp_path / "inbox").mkdir()
    return freshener_of(make_project(tmp_path))


def drop(freshener, name: str, content: str, age: float = 0) -> Path:
    path = freshener.project.root / "inbox" / name
    path.write_text(content)
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def listing(freshener) -> list[str]:
    folder = freshener.project.root / "inbox"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_finished_files_are_received_in_order_and_moved(freshener):
    drop(freshener, "new.jsonl", LINE.format("a", "2"), age=1)
    drop(freshener, "old.csv", "_id,title,text\na,a,1\nb,b,\n", age=2)
    drop(freshener, "growing.jsonl.part", "{")
    drop(freshener, ".hidden.jsonl", "{")
    old, new = inbox.take_all(freshener)
    assert (old.file, len(old.receipt.events), len(old.receipt.rejected)) == ("old.csv", 1, 1)
    assert (new.file, len(new.receipt.events), new.reason) == ("new.jsonl", 1, None)
    assert listing(freshener) == [".hidden.jsonl", ".lock", "done/new.jsonl", "done/old.csv", "growing.jsonl.part"]
    assert freshener.apply_pending().added == ("a",)
    assert freshener.ledger.history("a")[-1].payload["text"] == "2"
    assert freshener.ledger.history("a")[-1].source == "inbox/new.jsonl"
    assert inbox.take_all(freshener) == []


def test_an_empty_or_missing_inbox_is_no_work_and_no_ledger(freshener):
    assert inbox.take_all(freshener) == []
    (freshener.project.root / "inbox").rmdir()
    assert inbox.take_all(freshener) == []
    assert not (freshener.project.live / "ledger.sqlite").exists()


def test_the_same_content_again_is_received_no_more_whatever_its_name(freshener):
    drop(freshener, "one.jsonl", LINE.format("a", "1"))
    inbox.take_all(freshener)
    freshener.receive([{"id": "a", "title": "a", "text": "2"}], "api")
    drop(freshener, "two.jsonl", LINE.format("a", "1"))
    assert inbox.take_all(freshener)[0].receipt.events == ()
    assert freshener.ledger.history("a")[-1].payload["text"] == "2"
    assert listing(freshener) == [".lock", "done/one.jsonl", "done/two.jsonl"]


def test_a_file_whose_documents_were_rolled_back_is_received_again(freshener):
    drop(freshener, "one.jsonl", LINE.format("a", "1"))
    inbox.take_all(freshener)
    freshener.apply_pending()
    freshener.rollback(0)
    for _ in range(2):
        drop(freshener, "one.jsonl", LINE.format("a", "1"))
        (again,) = inbox.take_all(freshener)
        freshener.apply_pending()
    assert [event.state for event in freshener.ledger.history("a")] == ["rolled_back", "live"]
    assert (again.receipt.events, again.receipt.unchanged) == ((), 1)


def test_a_file_that_was_refused_as_a_whole_is_received_again(freshener, monkeypatch):
    content = '{"_id": "a", "title": "a", "text": "%s"}\n' % ("long " * 9)
    parameters = freshener.project.params_file
    parameters.write_text("{retrievers: {hce: {}}, corpus: {max_characters: 10}}\n")
    for _ in range(2):
        drop(freshener, "one.jsonl", content)
        (refused,) = inbox.take_all(freshener)
    parameters.write_text("{retrievers: {hce: {}}}\n")
    drop(freshener, "one.jsonl", content)
    (accepted,) = inbox.take_all(freshener)
    assert (len(refused.receipt.rejected), len(accepted.receipt.events)) == (1, 1)


def test_a_file_of_which_every_row_was_refused_fails_and_says_why(freshener):
    drop(freshener, "bad.jsonl", LINE.format("a", "") * 25)
    (taken,) = inbox.take_all(freshener)
    assert (len(taken.receipt.rejected), taken.receipt.events) == (25, ())
    assert listing(freshener) == [".lock", "failed/bad.jsonl", "failed/bad.jsonl.reason"]
    lines = (freshener.project.root / "inbox/failed/bad.jsonl.reason").read_text().splitlines()
    assert lines[0] == "no row was accepted, 25 were refused:"
    assert lines[1].startswith("row 1  a  empty text")
    assert lines[-2:] == ["and 5 more", "Mend the file and drop it into inbox/ again."]
    assert freshener.ledger.counts()["rejected"] == 25


def test_a_file_that_said_nothing_new_is_received_again_after_a_rollback(freshener):
    freshener.receive([{"id": "a", "title": "a", "text": "1"}], "api")
    freshener.apply_pending()
    for _ in range(2):
        drop(freshener, "one.jsonl", LINE.format("a", "1"))
        (taken,) = inbox.take_all(freshener)
        assert taken.receipt.events == ()
    freshener.rollback(0)
    drop(freshener, "one.jsonl", LINE.format("a", "1"))
    inbox.take_all(freshener)
    assert freshener.apply_pending().added == ("a",)


def test_a_file_that_said_nothing_new_does_not_undo_what_came_after_it(freshener):
    freshener.receive([{"id": "a", "title": "a", "text": "1"}], "api")
    for again in (False, True):
        drop(freshener, "one.jsonl", LINE.format("a", "1"))
        inbox.take_all(freshener)
        assert freshener.ledger.history("a")[-1].payload["text"] == ("2" if again else "1")
        freshener.receive([{"id": "a", "title": "a", "text": "2"}], "api")


def test_a_refused_file_is_received_again_though_another_of_its_name_was_refused_for_the_same_row(freshener):
    rows = [LINE.format(one, "word " * 9) for one in "ab"]
    settings = freshener.project.params_file
    settings.write_text("{retrievers: {hce: {}}, corpus: {max_characters: 10}}\n")
    for content in (rows[0], "".join(rows)):
        drop(freshener, "feed.jsonl", content)
        inbox.take_all(freshener)
    settings.write_text("{retrievers: {hce: {}}}\n")
    drop(freshener, "feed.jsonl", rows[0])
    assert len(inbox.take_all(freshener)[0].receipt.events) == 1


def test_two_broken_files_of_one_name_each_have_their_reason(freshener):
    for content in ("%PDF", "no PDF"):
        drop(freshener, "x.pdf", content)
        inbox.take_all(freshener)
    names = [name.removeprefix("failed/") for name in listing(freshener) if name.startswith("failed/")]
    assert len(names) == 4
    assert {f"{name}.reason" for name in names if not name.endswith(".reason")} <= set(names)


def test_files_of_one_name_and_other_content_are_all_kept(freshener):
    for text in "123":
        drop(freshener, "x.jsonl", LINE.format("a", text))
        inbox.take_all(freshener)
    assert len(list((freshener.project.root / "inbox" / "done").iterdir())) == 3
    assert len(freshener.ledger.history("a")) == 3


@pytest.mark.parametrize(("name", "content", "reason"), [
    ("x.pdf", "%PDF", "unknown format"),
    ("x.parquet", "no parquet", "not a Parquet file"),
    ("x.jsonl.gz", "no gzip", "not a whole .gz file"),
])  # fmt: skip
def test_an_unreadable_file_fails_alone_and_says_why(freshener, name, content, reason):
    drop(freshener, name, content, age=9)
    drop(freshener, "good.jsonl", LINE.format("a", "1"))
    bad, good = inbox.take_all(freshener)
    assert bad.receipt is None
    assert reason in bad.reason
    assert len(good.receipt.events) == 1
    assert listing(freshener) == [".lock", "done/good.jsonl", f"failed/{name}", f"failed/{name}.reason"]
    assert reason in (freshener.project.root / "inbox" / "failed" / f"{name}.reason").read_text()


@pytest.mark.parametrize("point", ["take", "_move", "write_text"])
def test_a_crash_at_any_point_receives_everything_once(freshener, monkeypatch, point):
    drop(freshener, "bad.pdf", "%PDF", age=3)
    drop(freshener, "a.jsonl", LINE.format("a", "1"), age=2)
    drop(freshener, "b.jsonl", LINE.format("a", "2"), age=1)
    where = freshener if point == "take" else inbox
    kept, calls = getattr(where, point), []

    def crash(*arguments, **named):
        calls.append(1)
        if len(calls) % 2:
            raise KeyboardInterrupt
        return kept(*arguments, **named)

    monkeypatch.setattr(where, point, crash)
    for _ in range(4):
        try:
            inbox.take_all(freshener)
        except KeyboardInterrupt:
            continue
    assert [event.payload["text"] for event in freshener.ledger.history("a")] == ["1", "2"]
    assert listing(freshener) == [".lock", "done/a.jsonl", "done/b.jsonl", "failed/bad.pdf", "failed/bad.pdf.reason"]


def test_a_file_that_changes_while_it_is_read_is_left_for_later(freshener, monkeypatch):
    path = drop(freshener, "a.jsonl", LINE.format("a", "1"))
    admit = inbox.arrivals.admit

    def slow(*arguments):
        found = admit(*arguments)
        path.write_text(path.read_text() + LINE.format("b", "1"))
        return found

    monkeypatch.setattr(inbox.arrivals, "admit", slow)
    assert inbox.take_all(freshener) == []
    monkeypatch.setattr(inbox.arrivals, "admit", admit)
    assert len(inbox.take_all(freshener)[0].receipt.events) == 2


def test_a_name_that_is_no_utf_8_is_received_like_any_other(freshener):
    folder = freshener.project.root / "inbox"
    for name, content in ((b"caf\xe9.jsonl", LINE.format("a", "1")), (b"caf\xe9.pdf", "%PDF")):
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_text(content)
    found = {taken.file: taken.reason for taken in inbox.take_all(freshener)}
    assert found.keys() == {"caf?.jsonl", "caf?.pdf"}
    assert "caf?.pdf has an unknown format" in found["caf?.pdf"]
    assert freshener.ledger.history("a")[-1].source == "inbox/caf?.jsonl"
    assert [os.fsencode(name) for name in listing(freshener)] == [
        b".lock", b"done/caf\xe9.jsonl", b"failed/caf\xe9.pdf", b"failed/caf\xe9.pdf.reason"
    ]  # fmt: skip


def test_rows_that_are_nested_too_deeply_are_refused_alone(freshener):
    rows = [json.dumps({"id": "x", "title": "x", "text": "x", "f": 1}).replace("1", "[" * n + "NaN" + "]" * n)
            for n in (900, 970, 101)]  # fmt: skip
    drop(freshener, "deep.jsonl", "\n".join([*rows, LINE.format("a", "1")]))
    (taken,) = inbox.take_all(freshener)
    assert len(taken.receipt.events) == 1
    assert [one.row for one in taken.receipt.rejected] == [1, 2, 3]
    assert taken.receipt.rejected[-1].reason == "bad JSON: values are nested more than 100 deep"


def test_long_names_are_cut_where_files_are_put_aside(freshener):
    for text in "12":
        drop(freshener, "x" * 249 + ".jsonl", LINE.format("a", text), age=2)
        drop(freshener, "é" * 125 + ".pdf", f"%PDF {text}", age=1)
        assert [taken.reason is None for taken in inbox.take_all(freshener)] == [True, False]
    names = [name.rpartition("/")[2] for name in listing(freshener)]
    assert sum(name.endswith("x.jsonl") for name in names) == 2
    assert sum(name.endswith("é.pdf") for name in names) == sum(name.endswith("é.pdf.reason") for name in names) == 2


def test_a_file_that_cannot_be_taken_stays_and_stops_neither_the_others_nor_the_sensor(freshener, monkeypatch, caplog):
    bad = drop(freshener, "bad.jsonl", LINE.format("b", "1"), age=9)
    drop(freshener, "good.jsonl", LINE.format("a", "1"))
    hash_path = inbox.hash_path

    def unreadable(path):
        if path == bad:
            raise PermissionError(f"permission denied: {path}")
        return hash_path(path)

    monkeypatch.setattr(inbox, "hash_path", unreadable)
    assert [step.kind for step in tick(freshener.project)] == ["add"]
    assert listing(freshener) == [".lock", "bad.jsonl", "done/good.jsonl"]
    assert "bad.jsonl stays in inbox/: permission denied" in caplog.text
    monkeypatch.setattr(inbox, "hash_path", hash_path)
    assert [taken.file for taken in inbox.take_all(freshener)] == ["bad.jsonl"]
