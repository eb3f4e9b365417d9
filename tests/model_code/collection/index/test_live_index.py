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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from model_code.collection.backup.repair import repair
from model_code.collection.generations import generation
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

ALL_WAYS_TO_LOSE = ["gone", "older", "older, written to", "another"]


class WriterKilledError(Exception):
    """The writer stops in the middle of its work."""


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


@pytest.fixture
def collection(project):
    return collection_of(project)


def current(project: Project):
    return GenerationStore(project.live, "hce").current()


def states(collection) -> dict[str, int]:
    """Return how many events have each state, without the states that no event has."""
    return {
        str(state): number for state, number in collection.ledger_view.counts().items() if number
    }


def rejected_ids(receipt) -> list[tuple[int, str]]:
    """Return the row and the document id of each refusal."""
    return [(rejection.row, rejection.document_id) for rejection in receipt.rejected]


def reasons(receipt) -> list[str]:
    """Return the reason of each refusal, without its details."""
    return [rejection.reason.partition(":")[0] for rejection in receipt.rejected]


@contextmanager
def killed_at(step: str) -> Iterator[None]:
    """Stop the writer of the block at a step of the generation store."""

    def stop(*_arguments, **_options):
        raise WriterKilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GenerationStore, step, stop)
        with pytest.raises(WriterKilledError):
            yield


def test_impossible_ids_are_refused_and_shortened(project, collection):
    outcome = delete_documents(collection, ["caf\udce9", "numpy.sort", "x" * 1_000_000])

    assert outcome.deleted == ["numpy.sort"]
    assert [refused["document_id"] for refused in outcome.rejected] == ["caf?", "x" * 120]
    # The report can be written to a terminal.
    str(outcome).encode()


def test_new_and_changed_documents_become_searchable(project, collection):
    receipt = collection.receive([row("a"), row("str.split", "Split differently.")], "api")
    applied = collection.apply()

    assert receipt.received == 2
    assert receipt.unchanged == 0
    assert receipt.rejected == ()
    assert len(receipt.events) == 2
    assert applied.added == ("a",)
    assert applied.updated == ("str.split",)
    assert applied.generation.watermark == 2
    assert applied.generation.manifest["provenance"] == {"sources": ["api"], "events": [1, 2]}
    assert texts(project, ["a", *BASE]) == {
        "a": "some text",
        "numpy.sort": BASE["numpy.sort"],
        "str.split": "Split differently.",
    }


def test_adding_a_document_twice_changes_nothing(collection):
    rows = [row("a"), row("str.split", "Split differently.")]
    add(collection, *rows)

    receipt = collection.receive(rows, "file")

    assert receipt.unchanged == 2
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

    assert receipt.received == len(rows)
    assert receipt.unchanged == 0
    assert len(receipt.events) == 2
    assert rejected_ids(receipt) == [(2, "b"), (3, None), (4, "c"), (6, "e")]
    assert reasons(receipt) == ["empty text", "missing id", "wrong type", "wrong type"]
    assert collection.ledger_view.counts()["rejected"] == 4
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


def test_remove_accepts_only_known_ids(project, collection):
    add(collection, row("a"), row("b"))
    collection.receive([row("waiting")], "api")

    receipt = collection.remove(["a", "numpy.sort", "nothing", "waiting"], "cli")
    applied = collection.apply()

    assert [rejection.document_id for rejection in receipt.rejected] == ["nothing"]
    assert reasons(receipt) == ["unknown id"]
    assert len(receipt.events) == 3
    assert applied.deleted == ("a", "numpy.sort")
    assert texts(project, ["a", "b", "waiting", *BASE]).keys() == {"b", "str.split"}


def test_removing_a_document_twice_changes_nothing(collection):
    add(collection, row("a"))
    collection.remove(["a"], "cli")
    collection.apply()

    receipt = collection.remove(["a"], "cli")

    assert receipt.unchanged == 1


def test_writes_without_conditions_read_no_indexed_document(collection, monkeypatch):
    add(collection, row("a"))

    def refuse(path: Path) -> None:
        raise AssertionError(f"opens {path}")

    monkeypatch.setattr(generation, "DocumentFile", refuse)

    assert len(collection.receive([row("b")], "api").events) == 1
    assert len(collection.remove(["a"], "api").events) == 1


def test_only_known_documents_can_be_updated(collection):
    collection.receive([row("waiting")], "api")
    rows = [row("bad", ""), row("waiting", "2"), row("numpy.sort", "2"), row("x")]

    receipt = collection.receive(rows, "api", only_known=True)

    assert rejected_ids(receipt) == [(1, "bad"), (4, "x")]
    assert len(receipt.events) == 2


def test_pending_documents_are_applied_in_batches(project, collection):
    collection.receive([row(document_id) for document_id in "abcde"], "api")

    first = collection.apply(limit=2)
    states_between = states(collection)
    next_events = collection.ledger_view.pending(2).events
    second = collection.apply(limit=9)

    assert first.added == ("a", "b")
    assert states_between == {"pending": 3, "live": 2}
    assert len(next_events) == 2
    assert second.added == ("c", "d", "e")
    assert current(project).watermark == 5


@pytest.fixture
def history(collection):
    """A collection with three generations after the build.

    The first adds `a` and changes `numpy.sort`, the second changes both and adds `b`, and the third
    deletes `a`.
    """
    add(collection, row("a", "1"), row("numpy.sort", "1"))
    add(collection, row("a", "2"), row("b"), row("numpy.sort", "2"))
    collection.remove(["a"], "api")
    collection.apply()
    return collection


def test_revert_restores_the_documents_of_a_generation(project, history):
    generation = history.revert(1)

    assert generation.number == 4
    assert generation.manifest["provenance"]["reverted_to"] == 1
    assert texts(project, ["a", "b", "numpy.sort"]) == {"a": "1", "numpy.sort": "1"}
    assert states(history) == {"live": 2, "rolled_back": 4}
    assert history.ledger.last_revert().current == 3


def test_reverted_changes_are_not_applied_again(history):
    history.revert(1)

    assert history.apply() is None


def test_revert_can_be_reverted(project, history):
    history.revert(1)

    history.revert(2)

    assert texts(project, ["a", "b", "numpy.sort"]) == {
        "a": "2",
        "b": "some text",
        "numpy.sort": "2",
    }
    assert states(history) == {"live": 3, "superseded": 2, "rolled_back": 1}


def test_revert_to_the_build_restores_its_documents(project, history):
    history.revert(1)
    history.revert(2)

    history.revert(0)

    assert texts(project, ["a", "b", *BASE]) == BASE


def test_revert_to_a_missing_generation_is_refused(history):
    for number in (1, 2, 0):
        history.revert(number)

    with pytest.raises(FreshetError, match="no generation 9; there are: 0, 1, 2, 3, 4, 5, 6"):
        history.revert(9)


def test_revert_to_the_current_generation_makes_none(project, history):
    number = current(project).number

    generation = history.revert(number)

    assert generation.number == number
    assert current(project).number == number


def test_pending_changes_survive_a_revert(project, collection):
    add(collection, row("a"))
    receipt = collection.receive([row("waiting"), row("a", "2")], "api")

    collection.revert(0)
    texts_between = texts(project, ["a", "waiting"])
    states_between = states(collection)
    applied = collection.apply()

    assert texts_between == {}
    assert states_between == {"pending": 2, "rolled_back": 1}
    assert applied.added == ("a", "waiting")
    assert texts(project, ["a", "waiting"]) == {"a": "2", "waiting": "some text"}
    events = collection.ledger_view.events(*receipt.events)
    assert [event.state for event in events] == ["live", "live"]


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
def test_revert_killed_after_commit_is_completed(project, collection, step):
    add(collection, row("a"))
    collection.receive([row("b")], "api")
    with killed_at(step):
        collection.revert(0)
    texts_after_kill = texts(project, "ab")

    next_writer = collection_of(project)
    applied = next_writer.apply()

    # Until the next writer comes, the old generation is searched.
    assert texts_after_kill == {"a": "some text"}
    assert applied.added == ("b",)
    assert texts(project, "ab") == {"b": "some text"}
    assert states(next_writer) == {"live": 1, "rolled_back": 1}
    numbers = [generation.number for generation in next_writer.store.generations()]
    assert numbers == [0, 1, 2, 3]


def test_repeated_revert_after_kill_reverts_once(project, collection):
    add(collection, row("a"))
    with killed_at("publish_again"):
        collection.revert(0)
    collection.receive([row("b")], "api")

    next_writer = collection_of(project)
    next_writer.revert(0)
    applied = next_writer.apply()

    assert applied.added == ("b",)
    assert texts(project, "ab") == {"b": "some text"}


def test_revert_to_a_damaged_generation_is_refused(project, collection):
    first = add(collection, row("a")).generation
    add(collection, row("b"))
    (first.folder / "documents.safetensors").write_bytes(b"nonsense")
    event_before = collection.ledger.position().event

    with pytest.raises(FreshetError, match="documents.safetensors was changed"):
        collection.revert(1)

    assert collection.ledger.position().event == event_before


def test_leftovers_of_killed_writer_are_removed(project, collection):
    collection.receive([row("a")], "api")
    with killed_at("set_current"):
        collection.apply()
    generations_after_kill = collection.store.generations()
    states_after_kill = states(collection)

    collection.collect_garbage(keep=9)

    assert len(generations_after_kill) == 2
    assert states_after_kill == {"pending": 1}
    assert len(collection.store.generations()) == 1
    assert collection_of(project).apply().added == ("a",)


def test_compaction_keeps_the_states_of_events(project, collection):
    add(collection, row("a"))
    compacted = collection.compact()
    add(collection, row("b"))
    states_before = states(collection)

    collection.revert(compacted.number)

    assert states_before == {"live": 2}
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


def test_forecast_equals_the_changes_that_follow(project, collection):
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
    event_before = collection.ledger.position().event

    forecast = forecast_changes(current(project), documents)
    event_after = collection.ledger.position().event
    collection.ledger.receive(documents, "x")
    applied = collection.apply()

    assert event_after == event_before
    assert forecast == {
        "added": ["c", "waiting"],
        "updated": ["a", "str.split"],
        "deleted": [],
        "unchanged": ["b", "numpy.sort"],
    }
    assert forecast["added"] == sorted(applied.added)
    assert forecast["updated"] == sorted(applied.updated)


def test_forecast_counts_the_last_change_of_a_document(project, collection):
    add(collection, row("a"), row("b"))
    (document,) = collection.clean_rows([row("a", "new")], "x").documents

    changes = [Remove("b"), Remove("absent"), document, Remove("a")]
    forecast = forecast_changes(current(project), changes)

    assert forecast == {
        "added": [],
        "updated": [],
        "deleted": ["a", "b"],
        "unchanged": ["absent"],
    }


def test_status_makes_no_ledger(project):
    status = live_status(project, "hce")

    assert status == {
        "retriever": "hce",
        "generation": 0,
        "watermark": 0,
        "ledger": None,
        "newest": None,
        "refined": None,
    }
    assert list(live_status_lines(status)) == []
    assert not (project.live / "ledger.sqlite").exists()


@pytest.fixture
def status(project, collection):
    """The status of a collection with each kind of document, a drift report and a task.

    It went through JSON, as the status that a service sends.
    """
    add(collection, row("a"), row("b", "", title=""))
    collection.receive([row("c")], "api")
    measure = {"name": "auc", "value": 0.61234, "threshold": 0.6, "tripped": True}
    decision = {"action": "add", "reasons": ["auc below its threshold"]}
    report = {"measures": [measure], "decision": decision}
    collection.ledger.record_drift_report(report, (1, 1))
    collection.ledger.tasks.request(
        TaskKind.PILOT, "hce", EventRange(1, 1), "who knows", requested_by="drift"
    )
    return json.loads(json.dumps(live_status(project, "hce")))


def test_status_counts_documents(status):
    documents = status["ledger"]["documents"]

    assert documents["pending"] == 1
    assert documents["live"] == 1
    assert documents["rejected"] == 1


def test_status_lines_report_the_backlog(status):
    lines = [re.sub(r"for \d+ s$", "for 0 s", line) for line in live_status_lines(status)]

    assert lines == [
        "arrived     1 pending, 1 live, 1 rejected (after event 1)",
        "lag         1 waiting, the oldest for 0 s",
        "drift       auc 0.612 is past its threshold 0.6",
        "decision    add: auc below its threshold",
        "work        pilot (open): who knows",
    ]


def test_status_has_the_times_of_its_entries(status):
    ledger = status["ledger"]
    moments = [
        ledger["drift"]["recorded"],
        ledger["work"][0]["asked"],
        ledger["rejections"][0]["received"],
    ]

    for moment in moments:
        age = datetime.now(UTC) - datetime.fromisoformat(moment)
        assert abs(age) < timedelta(minutes=1)


class FakeSearcher:
    """Find the same documents for every text, and record what was searched."""

    def __init__(self, project: Project, found_ids: str) -> None:
        self.project = project
        self.found_ids = found_ids
        self.searches: list[tuple[str, int]] = []

    @property
    def generation(self):
        return current(self.project)

    def search(self, text, k):
        self.searches.append((text, k))
        return [
            SimpleNamespace(document_id=document_id, rank=rank)
            for rank, document_id in enumerate(self.found_ids, start=1)
        ]


@pytest.fixture
def newest(collection):
    """A collection where `a` is the newest document that can still be found."""
    collection.receive([row("gone"), row("a"), row("b")], "api")
    collection.remove(["gone"], "api")
    collection.apply()
    return collection


@pytest.mark.parametrize(
    ("found_ids", "rank", "told"),
    [("xab", 2, "at rank 2 by"), ("x", None, "not among the first ten by")],
)
def test_newest_document_is_probed_by_title(project, newest, found_ids, rank, told):
    searcher = FakeSearcher(project, found_ids)

    probe = probe_newest_document(project, searcher, newest.ledger_view)

    assert searcher.searches == [("a", 10)]
    assert probe["document"] == "a"
    assert probe["rank"] == rank
    assert 0 <= probe["lag"] < 60
    status = live_status(project, "hce")
    assert status["newest"] == probe
    lines = [line for line in live_status_lines(status) if line.startswith("newest")]
    assert lines == [
        f"newest      a: searchable after {probe['lag']:.1f} s, found {told} its title"
    ]


def test_documents_of_a_build_are_not_probed(project, collection):
    searcher = FakeSearcher(project, "xab")

    assert probe_newest_document(project, searcher, collection.ledger_view) is None


def test_documents_after_the_generation_are_not_probed(project, newest):
    searcher = FakeSearcher(project, "xab")
    probe_newest_document(project, searcher, newest.ledger_view)

    newest.rewind(1)

    assert probe_newest_document(project, searcher, newest.ledger_view) is None


def test_probe_belongs_to_its_retriever(project, newest):
    probe_newest_document(project, FakeSearcher(project, "xab"), newest.ledger_view)

    open_build(project, BASE, retriever="other")

    assert live_status(project, "other")["newest"] is None


def test_ledger_url_is_relative_to_project(project, monkeypatch, tmp_path):
    working_directory = tmp_path / "sub"
    working_directory.mkdir()
    monkeypatch.chdir(working_directory)
    monkeypatch.setenv("FRESHET_LEDGER", "sqlite:///own/ledger.sqlite")

    collection_of(project).receive([row("a")], "api")

    assert (tmp_path / "own" / "ledger.sqlite").exists()
    assert not (project.live / "ledger.sqlite").exists()
    assert not list(working_directory.iterdir())


def test_workspace_uses_the_ledger_of_its_project(project, monkeypatch, tmp_path):
    monkeypatch.setenv("FRESHET_LEDGER", "sqlite:///own/ledger.sqlite")
    folder = tmp_path / ".freshet" / "retraining" / "k" / "project"

    workspace = Project(folder, home=project.root)

    assert ledger_url(workspace) == ledger_url(project)


@pytest.mark.parametrize(
    "url",
    ["sqlite:////data/x.sqlite", "sqlite:///:memory:", "postgresql+psycopg://db/freshet"],
)
def test_absolute_ledger_url_is_kept(project, monkeypatch, url):
    monkeypatch.setenv("FRESHET_LEDGER", url)

    assert ledger_url(project) == url


@pytest.fixture
def lost(project, collection, tmp_path):
    """Two documents are live, and the database was copied between them."""
    add(collection, row("a"))
    collection.ledger.close()
    shutil.copyfile(project.live / "ledger.sqlite", tmp_path / "copy.sqlite")
    add(collection, row("b"))
    collection.ledger.close()
    return project


def lose_ledger(project: Project, way: str) -> None:
    """Remove the ledger of `lost`, or put its old copy or another ledger in its place."""
    for path in project.live.glob("ledger.sqlite*"):
        path.unlink()
    if way.startswith("older"):
        shutil.copyfile(project.root / "copy.sqlite", project.live / "ledger.sqlite")
    if way in ("older, written to", "another"):
        with open_ledger(project) as ledger:
            ledger.receive([Document(name, name, "other") for name in "xyz"], "test")


def list_writes(live) -> list[Callable[[], object]]:
    """Return one call of each method that writes."""
    return [
        partial(live.receive, [row("c")], "api"),
        partial(live.remove, ["a"], "api"),
        live.apply,
        live.compact,
        partial(live.revert, 0),
        partial(live.rewind, 0),
        partial(live.collect_garbage, keep=3),
        live.recover,
    ]


def repair_ledger(live, way: str) -> list[str]:
    """Repair the ledger that an index lost in a way; return the lines of the repair."""

    def open_index(*_arguments):
        return live

    return repair(live.project, adopt=way == "another", open_index=open_index)


@pytest.mark.parametrize(
    ("way", "explanation", "command"),
    [
        ("gone", "there is none here", "freshet repair"),
        ("older", "this is an older copy of it", "freshet repair"),
        ("older, written to", "this is an older copy of it", "freshet repair"),
        ("another", "this is another log", "freshet repair --adopt"),
    ],
)
def test_writes_to_lost_ledger_are_refused_until_repair(lost, way, explanation, command):
    lose_ledger(lost, way)
    live = collection_of(lost)
    refusal = f"holds the documents up to event 2 of its ledger, but {explanation}"

    for write in list_writes(live):
        with pytest.raises(FreshetError, match=refusal) as raised:
            write()
        assert f"{command}, which keeps all documents" in str(raised.value)
    assert texts(lost, "abc") == {"a": "some text", "b": "some text"}

    repair_ledger(live, way)
    assert add(live, row("c")).added == ("c",)


@pytest.mark.parametrize("way", ALL_WAYS_TO_LOSE)
def test_refused_write_makes_no_ledger(lost, way):
    lose_ledger(lost, way)

    for write in list_writes(collection_of(lost)):
        with pytest.raises(FreshetError):
            write()

    assert (lost.live / "ledger.sqlite").exists() == (way != "gone")


@pytest.mark.parametrize("way", ALL_WAYS_TO_LOSE)
def test_repair_of_lost_ledger_keeps_the_documents(lost, way):
    lose_ledger(lost, way)

    repaired = repair_ledger(collection_of(lost), way)

    assert repaired
    assert texts(lost, "ab") == {"a": "some text", "b": "some text"}


@pytest.mark.parametrize("way", ALL_WAYS_TO_LOSE)
def test_repaired_ledger_needs_no_second_repair(lost, way):
    lose_ledger(lost, way)
    live = collection_of(lost)
    repair_ledger(live, way)

    # The second repair does not adopt another ledger.
    assert repair_ledger(live, "older") == []


@pytest.mark.parametrize(
    ("way", "documents_of_ledger"),
    [
        ("gone", ""),
        ("older", ""),
        ("older, written to", "xyz"),
        ("another", "xyz"),
    ],
)
def test_repaired_ledger_accepts_documents(lost, way, documents_of_ledger):
    lose_ledger(lost, way)
    live = collection_of(lost)
    repair_ledger(live, way)

    add(live, row("c"), row("a", "new"))

    expected = {"a": "new", "b": "some text", "c": "some text"}
    expected.update(dict.fromkeys(documents_of_ledger, "other"))
    assert texts(lost, "abcxyz") == expected


def test_ledger_of_another_project_is_adopted_only_on_request(lost):
    lose_ledger(lost, "another")

    with pytest.raises(FreshetError, match="may be another project's"):
        repair(lost)


def test_ledger_replaced_while_open_is_detected(lost):
    live = collection_of(lost)
    assert live.apply() is None

    lose_ledger(lost, "older")

    with pytest.raises(FreshetError, match="an older copy of it"):
        live.receive([row("c")], "api")


@pytest.fixture
def no_garbage_collection():
    """Keep files open that nothing closes, so that the test can count them."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def look_once(project: Project) -> None:
    """Read all that a sensor reads at every tick: what waits, what was requested, the status."""
    receive_inbox_and_request_tasks(project)
    live_status(project, "hce")
    with open_ledger(project) as ledger:
        assert backlog_of(ledger, current(project))
    assert collection_of(project).existing_ids(["a"]) == {"a"}


@pytest.mark.usefixtures("no_garbage_collection")
def test_repeated_looks_leave_no_file_open(project, collection):
    receive(project, "a")
    collection.ledger.tasks.request(
        TaskKind.RETRAIN, "hce", EventRange(1, 1), "topics moved", requested_by="drift"
    )
    receive_inbox_and_request_tasks(project)
    files_before = len(os.listdir("/proc/self/fd"))

    for _ in range(10):
        look_once(project)

    assert len(os.listdir("/proc/self/fd")) == files_before
