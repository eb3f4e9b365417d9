"""Guards the ledger: exactly once, states of events over settling, rolling back and retraining, batches, questions.

Run: python -m pytest tests/model_code/ledger
"""

from __future__ import annotations

import itertools
import random
import threading

import pytest
from sqlalchemy.exc import StatementError

from model_code.documents import Document
from model_code.ledger.ledger import Ledger
from model_code.ledger.records import STATES, Made, Rejection

NUMBERS = itertools.count()


def put(document_id: str, text: str = "text", **more) -> Document:
    return Document(document_id, "title", text, **more)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    """Where a new ledger may be made: each test is run on both databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/live/ledger.sqlite"
    fresh = request.getfixturevalue("postgresql")
    return f"postgresql+psycopg://{fresh(f'ledger_{next(NUMBERS)}')}"


@pytest.fixture
def ledger(url):
    """A ledger that knows generation 0, a whole build."""
    opened = Ledger.open(url, "hce")
    opened.register([Made(0, None, 0, 0)])
    opened.reopen(0)
    yield opened
    opened.close()


def states(ledger: Ledger) -> dict[str, int]:
    return {state: number for state, number in ledger.counts().items() if number}


def life(ledger: Ledger, document_id: str) -> list[str]:
    return [event.state for event in ledger.history(document_id)]


def test_new_documents_are_pending_in_the_order_of_their_arrival(ledger):
    receipt = ledger.receive([put("b"), put("a", queries=("what",), fields={"x": [1]}, date="2025-01-01")], "api")
    assert (receipt.received, receipt.unchanged, receipt.rejected) == (2, 0, ())
    first, second = ledger.pending()
    assert (first.document_id, second.document_id) == ("b", "a")
    assert receipt.events == (first.id, second.id)
    assert first.id < second.id == ledger.watermark()
    assert second.payload == {"title": "title", "text": "text", "fields": {"x": [1]}, "queries": ["what"],
                              "date": "2025-01-01"}  # fmt: skip
    assert [event.document_id for event in ledger.pending(1)] == ["b"]


def test_equal_content_changes_nothing_whether_pending_or_live(ledger):
    first = ledger.receive([put("a")], "api")
    assert ledger.receive([put("a"), put("a")], "file").unchanged == 2
    ledger.settle(first.events[-1], 1, {})
    assert ledger.receive([put("a")], "api").events == ()
    assert life(ledger, "a") == ["live"]


@pytest.mark.parametrize("other", [put("a", "new"), put("a", queries=("q",)), put("a", fields={"n": 1})])
def test_any_other_content_is_a_new_event(ledger, other):
    ledger.receive([put("a")], "api")
    assert len(ledger.receive([other], "api").events) == 1


def test_of_a_repeated_id_within_a_batch_the_last_counts_and_the_batch_again_changes_nothing(ledger):
    batch = [put("a", "1"), put("b"), put("a", "2"), put("a", "2"), put("a", "3"), put("c")]
    receipt = ledger.receive(batch, "api")
    assert (receipt.received, len(receipt.events), receipt.unchanged) == (6, 3, 3)
    assert [(event.document_id, event.payload["text"]) for event in ledger.pending()] == [
        ("b", "text"), ("a", "3"), ("c", "text")
    ]  # fmt: skip
    assert ledger.receive(batch, "api").events == ()
    ledger.settle(receipt.events[-1], 1, {})
    assert ledger.receive(batch, "api").events == ()


def test_settling_tells_each_documents_last_event_from_earlier_ones(ledger):
    ledger.receive([put("a"), put("b")], "api")
    ledger.settle(2, 1, {"a": "encoded"})
    ledger.receive([put("a", "new")], "api")
    ledger.remove(["b", "base"], "cli")
    ledger.settle(5, 2, {})
    assert states(ledger) == {"live": 1, "deleted": 2, "superseded": 2}
    old, new = ledger.history("a")
    assert (old.state, old.reason, old.generation) == ("superseded", "encoded", 1)
    assert (new.state, new.reason, new.generation) == ("live", None, 2)
    assert life(ledger, "b") == ["superseded", "deleted"]
    assert ledger.pending() == []


def test_settling_a_part_leaves_the_rest_pending(ledger):
    ledger.receive([put("a"), put("b"), put("c")], "api")
    ledger.settle(2, 1, {})
    assert [event.document_id for event in ledger.pending()] == ["c"]
    assert states(ledger) == {"pending": 1, "live": 2}
    assert (ledger.position().watermark, ledger.position().generation) == (2, 1)


def test_a_removal_counts_once_and_a_removed_document_can_come_back(ledger):
    ledger.receive([put("a")], "api")
    assert ledger.remove(["a", "a"], "cli").unchanged == 1
    assert ledger.remove(["a"], "cli").events == ()
    assert len(ledger.receive([put("a")], "api").events) == 1
    ledger.settle(3, 1, {})
    assert life(ledger, "a") == ["superseded", "superseded", "live"]


def test_rolling_back_restores_what_was_live_and_forward_again_what_was_undone(ledger):
    ledger.receive([put("a", "1"), put("b")], "api")
    ledger.settle(2, 1, {})
    ledger.receive([put("a", "2"), put("c")], "api")
    ledger.remove(["b"], "api")
    ledger.settle(5, 2, {})
    ledger.receive([put("d")], "api")
    ledger.roll_back(1)
    assert states(ledger) == {"pending": 1, "live": 2, "rolled_back": 3}
    assert life(ledger, "a") == ["live", "rolled_back"]
    assert life(ledger, "b") == ["live", "rolled_back"]
    assert [event.document_id for event in ledger.pending()] == ["d"]
    ledger.roll_back(2)
    assert life(ledger, "a") == ["superseded", "live"]
    assert life(ledger, "b") == ["superseded", "deleted"]
    assert states(ledger) == {"pending": 1, "live": 2, "superseded": 2, "deleted": 1}


def test_what_was_rolled_back_can_be_received_again(ledger):
    ledger.receive([put("a")], "api")
    ledger.settle(1, 1, {})
    ledger.roll_back(0)
    assert states(ledger) == {"rolled_back": 1}
    assert ledger.receive([put("a")], "api").events == (2,)
    ledger.settle(2, 2, {})
    assert life(ledger, "a") == ["rolled_back", "live"]
    ledger.roll_back(1)  # the other branch: it holds the first event, not the second
    assert life(ledger, "a") == ["live", "rolled_back"]


def test_an_unknown_generation_cannot_be_rolled_back_to(ledger):
    with pytest.raises(Exception, match="knows no generation 7 of 'hce'"):
        ledger.roll_back(7)
    assert ledger.position().generation == 0


def test_another_build_gets_the_events_that_it_lacks(ledger):
    ledger.receive([put("a"), put("b"), put("c")], "api")
    ledger.settle(2, 1, {})
    ledger.absorb("run-1", 2)
    assert states(ledger) == {"pending": 1, "absorbed": 2}
    ledger.register([Made(2, 1, 2, 2)])  # a retrained build from the snapshot up to event 2
    ledger.reopen(2)
    assert states(ledger) == {"pending": 1, "absorbed": 2}
    ledger.settle(3, 3, {})
    ledger.reopen(0)  # the champion was rolled back: nothing of this is in its build
    assert [event.document_id for event in ledger.pending()] == ["a", "b", "c"]
    assert ledger.receive([put("a")], "api").events == ()
    ledger.settle(3, 4, {})
    assert states(ledger) == {"live": 3}


def test_rolled_back_events_stay_so_when_the_build_changes(ledger):
    ledger.receive([put("a"), put("b")], "api")
    ledger.settle(1, 1, {})
    ledger.settle(2, 2, {})
    ledger.roll_back(1)
    ledger.register([Made(3, 1, 3, 0)])
    ledger.reopen(3)
    assert [event.document_id for event in ledger.pending()] == ["a"]
    assert life(ledger, "b") == ["rolled_back"]


def test_what_another_build_would_lack_can_be_asked_without_changing_anything(ledger):
    ledger.receive([put("a"), put("b"), put("c")], "api")
    ledger.settle(2, 1, {"a": "added"})
    made, before = [Made(2, 1, 2, 1)], ledger.between(0, 99)
    assert [event.document_id for event in ledger.lacking(2, made)] == ["b", "c"]
    assert [event.document_id for event in ledger.lacking(0)] == ["a", "b", "c"]
    assert (ledger.between(0, 99), ledger.position().generation, ledger.knows(2)) == (before, 1, False)
    assert len(ledger.receive([put("d")], "api").events) == 1, "writers are let in again"


def test_what_was_rolled_back_for_the_searched_retriever_is_so_in_the_one_that_takes_over(ledger, url):
    ledger.receive([put("a"), put("b"), put("c")], "api")
    ledger.settle(1, 1, {})
    ledger.settle(2, 2, {})
    ledger.roll_back(1)
    other = Ledger.open(url, "contrastive")
    other.register([Made(0, None, 0, 2)], "hce")  # retrained on what hce had: without b
    assert [event.document_id for event in other.lacking(0, searched="hce")] == ["c"]
    other.reopen(0, "hce")
    assert [life(other, one) for one in "abc"] == [["absorbed"], ["rolled_back"], ["pending"]]
    assert len(other.receive([put("b")], "api").events) == 1
    other.close()


def test_a_generation_tells_how_many_of_its_documents_were_rolled_back_since(ledger):
    ledger.receive([put("a"), put("b")], "api")
    ledger.settle(2, 1, {})
    ledger.receive([put("b", "2")], "api")
    ledger.settle(3, 2, {})
    ledger.roll_back(1)
    assert [ledger.undone_in(number) for number in (0, 1, 2, 9)] == [0, 0, 1, 0]
    ledger.roll_back(0)
    assert [ledger.undone_in(number) for number in (0, 1, 2)] == [0, 2, 2]
    assert ledger.undone_in(2, "another") == 2


def test_reopened_events_do_not_overtake_later_ones_of_their_document(ledger):
    ledger.receive([put("x", "1"), put("y")], "api")
    ledger.settle(2, 1, {})
    ledger.roll_back(0)
    ledger.receive([put("x", "2")], "api")
    ledger.settle(3, 2, {})
    ledger.register([Made(3, 2, 3, 0)])  # another build, which gets the third event only
    ledger.reopen(3)
    ledger.settle(3, 4, {})
    ledger.roll_back(1)  # the first two events, of the build before
    ledger.reopen(4)  # and back to the other build, which lacks them
    assert life(ledger, "x") == ["superseded", "live"]
    assert [event.document_id for event in ledger.pending()] == ["y"]


def test_retrievers_share_arrivals_and_stand_where_they_stand(ledger, url):
    ledger.receive([put("a")], "api")
    ledger.settle(1, 1, {})
    other = Ledger.open(url, "contrastive")
    assert other.position() is None
    assert [event.document_id for event in other.pending()] == ["a"]
    assert states(ledger) == {"live": 1}


def test_refused_rows_are_kept_once(ledger):
    refused = [Rejection(2, None, "bad JSON: Extra data"), Rejection(3, "b", "empty text")]
    receipt = ledger.receive([put("a")], "x.jsonl", refused)
    assert (receipt.received, receipt.rejected) == (3, tuple(refused))
    ledger.receive([put("a")], "x.jsonl", refused)
    assert states(ledger) == {"pending": 1, "rejected": 2}
    newest = ledger.last_rejections(1)[0]
    assert (newest["row"], newest["document_id"], newest["reason"]) == (3, "b", "empty text")


def test_a_named_batch_is_received_once(ledger):
    assert len(ledger.receive([put("a", "1")], "file", batch="hash").events) == 1
    ledger.receive([put("a", "2")], "api")
    again = ledger.receive([put("a", "1")], "file", batch="hash")
    assert (again.received, again.unchanged, again.events) == (1, 1, ())


def test_a_named_batch_is_received_again_once_a_row_of_it_is_rolled_back_or_sound(ledger):
    ledger.receive([put("a")], "api")
    assert ledger.receive([put("a")], "file", batch="hash").events == ()
    ledger.settle(1, 1, {})
    ledger.roll_back(0)
    assert ledger.receive([put("a")], "file", batch="hash").events == (2,)
    assert ledger.receive([put("a")], "file", batch="hash").events == ()
    assert ledger.receive([put("a"), put("b")], "file", batch="hash").events == (3,), "b was refused before"


def test_a_named_batch_received_again_leaves_what_became_of_its_other_documents_alone(ledger):
    refused = [Rejection(4, "b", "too long")]
    ledger.receive([put("a", "0"), put("a", "1"), put("c")], "file", refused, batch="hash")
    ledger.receive([put("a", "2")], "api")
    ledger.remove(["c"], "api")
    again = ledger.receive([put("a", "0"), put("a", "1"), put("c"), put("b")], "file", batch="hash")
    assert (again.received, again.unchanged, again.rejected, len(again.events)) == (4, 3, (), 1)
    assert {content.document_id: content.text for content in ledger.snapshot(99)} == {"a": "2", "b": "text"}


def test_rows_that_are_refused_again_are_not_called_unchanged(ledger):
    refused = (Rejection(2, "b", "too long"),)
    for unchanged in (0, 1):
        receipt = ledger.receive([put("a")], "file", refused, batch="hash")
        assert (receipt.received, receipt.unchanged, receipt.rejected) == (2, unchanged, refused)


def test_a_failing_batch_leaves_nothing(ledger):
    with pytest.raises((StatementError, TypeError), match="not JSON serializable"):
        ledger.receive([put("a"), put("b", fields={"x": object()})], "file", batch="hash")
    refused = [Rejection(1, None, None)]  # fails after the events were written
    with pytest.raises(TypeError, match="NoneType"):
        ledger.receive([put("a")], "file", refused, batch="hash")
    assert states(ledger) == {}
    assert len(ledger.receive([put("a")], "file", batch="hash").events) == 1


def test_snapshot_is_the_latest_content_up_to_the_watermark(ledger):
    ledger.receive([put("b", "1"), put("a"), put("c"), put("d")], "api")
    ledger.remove(["c", "base"], "api")
    ledger.settle(6, 1, {})
    ledger.receive([put("b", "2", date="2025-02-03")], "api")
    ledger.settle(7, 2, {})
    ledger.receive([put("d", "3")], "api")
    shown = {content.document_id: content.text for content in ledger.snapshot(8)}
    assert shown == {"a": "text", "b": "2", "d": "3"}
    assert list(ledger.snapshot(7))[1] == put("b", "2", date="2025-02-03")
    assert {content.document_id: content.text for content in ledger.snapshot(4)}["b"] == "1"
    assert ledger.removed(8) == ["base", "c"]
    assert ledger.removed(4) == []
    ledger.roll_back(1)
    assert {content.document_id: content.text for content in ledger.snapshot(7)}["b"] == "1"


def test_lag_is_the_age_of_the_oldest_pending_event(ledger):
    assert ledger.lag() == {"pending": 0, "seconds": None}
    ledger.receive([put("a")], "api", now=1000.0)
    ledger.receive([put("b")], "api")
    found = ledger.lag()
    assert found["pending"] == 2
    assert found["seconds"] > 1e9


def test_drift_reports_and_runs_come_back_newest_first(ledger):
    for number in range(3):
        ledger.record_drift({"auc": {"value": number, "threshold": 0.7}}, (number, number + 1))
    report = ledger.last_drift(1)[0]
    assert (report["first_event"], report["last_event"], report["report"]["auc"]["value"]) == (2, 3, 2)
    ledger.absorb("run-1", 4)
    ledger.absorb("run-1", 4)
    assert [(row["run"], row["watermark"]) for row in ledger.training_runs(9)] == [("run-1", 4)]


def test_a_random_life_agrees_with_a_plain_model(ledger):
    """Whatever happens, what the ledger calls live is what a dictionary replayed from the generations' events holds."""
    chance = random.Random(4)
    generations, current, watermark, waiting = {0: {}}, 0, 0, []
    for _ in range(120):
        action = chance.choice(["put", "put", "put", "remove", "settle", "settle", "roll_back"])
        document = chance.choice("abcdefgh")
        if action == "put":
            text = chance.choice("xyz")
            waiting += [(one, document, text) for one in ledger.receive([put(document, text)], "api").events]
        elif action == "remove":
            waiting += [(one, document, None) for one in ledger.remove([document], "api").events]
        elif action == "settle" and waiting:
            taken, waiting = waiting[: chance.randint(1, 3)], waiting[chance.randint(1, 3) :]
            waiting = sorted({*waiting, *((e.id, e.document_id, e.payload and e.payload["text"])
                                          for e in ledger.pending() if e.id > taken[-1][0])})  # fmt: skip
            watermark = taken[-1][0]
            held = dict(generations[current]) | {document: (one, text) for one, document, text in taken}
            current = len(generations)
            generations[current] = held
            ledger.settle(watermark, current, {})
            waiting = [one for one in waiting if one[0] > watermark]
        elif action == "roll_back":
            current = chance.choice(list(generations))
            ledger.roll_back(current)
        live = {document: text for document, (_, text) in generations[current].items() if text is not None}
        settled = {
            event.document_id: event.payload["text"]
            for one in "abcdefgh"
            for event in ledger.history(one)
            if event.state == "live"
        }
        assert settled == live
        assert [event.id for event in ledger.pending()] == [one for one, _, _ in waiting]


def test_writers_in_many_threads_lose_and_double_nothing(ledger):
    def work(worker: int) -> None:
        for number in range(10):
            ledger.receive([put(f"{worker}-{number}"), put("shared", str(worker))], "api")

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [event.id for event in ledger.pending()]
    assert ids == sorted(set(ids))
    assert len({event.document_id for event in ledger.pending()}) == 41
    shared = [event.payload["text"] for event in ledger.pending() if event.document_id == "shared"]
    assert all(a != b for a, b in zip(shared, shared[1:], strict=False))


def test_every_state_is_counted(ledger):
    assert list(ledger.counts()) == list(STATES)


def test_only_what_is_live_as_it_arrived_is_an_arrival(ledger):
    ledger.receive([put("a"), put("b"), put("c")], "api")
    ledger.settle(3, 1, {"a": "added", "b": "added"})
    ledger.receive([put("b", "new")], "api")
    ledger.remove(["c"], "api")
    ledger.settle(5, 2, {"b": "updated"})
    assert [(event.id, event.reason) for event in ledger.arrivals(1, 3)] == [(1, "added")]
    assert [event.id for event in ledger.arrivals(4, 5)] == [4]


def test_the_newest_event_of_a_document_is_told_with_what_became_of_it(ledger):
    ledger.receive([put("a"), put("b")], "api")
    ledger.settle(2, 1, {})
    ledger.receive([put("a", "new")], "api")
    told = ledger.newest(["a", "b", "unknown"])
    assert {one: (event.id, event.state) for one, event in told.items()} == {"a": (3, "pending"), "b": (2, "live")}
