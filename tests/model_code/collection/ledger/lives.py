"""Random lives of a project: a log, and generations that are nothing but their documents and where
they stand.

Each operation is the sequence of writes that the real one makes. Before any of them the process may
be killed, and another process may receive documents.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import sqlalchemy as sa

from model_code.collection.ledger.database import events
from model_code.collection.ledger.events import EventKind, LedgerCursor
from model_code.collection.ledger.ledger import Ledger, RevertTarget
from model_code.collection.ledger.states import Event
from model_code.text.documents import Document

Documents = dict[str, str]
NAMES = [f"d{number}" for number in range(7)]


class Killed(Exception):
    """The process was."""


class Refused(Exception):
    """The log is not that of the generation."""


@dataclass(frozen=True)
class Generation:
    """corpus: the documents of its build; build: what tells builds apart."""

    documents: Documents
    cursor: LedgerCursor
    corpus: Documents
    build: int


@dataclass
class Live:
    """The generations of one retriever, by number, of which those above `current` were never
    searched.
    """

    name: str
    generations: dict[int, Generation] = field(default_factory=dict)
    current: int | None = None
    searched: set[int] = field(default_factory=set)

    @property
    def now(self) -> Generation:
        return self.generations[self.current]


def document(name: str, text: str) -> Document:
    return Document(name, "", text)


class World:
    """A project with some retrievers. `truth`: of each document that a user named, what users were
    told of it.
    """

    def __init__(self, folder: Path, chance: random.Random, corpora: int = 1) -> None:
        self.folder, self.chance = folder, chance
        self.url = f"sqlite:///{folder}/ledger.sqlite"
        self.ledger = Ledger.open(self.url)
        self.texts = itertools.count()
        self.builds = itertools.count()
        self.corpora = [
            {name: f"c{number}" for name in NAMES if chance.random() < 0.4}
            for number in range(corpora)
        ]
        self.lives = {name: Live(name) for name in ("a", "b", "c")}
        self.default = "a"
        self.truth: dict[str, str | None] = {}
        self.acknowledged: set[int] = set()
        self.known_builds: list[tuple[str, int, Documents, LedgerCursor]] = []
        self.kill_in: int | None = None
        self.busy = 0.0
        self.open_new("a")

    # What the machine does

    def write(self) -> None:
        """Whatever can happen before a write."""
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                raise Killed
        if self.chance.random() < self.busy:
            self.receive_some()

    def publish(self, live: Live, generation: Generation, after: Generation | None = None) -> None:
        """One or two folders, then the pointer."""
        number = max(live.generations, default=-1) + 1
        for each in filter(None, (generation, after)):
            self.write()
            live.generations[number] = each
            number += 1
        self.write()
        live.current = number - 1
        live.searched.add(live.current)

    def begin(self, live: Live) -> None:
        """What every writer does first."""
        if live.current is None:
            return
        for number in [number for number in live.generations if number > live.current]:
            self.write()
            del live.generations[number]
        if self.ledger.mismatch(live.now.cursor.position):
            raise Refused
        last = self.ledger.last_revert()
        mine = last and (last.retriever, last.current) == (live.name, live.current)
        if mine and last.id > live.now.cursor.position.event:
            self.publish_reverted(live, last.generation, last.id)

    def publish_reverted(self, live: Live, number: int, event: int) -> None:
        generation = live.generations[number]
        cursor = replace(generation.cursor, position=self.ledger.position(event), replay=False)
        self.publish(live, replace(generation, cursor=cursor))

    def applied(self, generation: Generation, limit: int | None = None) -> Generation | None:
        pending = self.ledger.view_at(generation.cursor).pending(limit)
        if not pending.events:
            return None
        cursor = replace(generation.cursor, position=pending.position, replay=False)
        return replace(
            generation, documents=fold(generation.documents, pending.events), cursor=cursor
        )

    # What users do

    def receive_some(self) -> None:
        """Documents arrive; the receipt is an acknowledgement."""
        names = self.chance.choices(NAMES, k=self.chance.randint(1, 3))
        if self.chance.random() < 0.3:
            for name in names:
                self.truth[name] = None
            receipt = self.ledger.remove(names, "test")
        else:
            rows = [
                document(name, f"t{next(self.texts) if self.chance.random() < 0.8 else 0}")
                for name in names
            ]
            self.truth |= {row.document_id: row.text for row in rows}
            receipt = self.ledger.receive(rows, "test")
        self.acknowledged.update(receipt.events)

    def apply(self, name: str, limit: int | None = None) -> None:
        live = self.lives[name]
        if live.current is None:
            return
        self.begin(live)
        if (generation := self.applied(live.now, limit)) is not None:
            self.publish(live, generation)

    def open_new(self, name: str, snapshot: bool = False) -> None:
        """A build that a registry has: of a corpus, or of what was live."""
        if snapshot:
            self.apply(self.default)
            source = self.lives[self.default].now
            corpus, position = source.documents, source.cursor.position
            cursor = LedgerCursor(position, trained=position.event)
        else:
            corpus, cursor = self.chance.choice(self.corpora), LedgerCursor()
        self.known_builds.append((name, next(self.builds), corpus, cursor))
        self.promote(self.known_builds[-1])

    def promote(self, build: tuple[str, int, Documents, LedgerCursor]) -> None:
        name, number, corpus, cursor = build
        live = self.lives[name]
        self.begin(live)
        sound = [
            (each.cursor.position.event, number_, each)
            for number_, each in live.generations.items()
            if each.build == number and not self.ledger.mismatch(each.cursor.position)
        ]
        if sound:
            _, found, first = max(sound, key=lambda each: each[:2])
            already = found == live.current
        else:
            if self.ledger.mismatch(cursor.position):
                cursor = LedgerCursor(self.ledger.position(0), replay=True)
            first, already = Generation(dict(corpus), cursor, corpus, number), False
        after = self.applied(first)
        if not (already and after is None):
            self.publish(live, first if not already else after, None if already else after)
        self.write()
        self.default = name

    def revert(self, number: int) -> None:
        live = self.lives[self.default]
        self.begin(live)
        if number == live.current or number not in live.generations:
            return
        generation = live.generations[number]
        cursor, files = generation.cursor, generation.documents

        def held(names):
            return {name: told(name, files[name]) for name in names if name in files}

        target = RevertTarget(live.name, number, cursor, live.current, live.now.cursor, held)
        self.write()
        log = self.log()
        exact = not cursor.replay and not self.ledger.mismatch(cursor.position)
        at = effective(log, cursor.position.event if exact else 0)
        searched = at | effective(log, live.now.cursor.position.event)
        repeats = {event.id: event.again or event.id for event in log}
        known = {repeats[event] for event in searched}
        counting = effective(log, log[-1].id if log else 0)
        waiting = [
            event for event in log if event.id in counting and repeats[event.id] not in known
        ]
        event = self.ledger.revert(target)
        self.truth = {name: generation.documents.get(name) for name in self.truth}
        for each in waiting:
            self.truth[each.document_id] = each.document.text if each.document else None
        kept = {repeats[each.id] for each in waiting} | {repeats[each] for each in at}
        self.acknowledged = {each for each in self.acknowledged if repeats[each] in kept}
        self.publish_reverted(live, number, event)

    def rewind(self, name: str, number: int) -> None:
        live = self.lives[name]
        if live.current is None:
            return
        self.begin(live)
        if number in live.generations:
            self.publish(live, live.generations[number])

    def compact(self, name: str) -> None:
        live = self.lives[name]
        if live.current is not None:
            self.begin(live)
            self.publish(live, live.now)

    def collect_garbage(self, name: str) -> None:
        live = self.lives[name]
        if live.current is None:
            return
        self.begin(live)
        kept = {*sorted(live.generations)[-3:], live.current}
        for number in live.generations.keys() - kept:
            self.write()
            del live.generations[number]

    def adopt(self, name: str) -> None:
        live = self.lives[name]
        if live.current is None or not self.ledger.mismatch(live.now.cursor.position):
            return
        for number in [number for number in live.generations if number > live.current]:
            del live.generations[number]
        cursor = LedgerCursor(self.ledger.position(0), replay=True)
        self.publish(live, replace(live.now, cursor=cursor))

    def drain(self) -> None:
        """Everything that waits is applied everywhere."""
        self.kill_in, self.busy = None, 0.0
        for name in self.lives:
            self.apply(name)

    # Another log in its place

    def back_up(self, name: str) -> None:
        self.ledger.close()
        shutil.copyfile(self.folder / "ledger.sqlite", self.folder / name)
        self.ledger = Ledger.open(self.url)

    def restore(self, name: str | None) -> None:
        self.ledger.close()
        for path in self.folder.glob("ledger.sqlite*"):
            path.unlink()
        if name is not None:
            shutil.copyfile(self.folder / name, self.folder / "ledger.sqlite")
        self.ledger = Ledger.open(self.url)

    def log(self) -> list[Event]:
        """Every event, a revert's own ones too."""
        return events_of(self.ledger)


def events_of(ledger: Ledger) -> list[Event]:
    """Every event of a log as its table has it."""
    with ledger._database.read() as connection:
        return [
            Event(**row._mapping)
            for row in connection.execute(sa.select(events).order_by(events.c.id))
        ]


def told(name: str, text: str) -> Document:
    return document(name, text)


def fold(documents: Documents, events: Iterable[Event]) -> Documents:
    """Documents after events, in their order."""
    found = dict(documents)
    for event in events:
        if event.kind == EventKind.PUT:
            found[event.document_id] = event.document.text
        elif event.kind == EventKind.REMOVE:
            found.pop(event.document_id, None)
    return found


def effective(log: list[Event], event: int) -> set[int]:
    """What counts at an event, by the definition, event by event."""
    counting: dict[int, set[int]] = {0: set()}
    now: set[int] = set()
    for each in log:
        now = (
            set(counting[each.payload["to"]]) if each.kind == EventKind.REVERT else now | {each.id}
        )
        counting[each.id] = now
    return counting[event]


def step(world: World, chance: random.Random) -> Callable[[], None]:
    """A random operation."""
    name, live = chance.choice(list(world.lives)), world.lives[world.default]
    return chance.choice(
        [
            world.receive_some,
            world.receive_some,
            lambda: world.apply(name),
            lambda: world.apply(name, chance.randint(1, 4)),
            lambda: world.apply(world.default),
            lambda: world.revert(chance.choice(list(live.generations))),
            lambda: world.revert(chance.choice(list(live.generations))),
            lambda: world.rewind(name, chance.choice(list(world.lives[name].generations or [0]))),
            lambda: world.open_new(name),
            lambda: world.open_new(name, snapshot=True),
            lambda: world.promote(chance.choice(world.known_builds)),
            lambda: world.compact(name),
            lambda: world.collect_garbage(name),
        ]
    )
