"""Tests of the laws of the log by random lives.

The laws tell what a generation holds, what is never lost, and what all retrievers come to hold. The
process is killed before any write, and another process receives documents before any write.

FRESHET_LIVES=4000 sets the number of lives of a long run.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import suppress

import pytest

from model_code.collection.ledger import ledger as library
from model_code.collection.ledger import states
from model_code.collection.ledger.events import LedgerCursor, Position
from tests.model_code.collection.ledger.lives import (
    HeldDocuments,
    Killed,
    Live,
    Refused,
    World,
    document,
    effective,
    first_events,
    fold,
    step,
)

LIVES = int(os.environ.get("FRESHET_LIVES", 30))
STEPS = 25


@pytest.fixture(autouse=True)
def _quick_writes(monkeypatch):
    """Do not wait for the disk."""
    from model_code.collection.ledger import database

    def prepare(connection, _):
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(database, "_prepare_sqlite", prepare)


def check_nothing(world: World) -> None:
    """Accept every world."""


def live(tmp_path, seed: int, corpora: int = 1, check=check_nothing) -> World:
    """Make a world, do random operations, and check the world after each."""
    chance = random.Random(seed)
    folder = tmp_path / str(seed)
    folder.mkdir()
    world = World(folder, chance, corpora)
    world.busy = chance.choice([0.0, 0.3])
    for _ in range(STEPS):
        world.kill_in = chance.randint(0, 5) if chance.random() < 0.4 else None
        with suppress(Killed):
            step(world, chance)
        world.kill_in = None
        check(world)
    return world


def live_retrievers(world: World) -> list[Live]:
    """Return the retrievers that have a generation."""
    return [retriever for retriever in world.lives.values() if retriever.current is not None]


def require_documents_of_position(world: World) -> None:
    """Check law 8 for every generation that was ever searched.

    Its documents are those of its corpus, changed by the events after training up to its position.
    """
    log = world.log()
    for retriever in world.lives.values():
        for number in retriever.searched & retriever.generations.keys():
            generation = retriever.generations[number]
            cursor = generation.cursor
            if cursor.replay:
                continue
            events = []
            for event in log:
                if cursor.trained < event.id <= cursor.position.event:
                    events.append(event)
            expected = fold(generation.corpus, events)
            assert generation.documents == expected, (retriever.name, number)


def expected_documents(world: World) -> dict[str, str]:
    """Return the documents that every retriever of a world with one corpus must come to hold."""
    (corpus,) = world.corpora
    texts = {**corpus, **world.truth}
    return {name: text for name, text in texts.items() if text is not None}


def test_generations_match_their_ledger_positions(tmp_path):
    for seed in range(LIVES):
        world = live(tmp_path, seed, check=require_documents_of_position)
        world.drain()
        require_documents_of_position(world)

        expected = expected_documents(world)
        for retriever in live_retrievers(world):
            assert retriever.now.documents == expected, (seed, retriever.name)

        log = world.log()
        first_of = first_events(log)
        counting = effective(log, world.ledger.position().event)
        acknowledged = {first_of[event] for event in world.acknowledged}
        assert acknowledged <= {first_of[event] for event in counting}, seed
        world.ledger.close()


def test_build_of_other_corpus_restores_no_reverted_event(tmp_path):
    for seed in range(LIVES // 3):
        world = live(tmp_path, seed, corpora=2)
        world.drain()

        counting = effective(world.log(), world.ledger.position().event)
        changed = {event.document_id for event in world.log() if event.id in counting}
        for retriever in live_retrievers(world):
            for name in changed:
                text = retriever.now.documents.get(name)
                assert text == world.truth[name], (seed, retriever.name, name)
        world.ledger.close()


def require_defined_states(world: World) -> None:
    """Check the counts of every retriever that has applied this log."""
    log = world.log()
    for retriever in live_retrievers(world):
        cursor = retriever.now.cursor
        if not cursor.replay and not world.ledger.mismatch(cursor.position):
            view = world.ledger.view_at(cursor)
            counts = nonzero(view.counts())
            arrivals = view.arrivals(1, cursor.position.event)
            assert counts == counts_by_definition(log, cursor), retriever.name
            # An event that a revert copied arrived once.
            assert len(arrivals) == counts.get("live", 0), retriever.name


def test_states_follow_their_definition(tmp_path):
    for seed in range(LIVES // 3):
        world = live(tmp_path, seed, check=require_defined_states)
        world.ledger.close()


def nonzero(counts):
    """Return the counts without those that are 0."""
    return {str(state): number for state, number in counts.items() if number}


def state_of_effective_event(event, last_events, cursor):
    """Return the state of an event that counts at the cursor."""
    if last_events[event.document_id] != event.id:
        return "superseded"
    if event.kind == "remove":
        return "deleted"
    if event.id <= cursor.trained:
        return "absorbed"
    return "live"


def events_written_by(reverts):
    """Return the events that reverts wrote, including their own."""
    written = set()
    for revert in reverts:
        first = revert.payload["first"] or revert.id
        written.update(range(first, revert.id + 1))
    return written


def events_not_taken_back(log, reverts, position):
    """Return the events after a position that no later revert took back."""
    remaining = {event.id for event in log if event.id > position}
    for revert in reversed(reverts):
        target = revert.payload["to"]
        if revert.id in remaining and target >= position:
            remaining -= set(range(target + 1, revert.id + 1))
    return remaining


def counts_by_definition(log, cursor):
    """Return the number of events in each state, event by event."""
    reverts = [event for event in log if event.kind == "revert"]
    written_by_reverts = events_written_by(reverts)
    received = [event for event in log if event.id not in written_by_reverts]
    first_of = first_events(received)
    position = cursor.position.event
    counting = effective(log, position)
    last_events = {event.document_id: event.id for event in log if event.id in counting}
    remaining = events_not_taken_back(log, reverts, position)

    counts = Counter()
    for event in log:
        if event.id in counting:
            counts[state_of_effective_event(event, last_events, cursor)] += 1
    settled = {first_of[event] for event in counting}
    pending = {first_of[event] for event in remaining if event in first_of} - settled
    counts["pending"] = len(pending)
    counts["rolled_back"] = len(set(first_of.values()) - settled - pending)
    return nonzero(counts)


def test_empty_log_has_no_pending_changes(tmp_path):
    world = World(tmp_path, random.Random(0))

    pending = world.ledger.view_at(LedgerCursor()).pending()

    assert pending == states.Pending((), LedgerCursor().position)
    world.ledger.close()


def test_pending_changes_are_limited_as_requested(tmp_path):
    world = World(tmp_path, random.Random(0))
    for _ in range(3):
        world.receive_some()
    view = world.ledger.view_at(LedgerCursor())
    all_events = view.pending().events

    for limit in (1, 2, len(all_events)):
        pending = view.pending(limit)
        assert pending.events == all_events[:limit]
        assert pending.position.event == all_events[limit - 1].id
    world.ledger.close()


def require_refused_writes(world: World, name: str) -> None:
    """Check that every write of a retriever is refused."""
    with pytest.raises(Refused):
        world.rewind(name, world.lives[name].current)
    for write in (world.apply, world.compact, world.collect_garbage, world.open_new):
        with pytest.raises(Refused):
            write(name)


def lose_ledger(world: World, kind: str) -> None:
    """Replace the ledger by the file `copy` or by another log, and write to it."""
    if kind == "another log":
        world.restore(None)
    else:
        world.restore("copy")
    if kind != "older copy":
        for _ in range(8):
            world.receive_some()


@pytest.mark.parametrize("kind", ["older copy", "older copy written to", "another log"])
def test_writes_to_lost_ledger_are_refused_until_adopted(tmp_path, kind):
    for seed in range(LIVES // 5):
        world = live(tmp_path, seed)
        world.back_up("copy")
        world.receive_some()
        world.drain()
        before = {
            retriever.name: dict(retriever.now.documents) for retriever in live_retrievers(world)
        }
        positions = {name: world.lives[name].now.cursor.position for name in before}

        lose_ledger(world, kind)
        mismatching = [name for name in before if world.ledger.mismatch(positions[name])]
        if kind != "older copy":
            assert {name for name in before if positions[name].event > 0} <= set(mismatching)
        if mismatching:
            world.default = mismatching[0]
        else:
            world.default = "a"
        for name in mismatching:
            require_refused_writes(world, name)
            world.adopt(name)
        world.drain()

        last = {event.document_id: event for event in world.log() if event.kind != "revert"}
        for name in mismatching:
            expected = {}
            for document_id, text in before[name].items():
                if document_id not in last:
                    expected[document_id] = text
            for document_id, event in last.items():
                if event.document:
                    expected[document_id] = event.document.text
            assert world.lives[name].now.documents == expected, (seed, name)
        world.ledger.close()


def test_reverting_a_revert_restores_documents(tmp_path):
    for seed in range(LIVES // 3):
        world = live(tmp_path, seed)
        world.drain()
        retriever = world.lives[world.default]
        number = retriever.current
        before = retriever.now.documents

        world.revert(random.Random(seed).choice(list(retriever.generations)))
        reverted = retriever.now.documents
        world.revert(retriever.current)
        assert retriever.now.documents == reverted

        world.revert(number)
        assert retriever.now.documents == before
        world.drain()
        for other in live_retrievers(world):
            assert other.now.documents == before
        world.ledger.close()


def cursor_at(ledger, event):
    """Return the cursor after an event."""
    return LedgerCursor(ledger.position(event))


def hold_nothing(names):
    """Return no document: the generation holds none."""
    return {}


def open_log(tmp_path):
    """Open a log in which the documents a and b arrived."""
    ledger = library.Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    if not ledger.position().event:
        ledger.receive([document("a", "1")], "test")
        ledger.receive([document("b", "1")], "test")
    return ledger


def revert(ledger, target, current, held=hold_nothing):
    """Revert from the cursor `current` to the cursor `target`; return the pending events then."""
    event = ledger.revert(library.RevertTarget("r", 1, target, 2, current, held))
    return ledger.view_at(cursor_at(ledger, event)).pending().events


def test_documents_of_reverted_generation_are_not_pending(tmp_path):
    ledger = open_log(tmp_path)

    pending = revert(ledger, cursor_at(ledger, 2), cursor_at(ledger, 1))

    assert pending == ()


def test_pending_changes_stay_pending_after_a_revert(tmp_path):
    ledger = open_log(tmp_path)

    (pending,) = revert(ledger, cursor_at(ledger, 0), cursor_at(ledger, 1))

    assert pending.document_id == "b"
    assert pending.again == 2


def test_next_revert_takes_back_formerly_pending_changes(tmp_path):
    ledger = open_log(tmp_path)
    revert(ledger, cursor_at(ledger, 0), cursor_at(ledger, 1))

    pending = revert(ledger, cursor_at(ledger, 1), cursor_at(ledger, 2))

    is_present = {name: bool(content) for name, content in ledger.content_hashes().items()}
    assert pending == ()
    assert is_present == {"a": True, "b": False}


def test_retriever_at_start_receives_reverted_documents(tmp_path):
    ledger = open_log(tmp_path)
    foreign = LedgerCursor(Position("another log", 1, "mark"))
    held = HeldDocuments({"a": "of the files"})

    pending = revert(ledger, foreign, cursor_at(ledger, 2), held)

    pending_at_start = ledger.view_at(LedgerCursor()).pending().events
    assert pending == ()
    assert fold({}, pending_at_start) == {"a": "of the files"}
    # A revert is no source that documents arrive from.
    assert ledger.document_sources()["a"] == "test"


@pytest.mark.parametrize(
    "query",
    [library.events.select().where(library.events.c.id > 5), states.SELECT_REVERTS],
    ids=["pending", "reverts"],
)
def test_pending_query_time_is_independent_of_ledger_size(tmp_path, query):
    """No step of SQLite's plan scans the table."""
    ledger = library.Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")

    with ledger._database.read() as connection:
        text = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").fetchall()

    steps = [row[3] for row in plan]
    scans = [step for step in steps if "SCAN" in step]
    assert steps
    assert all("INDEX ledger_events_revert" in scan for scan in scans), plan
