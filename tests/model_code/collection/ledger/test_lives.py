"""Guards the laws of the log by random lives: what a generation holds, what is never lost, and what
all retrievers tend to, with a kill before every write and another process that receives at every
write.

Run: python -m pytest tests/model_code/collection/ledger/test_lives.py; FRESHET_LIVES=4000 for the
long form.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress

import pytest

from model_code.collection.ledger import ledger as library
from model_code.collection.ledger import states
from model_code.collection.ledger.events import LedgerCursor, Position
from tests.model_code.collection.ledger.lives import (
    Killed,
    Refused,
    World,
    document,
    effective,
    fold,
    step,
    told,
)

LIVES = int(os.environ.get("FRESHET_LIVES", 60))
STEPS = 25


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """No waiting for the disk."""
    from model_code.collection.ledger import database

    def prepare(connection, _):
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(database, "_prepare_sqlite", prepare)


def live(tmp_path, seed: int, corpora: int = 1, check=lambda world: None) -> World:
    chance = random.Random(seed)
    folder = tmp_path / str(seed)
    folder.mkdir()
    world = World(folder, chance, corpora)
    world.busy = chance.choice([0.0, 0.3])
    for _ in range(STEPS):
        world.kill_in = chance.randint(0, 5) if chance.random() < 0.4 else None
        with suppress(Killed):
            step(world, chance)()
        world.kill_in = None
        check(world)
    return world


def holds_what_its_position_says(world: World) -> None:
    """Law 8, of every generation that was ever searched."""
    log = world.log()
    for each in world.lives.values():
        for number in each.searched & each.generations.keys():
            generation = each.generations[number]
            cursor = generation.cursor
            if not cursor.replay:
                between = [e for e in log if cursor.trained < e.id <= cursor.position.event]
                assert generation.documents == fold(generation.corpus, between), (each.name, number)


def test_generations_match_their_ledger_positions(tmp_path):
    for seed in range(LIVES):
        world = live(tmp_path, seed, check=holds_what_its_position_says)
        world.drain()
        holds_what_its_position_says(world)
        (corpus,) = world.corpora
        wanted = {**corpus, **world.truth}
        wanted = {name: text for name, text in wanted.items() if text is not None}
        for each in world.lives.values():
            if each.current is not None:
                assert each.now.documents == wanted, (seed, each.name)
        kept = effective(world.log(), world.ledger.position().event)
        repeats = {event.id: event.again or event.id for event in world.log()}
        assert {repeats[event] for event in world.acknowledged} <= {
            repeats[event] for event in kept
        }, seed
        world.ledger.close()


def test_build_of_other_corpus_restores_no_reverted_event(tmp_path):
    for seed in range(LIVES // 3):
        world = live(tmp_path, seed, corpora=2)
        world.drain()
        counting = effective(world.log(), world.ledger.position().event)
        named = {event.document_id for event in world.log() if event.id in counting}
        for each in filter(lambda each: each.current is not None, world.lives.values()):
            for name in named:
                assert each.now.documents.get(name) == world.truth[name], (seed, each.name, name)
        world.ledger.close()


def test_the_states_are_those_of_the_definition(tmp_path):
    def check(world):
        log = world.log()
        for each in filter(lambda each: each.current is not None, world.lives.values()):
            cursor = each.now.cursor
            if not cursor.replay and not world.ledger.mismatch(cursor.position):
                assert nonzero(world.ledger.view_at(cursor).counts()) == defined(log, cursor), (
                    each.name
                )

    for seed in range(LIVES // 3):
        live(tmp_path, seed, check=check).ledger.close()


def nonzero(counts):
    return {str(state): number for state, number in counts.items() if number}


def defined(log, cursor):
    """The counts by state, event by event."""
    reverts = [event for event in log if event.kind == "revert"]
    appended = {
        number
        for event in reverts
        for number in range(event.payload["first"] or event.id, event.id + 1)
    }
    counting = effective(log, cursor.position.event)
    path = {event.id for event in log if event.id > cursor.position.event}
    for event in reversed(reverts):
        if event.id in path and event.payload["to"] >= cursor.position.event:
            path -= set(range(event.payload["to"] + 1, event.id + 1))
    first = {event.id: event.again or event.id for event in log if event.id not in appended}
    last = {event.document_id: event.id for event in log if event.id in counting}
    found = {}
    settled = {first[event] for event in counting}
    pending = {first[event] for event in path if event in first} - settled
    for event in log:
        if event.id in counting:
            state = "superseded"
            if last[event.document_id] == event.id:
                trained = event.id <= cursor.trained
                state = "deleted" if event.kind == "remove" else "absorbed" if trained else "live"
            found[state] = found.get(state, 0) + 1
    found["pending"] = len(pending)
    found["rolled_back"] = len(set(first.values()) - settled - pending)
    return {state: number for state, number in found.items() if number}


def test_pending_changes_are_limited_as_requested(tmp_path):
    world = World(tmp_path, random.Random(0))
    assert world.ledger.view_at(LedgerCursor()).pending() == states.Pending(
        (), LedgerCursor().position
    )
    for _ in range(3):
        world.receive_some()
    view = world.ledger.view_at(LedgerCursor())
    every = view.pending().events
    for limit in (1, 2, len(every)):
        found = view.pending(limit)
        assert found.events == every[:limit]
        assert found.position.event == every[limit - 1].id
    world.ledger.close()


@pytest.mark.parametrize("kind", ["older copy", "older copy written to", "another log"])
def test_writes_to_lost_ledger_are_refused_until_adopted(tmp_path, kind):
    for seed in range(LIVES // 5):
        world = live(tmp_path, seed)
        world.back_up("copy")
        world.receive_some()
        world.drain()
        before = {
            each.name: dict(each.now.documents)
            for each in world.lives.values()
            if each.current is not None
        }
        stale = [name for name in before if world.lives[name].now.cursor.position.event > 0]
        world.restore(None if kind == "another log" else "copy")
        for _ in range(8 if kind != "older copy" else 0):
            world.receive_some()
        mismatch = [n for n in before if world.ledger.mismatch(world.lives[n].now.cursor.position)]
        assert set(stale) <= set(mismatch) or kind == "older copy"
        world.default = (mismatch or ["a"])[0]
        for name in mismatch:
            with pytest.raises(Refused):
                world.rewind(name, world.lives[name].current)
            for write in (world.apply, world.compact, world.collect_garbage, world.open_new):
                with pytest.raises(Refused):
                    write(name)
            world.adopt(name)
        world.drain()
        last = {event.document_id: event for event in world.log() if event.kind != "revert"}
        for name in mismatch:
            now = world.lives[name].now.documents
            said = {each: event.document.text for each, event in last.items() if event.document}
            kept = {each: text for each, text in before[name].items() if each not in last}
            assert now == kept | said, (seed, name)
        world.ledger.close()


def test_reverting_a_revert_restores_documents(tmp_path):
    for seed in range(LIVES // 3):
        world = live(tmp_path, seed)
        world.drain()
        each = world.lives[world.default]
        number, before = each.current, each.now.documents
        world.revert(random.Random(seed).choice(list(each.generations)))
        at = each.now.documents
        world.revert(each.current)
        assert each.now.documents == at
        world.revert(number)
        assert each.now.documents == before
        world.drain()
        assert all(
            one.now.documents == before for one in world.lives.values() if one.current is not None
        )
        world.ledger.close()


def cursor(ledger, event):
    return LedgerCursor(ledger.position(event))


def gone_back(tmp_path, to, current, held=lambda names: {}):
    """A log of two documents that went back from where `current` stands to where `to` does, and
    what waits then.
    """
    ledger = library.Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    if not ledger.position().event:
        ledger.receive([document("a", "1")], "test")
        ledger.receive([document("b", "1")], "test")
    to, current = (
        each if isinstance(each, LedgerCursor) else cursor(ledger, each) for each in (to, current)
    )
    event = ledger.revert(library.RevertTarget("r", 1, to, 2, current, held))
    return ledger, ledger.view_at(cursor(ledger, event)).pending().events


def test_documents_of_reverted_generation_are_not_pending(tmp_path):
    ledger, waits = gone_back(tmp_path, to=2, current=1)
    assert waits == ()


def test_next_revert_takes_back_formerly_pending_changes(tmp_path):
    ledger, (waits,) = gone_back(tmp_path, to=0, current=1)
    assert waits.document_id == "b"
    assert waits.again == 2
    ledger, waits = gone_back(tmp_path, to=1, current=2)
    assert waits == ()
    assert {name: bool(content) for name, content in ledger.content_hashes().items()} == {
        "a": True,
        "b": False,
    }


def test_retriever_at_start_receives_reverted_documents(tmp_path):
    files = {"a": told("a", "of the files")}
    foreign = LedgerCursor(Position("another log", 1, "mark"))
    held = lambda names: {each: files[each] for each in files if each in names}  # noqa: E731
    ledger, waits = gone_back(tmp_path, foreign, 2, held)
    assert waits == ()
    assert fold({}, ledger.view_at(LedgerCursor()).pending().events) == {"a": "of the files"}
    assert ledger.document_sources()["a"] == "test", (
        "a revert is no source that documents arrive from"
    )


def test_pending_query_time_is_independent_of_ledger_size(tmp_path):
    """By what SQLite reads: no step of its plan scans the table."""
    ledger = library.Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    with ledger._database.read() as connection:
        for query in (
            library.events.select().where(library.events.c.id > 5),
            states.SELECT_REVERTS,
        ):
            text = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").fetchall()
            scans = [row[3] for row in plan if "SCAN" in row[3]]
            assert all("INDEX ledger_events_revert" in scan for scan in scans), plan
