"""Guards the way of a document into the live collection: refusals, exactly once through crashes at every point between
ledger and pointer, rollbacks forwards and back, another build, and one writer at a time.
"""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta

import pytest

from model_code.documents import Remove
from model_code.errors import FreshetError
from model_code.ledger.work import EventRange, Kind
from model_code.live.collection import Collection
from orchestration.ledgers import ledger_url
from orchestration.live.collection import forecast
from orchestration.live.rows import read_file
from orchestration.live_status import live_status_lines
from orchestration.project import Project
from tests.orchestration.live_example import BASE, collection_of, make_project, open_build, texts


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    return make_project(tmp_path)


@pytest.fixture
def collection(project):
    return collection_of(project)


def row(document_id: str, text: str = "some text", **more) -> dict:
    return {"id": document_id, "title": document_id, "text": text, **more}


def current(project: Project):
    return Collection(project.live, "hce").current()


def states(collection) -> dict[str, int]:
    return {state: number for state, number in collection.ledger.counts().items() if number}


def two_pending_below_the_watermark(project, collection) -> None:
    """The generation lacks y and z, which a branch of another build held, and goes up to event 4."""
    collection.receive([row("x", "1"), row("y"), row("z")], "api")
    collection.apply()
    collection.rollback(0)
    collection.receive([row("x", "2")], "api")
    collection.apply()
    open_build(project, BASE)
    other = collection.apply().generation.number
    collection.rollback(1)
    Collection(project.live, "hce").switch(other)


def test_documents_become_searchable_and_twice_the_same_changes_nothing(project, collection):
    receipt = collection.receive([row("a"), row("str.split", "Split differently.")], "api")
    assert (receipt.received, receipt.unchanged, receipt.rejected, len(receipt.events)) == (2, 0, (), 2)
    applied = collection.apply()
    assert (applied.added, applied.updated) == (("a",), ("str.split",))
    assert texts(project, ["a", *BASE]) == {"a": "some text", "numpy.sort": BASE["numpy.sort"],
                                             "str.split": "Split differently."}  # fmt: skip
    assert applied.generation.watermark == 2
    assert applied.generation.manifest["provenance"] == {"sources": ["api"], "events": [1, 2]}
    assert collection.receive([row("a"), row("str.split", "Split differently.")], "file").unchanged == 2
    assert collection.apply() is None
    assert collection.ledger.history("a")[0].reason == "added"


def test_rows_are_cleaned_and_refused_by_the_corpus_rules(collection):
    rows = [
        {"_id": 7, "title": "Two\n lines", "text": "Cafe\u0301\x00 ", "package": "x"},
        row("b", "   "),
        {"title": "no id", "text": "x"},
        row("c", 5),
        row("d", queries=["  what\tis d? ", ""], fields={"package": "y"}),
        row("e", queries=[1]),
    ]
    receipt = collection.receive(rows, "api")
    assert [(one.row, one.document_id, one.reason.partition(":")[0]) for one in receipt.rejected] == [
        (2, "b", "empty text"), (3, None, "missing id"), (4, "c", "wrong type"),
        (6, "e", "wrong type"),
    ]  # fmt: skip
    first, second = collection.ledger.pending()
    assert first.document_id == "7"
    assert first.payload == {"title": "Two lines", "text": "Café", "fields": {"package": "x"}, "queries": []}
    assert (second.payload["queries"], second.payload["fields"]) == (["what is d?"], {"package": "y"})
    assert collection.ledger.counts()["rejected"] == 4


def test_a_file_is_read_like_a_source(collection, tmp_path):
    path = tmp_path / "more.csv"
    path.write_text("_id,title,text,package\na,A,some words,numpy\nb,B\n")
    receipt = collection.receive(read_file(path), "more.csv")
    assert [one.reason for one in receipt.rejected] == ["bad line: 2 cells under 4 columns"]
    assert collection.ledger.pending()[0].payload["fields"] == {"package": "numpy"}
    with pytest.raises(FreshetError, match="unknown format"):
        collection.receive(read_file(tmp_path / "params.yaml"), "params.yaml")
    with pytest.raises(FreshetError, match="is not a file"):
        collection.receive(read_file(tmp_path / "absent.csv"), "absent.csv")


def test_removing_takes_ids_of_the_base_and_of_the_ledger_and_refuses_others(project, collection):
    collection.receive([row("a"), row("b")], "api")
    collection.apply()
    collection.receive([row("waiting")], "api")
    receipt = collection.remove(["a", "numpy.sort", "nothing", "waiting"], "cli")
    assert [(one.document_id, one.reason.partition(":")[0]) for one in receipt.rejected] == [("nothing", "unknown id")]
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


def test_pending_documents_can_be_applied_in_batches(project, collection):
    collection.receive([row(one) for one in "abcde"], "api")
    assert collection.apply(limit=2).added == ("a", "b")
    assert states(collection) == {"pending": 3, "live": 2}
    assert collection.apply(limit=9).added == ("c", "d", "e")
    assert current(project).watermark == 5


def test_a_crash_before_the_switch_loses_nothing(project, collection, monkeypatch):
    collection.receive([row("a")], "api")
    monkeypatch.setattr(collection.writer, "apply", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collection.apply()
    assert states(collection) == {"pending": 1}
    assert collection_of(project).apply().added == ("a",)


def test_a_crash_after_the_switch_doubles_nothing(project, collection, monkeypatch):
    collection.receive([row("a"), row("b")], "api")
    monkeypatch.setattr(collection.ledger, "settle", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collection.apply(limit=1)
    assert texts(project, "ab") == {"a": "some text"}
    after = collection_of(project)
    assert [event.document_id for event in after.ledger.pending()] == ["a", "b"]
    assert after.apply().added == ("b",)
    assert states(after) == {"live": 2}
    assert [event.generation for one in "ab" for event in after.ledger.history(one)] == [1, 2]


def test_a_crash_between_switch_and_ledger_of_a_compaction_or_rollback_is_reconciled(project, collection, monkeypatch):
    collection.receive([row("a")], "api")
    collection.apply()
    collection.writer.compact()
    collection.reconcile()
    assert collection.ledger.position().generation == current(project).number == 2
    assert states(collection) == {"live": 1}
    Collection(project.live, "hce").switch(0)  # someone rolled back without telling
    collection.reconcile()
    assert states(collection) == {"rolled_back": 1}


def test_rolling_back_and_forward(project, collection):
    collection.receive([row("a", "1")], "api")
    first = collection.apply().generation.number
    collection.receive([row("a", "2"), row("b")], "api")
    second = collection.apply().generation.number
    assert collection.rollback(first).number == first
    assert texts(project, "ab") == {"a": "1"}
    assert states(collection) == {"live": 1, "rolled_back": 2}
    assert collection.apply() is None
    collection.rollback(second)
    assert texts(project, "ab") == {"a": "2", "b": "some text"}
    assert states(collection) == {"live": 2, "superseded": 1}
    with pytest.raises(FreshetError, match="no generation 9"):
        collection.rollback(9)
    assert current(project).number == second


def test_what_was_rolled_back_comes_again_if_it_is_added_again(project, collection):
    collection.receive([row("a")], "api")
    collection.apply()
    collection.rollback(0)
    assert texts(project, "a") == {}
    assert len(collection.receive([row("a")], "api").events) == 1
    collection.apply()
    assert texts(project, "a") == {"a": "some text"}


def test_another_build_gets_what_it_lacks(project, collection):
    collection.receive([row("a"), row("b")], "api")
    collection.apply()
    collection.receive([row("c")], "api")
    collection.apply()
    open_build(project, BASE | {"a": "some text", "b": "some text"}, watermark=2)  # retrained on a snapshot up to 2
    assert collection.apply().added == ("c",)
    assert texts(project, ["a", "b", "c", *BASE]).keys() == {"a", "b", "c", *BASE}
    assert states(collection) == {"absorbed": 2, "live": 1}
    Collection(project.live, "hce").switch(0)  # the champion before it is champion again
    assert collection.apply().added == ("a", "b", "c")
    assert states(collection) == {"live": 3}


def test_events_before_the_watermark_are_applied_together(project, collection):
    two_pending_below_the_watermark(project, collection)
    assert collection.apply(limit=1).added == ("y", "z")
    assert texts(project, "xyz") == {"x": "2", "y": "some text", "z": "some text"}
    assert current(project).watermark == 4


def test_a_collection_that_had_generations_before_its_ledger(project, collection):
    open_build(project, BASE | {"x": "y"})
    collection.receive([row("a")], "api")
    assert collection.apply().generation.manifest["parent"] == 1


def test_compaction_keeps_everything_settled(project, collection):
    collection.receive([row("a")], "api")
    collection.apply()
    number = collection.compact().number
    collection.receive([row("b")], "api")
    collection.apply()
    assert states(collection) == {"live": 2}
    collection.rollback(number)
    assert states(collection) == {"live": 1, "rolled_back": 1}


def test_writers_in_threads_apply_each_event_once(project):
    added: list[str] = []

    def work(worker: int) -> None:
        own = collection_of(project)
        for number in range(4):
            own.receive([row(f"{worker}-{number}")], "api")
            applied = own.apply()
            added.extend(applied.added if applied else ())

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = sorted(f"{worker}-{number}" for worker in range(3) for number in range(4))
    assert sorted(added) == everything
    assert sorted(texts(project, everything)) == everything


def test_a_forecast_is_what_then_happens(project, collection):
    collection.receive([row("a"), row("b")], "api")
    collection.apply()
    collection.receive([row("waiting"), row("a", "new")], "api")
    rows = [row("a", "new"), row("b"), row("c"), row("waiting", "2"), row("numpy.sort", BASE["numpy.sort"]),
            row("str.split", "2"), row("c", "2")]  # fmt: skip
    documents = collection.clean(rows, "x").documents
    before = collection.ledger.watermark()
    told = forecast(current(project), documents)
    assert collection.ledger.watermark() == before
    collection.ledger.receive(documents, "x")
    then = collection.apply()
    assert told == {
        "added": ["c", "waiting"], "updated": ["a", "str.split"], "deleted": [], "unchanged": ["b", "numpy.sort"]
    }  # fmt: skip
    assert (told["added"], told["updated"]) == (sorted(then.added), sorted(then.updated))
    assert forecast(current(project), [Remove("b"), Remove("absent"), *documents[:1], Remove("a")]) == {
        "added": [], "updated": [], "deleted": ["a", "b"], "unchanged": ["absent"]
    }  # fmt: skip


def test_status_reads_only_and_tells_states_lag_and_drift(project, collection):
    assert collection.status() == {"retriever": "hce", "generation": 0, "watermark": 0, "ledger": None}
    assert list(live_status_lines(collection.status())) == []
    assert not (project.live / "ledger.sqlite").exists()
    collection.receive([row("a"), row("b", "")], "api")
    collection.apply()
    collection.receive([row("c")], "api")
    report = {"measures": [{"name": "auc", "value": 0.61234, "threshold": 0.7}]}
    report["decision"] = {"action": "add", "reasons": ["auc below its threshold"]}
    collection.ledger.record_drift(report, (1, 1))
    collection.ledger.work.ask(Kind.PILOT, "hce", EventRange(1, 1), "who knows", asked_by="drift")
    status = json.loads(json.dumps(collection.status()))
    assert status["ledger"]["documents"] | {"pending": 1, "live": 1, "rejected": 1} == status["ledger"]["documents"]
    assert list(live_status_lines(status)) == [
        "documents   1 pending, 1 live, 1 rejected (after event 1)",
        "lag         1 waiting, the oldest for 0 s",
        "drift       auc 0.612 (threshold 0.7)",
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


def test_another_database_can_be_named(project, monkeypatch, tmp_path):
    monkeypatch.setenv("FRESHET_LEDGER", f"sqlite:///{tmp_path}/elsewhere.sqlite")
    collection_of(project).receive([row("a")], "api")
    assert (tmp_path / "elsewhere.sqlite").exists()
    assert not (project.live / "ledger.sqlite").exists()


def test_a_relative_file_of_sqlite_is_meant_from_the_project(project, monkeypatch, tmp_path):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("FRESHET_LEDGER", "sqlite:///own/ledger.sqlite")
    collection_of(project).receive([row("a")], "api")
    assert (tmp_path / "own" / "ledger.sqlite").exists()
    assert not list((tmp_path / "sub").iterdir())
    workspace = Project(tmp_path / ".freshet" / "retraining" / "k" / "project", home=project.root)
    assert ledger_url(workspace) == ledger_url(project)
    for absolute in (f"sqlite:///{tmp_path}/x.sqlite", "sqlite:///:memory:", "postgresql+psycopg://db/freshet"):
        monkeypatch.setenv("FRESHET_LEDGER", absolute)
        assert ledger_url(project) == absolute


def test_a_ledger_that_did_not_fill_the_collection_is_refused(project, monkeypatch, tmp_path):
    before = collection_of(project)
    before.receive([row("a"), row("b")], "api")
    before.apply()
    monkeypatch.setenv("FRESHET_LEDGER", f"sqlite:///{tmp_path / 'new.sqlite'}")
    with pytest.raises(FreshetError, match=r"holds events up to 2 of its ledger, but this ledger ends at 0"):
        collection_of(project).receive([row("c")], "api")
    assert texts(project, ["a", "b", "c"]) == {"a": "some text", "b": "some text"}


def test_events_of_a_watermark_go_together_and_others_are_not_read(project, collection, monkeypatch):
    collection.receive([row(str(i)) for i in range(5)], "api")
    asked, real = [], type(collection.ledger).pending

    def pending(self, limit=None):
        asked.append(limit)
        return real(self, limit)

    monkeypatch.setattr(type(collection.ledger), "pending", pending)
    assert len(collection.apply(2).added) == 2
    assert asked == [2]


def test_what_waits_below_the_watermark_is_searchable_when_a_merge_calls_it_live(project, collection):
    two_pending_below_the_watermark(project, collection)
    collection.compact()
    assert texts(project, "xyz") == {"x": "2", "y": "some text", "z": "some text"}
    assert collection.ledger.pending() == []


def test_nor_does_a_merge_that_is_cut_off_claim_it(project, collection):
    two_pending_below_the_watermark(project, collection)
    compact = collection.writer.compact
    collection.writer.compact = lambda: compact() and 1 / 0  # after its switch
    with pytest.raises(ZeroDivisionError):
        collection.compact()
    collection.reconcile()
    assert texts(project, "xyz") == {"x": "2", "y": "some text", "z": "some text"}
    assert collection.ledger.pending() == []


def test_a_rollback_that_is_refused_is_not_announced_any_longer(project, collection):
    with pytest.raises(FreshetError, match="no generation 1"):
        collection.rollback(1)
    assert not (project.live / "hce" / "rollback").exists()


def test_a_forecast_tells_what_a_rollback_that_was_cut_off_took_away(project, collection, monkeypatch):
    collection.receive([row("a")], "api")
    collection.apply()
    monkeypatch.setattr(collection.ledger, "roll_back", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collection.rollback(0)
    documents = collection.clean([row("a")], "x").documents
    assert forecast(current(project), documents)["added"] == ["a"]
