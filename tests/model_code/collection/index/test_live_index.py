"""Guards the way of a document into the live collection: refusals, exactly once through crashes at
every point between log and pointer, going back and forth, a lost log, and one writer at a time.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from model_code.collection.backup.repair import repair
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index.changes import delete_documents
from model_code.collection.index.live_index import forecast_changes
from model_code.collection.index.project_ledger import backlog_of, ledger_url, open_ledger
from model_code.collection.index.status import live_status, live_status_lines, probe_newest_document
from model_code.collection.ledger.events import LedgerCursor, Position
from model_code.collection.ledger.tasks import EventRange, TaskKind
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.documents import Document, Remove
from orchestration.sensors import receive_inbox_and_request_tasks
from tests.live_example import (
    BASE,
    add,
    collection_of,
    make_project,
    open_build,
    receive,
    row,
    texts,
)


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


@pytest.fixture
def collection(project):
    return collection_of(project)


def current(project: Project):
    return GenerationStore(project.live, "hce").current()


def states(collection) -> dict[str, int]:
    return {
        str(state): number for state, number in collection.ledger_view.counts().items() if number
    }


def test_impossible_ids_are_refused_and_shortened(project, collection):
    outcome = delete_documents(collection, ["caf\udce9", "numpy.sort", "x" * 1_000_000])
    assert outcome.deleted == ["numpy.sort"]
    assert [refused["document_id"] for refused in outcome.rejected] == ["caf?", "x" * 120]
    str(outcome).encode()


def test_adding_a_document_twice_changes_nothing(project, collection):
    receipt = collection.receive([row("a"), row("str.split", "Split differently.")], "api")
    assert receipt.received == 2
    assert receipt.unchanged == 0
    assert receipt.rejected == ()
    assert len(receipt.events) == 2
    applied = collection.apply()
    assert applied.added == ("a",)
    assert applied.updated == ("str.split",)
    assert texts(project, ["a", *BASE]) == {
        "a": "some text",
        "numpy.sort": BASE["numpy.sort"],
        "str.split": "Split differently.",
    }
    assert applied.generation.watermark == 2
    assert applied.generation.manifest["provenance"] == {"sources": ["api"], "events": [1, 2]}
    assert (
        collection.receive([row("a"), row("str.split", "Split differently.")], "file").unchanged
        == 2
    )
    assert collection.apply() is None
    assert [event.state for event in collection.ledger_view.life("a")] == ["live"]


def test_added_rows_follow_the_corpus_rules(collection):
    rows = [
        {"_id": 7, "title": "Two\n lines", "text": "Cafe\u0301\x00 ", "package": "x"},
        row("b", "   ", title=" "),
        {"title": "no id", "text": "x"},
        row("c", 5),
        row("d", queries=["  what\tis d? ", ""], fields={"package": "y"}),
        row("e", queries=[1]),
    ]
    receipt = collection.receive(rows, "api")
    assert [
        (one.row, one.document_id, one.reason.partition(":")[0]) for one in receipt.rejected
    ] == [
        (2, "b", "empty text"),
        (3, None, "missing id"),
        (4, "c", "wrong type"),
        (6, "e", "wrong type"),
    ]
    assert receipt.received == len(rows)
    assert receipt.unchanged == 0
    assert len(receipt.events) == 2
    first, second = collection.ledger_view.pending().events
    assert first.document_id == "7"
    assert first.payload == {
        "title": "Two lines",
        "text": "Café",
        "fields": {"package": "x"},
        "queries": [],
    }
    assert second.payload["queries"] == ["what is d?"]
    assert second.payload["fields"] == {"package": "y"}
    assert collection.ledger_view.counts()["rejected"] == 4


def test_remove_accepts_only_known_ids(project, collection):
    add(collection, row("a"), row("b"))
    collection.receive([row("waiting")], "api")
    receipt = collection.remove(["a", "numpy.sort", "nothing", "waiting"], "cli")
    assert [(one.document_id, one.reason.partition(":")[0]) for one in receipt.rejected] == [
        ("nothing", "unknown id")
    ]
    assert len(receipt.events) == 3
    assert collection.apply().deleted == ("a", "numpy.sort")
    assert texts(project, ["a", "b", "waiting", *BASE]).keys() == {"b", "str.split"}
    assert collection.remove(["a"], "cli").unchanged == 1


def test_only_known_documents_can_be_updated(collection):
    collection.receive([row("waiting")], "api")
    rows = [row("bad", ""), row("waiting", "2"), row("numpy.sort", "2"), row("x")]
    receipt = collection.receive(rows, "api", only_known=True)
    assert [(one.row, one.document_id) for one in receipt.rejected] == [(1, "bad"), (4, "x")]
    assert len(receipt.events) == 2


def test_pending_documents_are_applied_in_batches(project, collection):
    collection.receive([row(one) for one in "abcde"], "api")
    assert collection.apply(limit=2).added == ("a", "b")
    assert states(collection) == {"pending": 3, "live": 2}
    assert len(collection.ledger_view.pending(2).events) == 2
    assert collection.apply(limit=9).added == ("c", "d", "e")
    assert current(project).watermark == 5


def test_going_back_and_forth(project, collection):
    first = add(collection, row("a", "1"), row("numpy.sort", "1")).generation.number
    second = add(collection, row("a", "2"), row("b"), row("numpy.sort", "2")).generation.number
    collection.remove(["a"], "api")
    collection.apply()
    back = collection.revert(first)
    assert back.number == 4
    assert back.manifest["provenance"]["reverted_to"] == first
    assert texts(project, ["a", "b", "numpy.sort"]) == {"a": "1", "numpy.sort": "1"}
    assert states(collection) == {"live": 2, "rolled_back": 4}
    assert collection.ledger.last_revert().current == 3
    assert collection.apply() is None
    collection.revert(second)
    assert texts(project, ["a", "b", "numpy.sort"]) == {
        "a": "2",
        "b": "some text",
        "numpy.sort": "2",
    }
    assert states(collection) == {"live": 3, "superseded": 2, "rolled_back": 1}
    collection.revert(0)
    assert texts(project, ["a", "b", *BASE]) == BASE
    with pytest.raises(FreshetError, match="no generation 9; there are: 0, 1, 2, 3, 4, 5, 6"):
        collection.revert(9)
    assert collection.revert(6).number == current(project).number == 6, (
        "it is current: nothing is to be done"
    )


def test_pending_changes_survive_a_revert(project, collection):
    add(collection, row("a"))
    receipt = collection.receive([row("waiting"), row("a", "2")], "api")
    collection.revert(0)
    assert texts(project, ["a", "waiting"]) == {}
    assert states(collection) == {"pending": 2, "rolled_back": 1}
    assert collection.apply().added == ("a", "waiting")
    assert texts(project, ["a", "waiting"]) == {"a": "2", "waiting": "some text"}
    assert [event.state for event in collection.ledger_view.events(*receipt.events)] == [
        "live",
        "live",
    ]


@pytest.fixture
def other(project, collection):
    """A second retriever that has applied an addition and an update, as the default has."""
    open_build(project, BASE, retriever="other")
    index = collection_of(project, "other")
    add(collection, row("a"), row("str.split", "2"))
    index.apply()
    return index


def test_only_the_default_retriever_can_be_reverted(other):
    with pytest.raises(FreshetError, match="freshet rewind --retriever other --generation 0"):
        other.revert(0)


def test_revert_of_default_applies_to_all_retrievers(project, collection, other):
    collection.revert(0)
    texts_before = texts(project, ["a", *BASE], "other")

    result = other.apply()

    assert texts_before["str.split"] == "2"
    assert result.deleted == ("a",)
    assert texts(project, ["a", *BASE], "other") == BASE


def test_rewound_retriever_follows_the_log_again(project, collection, other):
    collection.revert(0)
    other.apply()
    rewound = other.rewind(1)
    texts_of_rewound = texts(project, ["a"], "other")

    result = other.apply()

    assert rewound.number == 3
    assert texts_of_rewound == {"a": "some text"}
    assert result.deleted == ("a",)
    assert result.updated == ("str.split",)
    assert result.added == ()
    assert result.unchanged == ()


def test_build_of_other_ledger_hides_no_event(project, collection):
    open_build(project, BASE, LedgerCursor(Position("elsewhere", 9, "mark"), trained=9))
    open_build(project, BASE)
    add(collection, row("a"))
    collection.revert(1)
    add(collection, row("b"))
    assert states(collection) == {"live": 1, "rolled_back": 1}


@pytest.mark.parametrize("step", ["publish_again", "write_manifest", "commit", "set_current"])
def test_revert_killed_after_commit_is_completed(project, collection, monkeypatch, step):
    add(collection, row("a"))
    collection.receive([row("b")], "api")
    with monkeypatch.context() as patch:
        patch.setattr(GenerationStore, step, lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            collection.revert(0)
    assert texts(project, "ab") == {"a": "some text"}, "the old generation is searched"
    after = collection_of(project)
    assert after.apply().added == ("b",)
    assert texts(project, "ab") == {"b": "some text"}
    assert states(after) == {"live": 1, "rolled_back": 1}
    assert [each.number for each in after.store.generations()] == [0, 1, 2, 3]


def test_repeated_revert_after_kill_reverts_once(project, collection, monkeypatch):
    add(collection, row("a"))
    with monkeypatch.context() as patch:
        patch.setattr(GenerationStore, "publish_again", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            collection.revert(0)
    collection.receive([row("b")], "api")
    after = collection_of(project)
    after.revert(0)
    assert after.apply().added == ("b",)
    assert texts(project, "ab") == {"b": "some text"}


def test_a_damaged_generation_is_not_gone_back_to(project, collection):
    first = add(collection, row("a")).generation
    add(collection, row("b"))
    (first.folder / "documents.safetensors").write_bytes(b"nonsense")
    before = collection.ledger.position().event
    with pytest.raises(FreshetError, match="documents.safetensors was changed"):
        collection.revert(1)
    assert collection.ledger.position().event == before


def test_leftovers_of_killed_writer_are_removed(project, collection, monkeypatch):
    collection.receive([row("a")], "api")
    with monkeypatch.context() as patch:
        patch.setattr(GenerationStore, "set_current", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            collection.apply()
    assert len(collection.store.generations()) == 2
    assert states(collection) == {"pending": 1}
    collection.collect_garbage(keep=9)
    assert len(collection.store.generations()) == 1
    assert collection_of(project).apply().added == ("a",)


def test_compaction_keeps_everything_settled(project, collection):
    add(collection, row("a"))
    number = collection.compact().number
    add(collection, row("b"))
    assert states(collection) == {"live": 2}
    collection.revert(number)
    assert states(collection) == {"live": 1, "rolled_back": 1}


def test_writers_in_threads_apply_each_event_once(project):
    added: list[str] = []

    def work(worker: int) -> None:
        index = collection_of(project)
        for number in range(4):
            index.receive([row(f"{worker}-{number}")], "api")
            result = index.apply()
            if result is not None:
                added.extend(result.added)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    ids = []
    for worker in range(3):
        ids += [f"{worker}-{number}" for number in range(4)]
    assert sorted(added) == ids
    assert sorted(texts(project, ids)) == ids


def test_a_forecast_is_what_then_happens(project, collection):
    add(collection, row("a"), row("b"))
    collection.receive([row("waiting"), row("a", "new")], "api")
    rows = [
        row("a", "new"),
        row("b"),
        row("c"),
        row("waiting", "2"),
        row("numpy.sort", BASE["numpy.sort"]),
        row("str.split", "2"),
        row("c", "2"),
    ]
    documents = collection.clean_rows(rows, "x").documents
    before = collection.ledger.position().event
    told = forecast_changes(current(project), documents)
    assert collection.ledger.position().event == before
    collection.ledger.receive(documents, "x")
    then = collection.apply()
    assert told == {
        "added": ["c", "waiting"],
        "updated": ["a", "str.split"],
        "deleted": [],
        "unchanged": ["b", "numpy.sort"],
    }
    assert told["added"] == sorted(then.added)
    assert told["updated"] == sorted(then.updated)
    assert forecast_changes(
        current(project), [Remove("b"), Remove("absent"), *documents[:1], Remove("a")]
    ) == {"added": [], "updated": [], "deleted": ["a", "b"], "unchanged": ["absent"]}


def test_status_is_read_only_and_reports_backlog(project, collection):
    nothing = {
        "retriever": "hce",
        "generation": 0,
        "watermark": 0,
        "ledger": None,
        "newest": None,
        "refined": None,
    }
    assert live_status(project, "hce") == nothing
    assert list(live_status_lines(live_status(project, "hce"))) == []
    assert not (project.live / "ledger.sqlite").exists()
    add(collection, row("a"), row("b", "", title=""))
    collection.receive([row("c")], "api")
    report = {"measures": [{"name": "auc", "value": 0.61234, "threshold": 0.6, "tripped": True}]}
    report["decision"] = {"action": "add", "reasons": ["auc below its threshold"]}
    collection.ledger.record_drift_report(report, (1, 1))
    collection.ledger.tasks.request(
        TaskKind.PILOT, "hce", EventRange(1, 1), "who knows", requested_by="drift"
    )
    status = json.loads(json.dumps(live_status(project, "hce")))
    documents = status["ledger"]["documents"]
    assert documents["pending"] == 1
    assert documents["live"] == 1
    assert documents["rejected"] == 1
    assert [re.sub(r"for \d+ s$", "for 0 s", line) for line in live_status_lines(status)] == [
        "documents   1 pending, 1 live, 1 rejected (after event 1)",
        "lag         1 waiting, the oldest for 0 s",
        "drift       auc 0.612 is past its threshold 0.6",
        "decision    add: auc below its threshold",
        "work        pilot (open): who knows",
    ]
    ledger = status["ledger"]
    for moment in (
        ledger["drift"]["recorded"],
        ledger["work"][0]["asked"],
        ledger["rejections"][0]["received"],
    ):
        assert abs(datetime.now(UTC) - datetime.fromisoformat(moment)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("hits", "rank", "told"),
    [("xab", 2, "at rank 2 by"), ("x", None, "not among the first ten by")],
)
def test_newest_document_is_probed_by_title(project, collection, hits, rank, told):
    asked = []

    class Finder:
        generation = property(lambda self: current(project))

        def search(self, text, k):
            asked.append((text, k))
            return [
                SimpleNamespace(document_id=one, rank=number)
                for number, one in enumerate(hits, start=1)
            ]

    assert probe_newest_document(project, Finder(), collection.ledger_view) is None, (
        "a build brought none"
    )
    collection.receive([row("gone"), row("a"), row("b")], "api")
    collection.remove(["gone"], "api")
    collection.apply()
    found = probe_newest_document(project, Finder(), collection.ledger_view)
    assert asked == [("a", 10)]
    assert found["document"] == "a"
    assert found["rank"] == rank
    assert 0 <= found["lag"] < 60
    assert live_status(project, "hce")["newest"] == found
    (line,) = (
        line for line in live_status_lines(live_status(project, "hce")) if line.startswith("newest")
    )
    assert line == f"newest      a: searchable after {found['lag']:.1f} s, found {told} its title"
    open_build(project, BASE, retriever="other")
    assert live_status(project, "other")["newest"] is None
    collection.rewind(1)
    assert probe_newest_document(project, Finder(), collection.ledger_view) is None, (
        "nothing arrived by this generation"
    )


def test_ledger_url_is_relative_to_project(project, monkeypatch, tmp_path):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("FRESHET_LEDGER", "sqlite:///own/ledger.sqlite")
    collection_of(project).receive([row("a")], "api")
    assert (tmp_path / "own" / "ledger.sqlite").exists()
    assert not (project.live / "ledger.sqlite").exists()
    assert not list((tmp_path / "sub").iterdir())
    workspace = Project(tmp_path / ".freshet" / "retraining" / "k" / "project", home=project.root)
    assert ledger_url(workspace) == ledger_url(project)
    for absolute in (
        f"sqlite:///{tmp_path}/x.sqlite",
        "sqlite:///:memory:",
        "postgresql+psycopg://db/freshet",
    ):
        monkeypatch.setenv("FRESHET_LEDGER", absolute)
        assert ledger_url(project) == absolute


@pytest.fixture
def lost(project, collection, tmp_path):
    """Two documents are live, and the database was copied between them."""
    add(collection, row("a"))
    collection.ledger.close()
    shutil.copyfile(project.live / "ledger.sqlite", tmp_path / "copy.sqlite")
    add(collection, row("b"))
    collection.ledger.close()
    return project


@pytest.mark.parametrize("kind", ["gone", "older", "older, written to", "another"])
def test_writes_to_lost_ledger_are_refused_until_repair(lost, tmp_path, kind):
    file = lost.live / "ledger.sqlite"
    for path in lost.live.glob("ledger.sqlite*"):
        path.unlink()
    if kind.startswith("older"):
        shutil.copyfile(tmp_path / "copy.sqlite", file)
    if kind != "older" and kind != "gone":
        with open_ledger(lost) as ledger:
            ledger.receive([Document(name, name, "other") for name in "xyz"], "test")
    wanted = {"gone": "there is none here", "another": "this is another log"}.get(
        kind, "this is an older copy of it"
    )
    live = collection_of(lost)
    for write in (
        lambda: live.receive([row("c")], "api"),
        lambda: live.remove(["a"], "api"),
        live.apply,
        live.compact,
        lambda: live.revert(0),
        lambda: live.rewind(0),
        lambda: live.collect_garbage(keep=3),
        live.recover,
    ):
        with pytest.raises(
            FreshetError, match=f"holds the documents up to event 2 of its ledger, but {wanted}"
        ) as raised:
            write()
        consent = " --adopt" if kind == "another" else ""
        assert f"freshet repair{consent}, which keeps all documents" in str(raised.value)
    assert file.exists() == (kind != "gone"), "to refuse makes no log"
    assert texts(lost, "abc") == {"a": "some text", "b": "some text"}
    if kind == "another":
        with pytest.raises(FreshetError, match="may be another project's"):
            repair(lost)
    assert repair(lost, adopt=kind == "another", open_index=lambda *_: live)
    assert texts(lost, "ab") == {"a": "some text", "b": "some text"}
    assert repair(lost, open_index=lambda *_: live) == [], "there is nothing to mend any more"
    add(live, row("c"), row("a", "new"))
    named = {} if kind in ("gone", "older") else dict.fromkeys("xyz", "other")
    assert texts(lost, "abcxyz") == {"a": "new", "b": "some text", "c": "some text", **named}


def test_ledger_replaced_while_open_is_detected(lost, tmp_path):
    live = collection_of(lost)
    assert live.apply() is None
    for path in lost.live.glob("ledger.sqlite*"):
        path.unlink()
    shutil.copyfile(tmp_path / "copy.sqlite", lost.live / "ledger.sqlite")
    with pytest.raises(FreshetError, match="an older copy of it"):
        live.receive([row("c")], "api")


def test_forty_looks_leave_no_file_open(project, collection):
    """As a sensor looks at every tick: what waits, what was asked for, the status."""
    receive(project, "a")
    collection.ledger.tasks.request(
        TaskKind.RETRAIN, "hce", EventRange(1, 1), "topics moved", requested_by="drift"
    )
    receive_inbox_and_request_tasks(project)
    gc.collect()
    gc.disable()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(40):
        receive_inbox_and_request_tasks(project)
        live_status(project, "hce")
        with open_ledger(project) as ledger:
            assert backlog_of(ledger, current(project))
        assert collection_of(project).existing_ids(["a"]) == {"a"}
    gc.enable()
    assert len(os.listdir("/proc/self/fd")) == before
