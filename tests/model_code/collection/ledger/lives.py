"""Random lives of a project.

A project is a log, and generations that consist of their documents and a cursor. Each operation is
the sequence of writes of the real one. Before any write the process may be killed, and another
process may receive documents.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterable
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
    """The process was killed."""


class Refused(Exception):
    """The log is another one than that of the generation."""


@dataclass(frozen=True)
class Generation:
    """The documents that are searched, and the events that they contain.

    Attributes:
        documents: Text of each document.
        cursor: The events that the documents contain.
        corpus: Documents of the build.
        build: Number of the build.
    """

    documents: Documents
    cursor: LedgerCursor
    corpus: Documents
    build: int


@dataclass
class Live:
    """The generations of one retriever.

    Attributes:
        name: Name of the retriever.
        generations: Generations by number. Those above `current` were never searched.
        current: Number of the generation that is searched. None: nothing is live.
        searched: Numbers of the generations that were ever searched.
    """

    name: str
    generations: dict[int, Generation] = field(default_factory=dict)
    current: int | None = None
    searched: set[int] = field(default_factory=set)

    @property
    def now(self) -> Generation:
        """The generation that is searched."""
        return self.generations[self.current]


@dataclass(frozen=True)
class Build:
    """A build that a registry has.

    Attributes:
        retriever: Name of the retriever.
        number: Number of the build.
        corpus: Documents that it was built from.
        cursor: The events that the documents contain.
    """

    retriever: str
    number: int
    corpus: Documents
    cursor: LedgerCursor


def document(name: str, text: str) -> Document:
    """Make a document without a title."""
    return Document(name, "", text)


class World:
    """A project with some retrievers.

    Attributes:
        lives: The retrievers by name.
        default: Name of the retriever that is searched by default.
        truth: For each document that a user named, the text that it must have, or None.
        acknowledged: Events whose receipt a user has.
        known_builds: Builds that can be promoted again.
        kill_in: Number of writes before the process is killed. None: it is not killed.
        busy: Probability that documents arrive before a write.
    """

    def __init__(self, folder: Path, chance: random.Random, corpora: int = 1) -> None:
        self.folder = folder
        self.chance = chance
        self.url = f"sqlite:///{folder}/ledger.sqlite"
        self.ledger = Ledger.open(self.url)
        self.texts = itertools.count()
        self.builds = itertools.count()
        self.corpora = []
        for number in range(corpora):
            names = [name for name in NAMES if chance.random() < 0.4]
            self.corpora.append({name: f"c{number}" for name in names})
        self.lives = {name: Live(name) for name in ("a", "b", "c")}
        self.default = "a"
        self.truth: dict[str, str | None] = {}
        self.acknowledged: set[int] = set()
        self.known_builds: list[Build] = []
        self.kill_in: int | None = None
        self.busy = 0.0
        self.open_new("a")

    # Writes of the product.

    def write(self) -> None:
        """Be killed, or receive documents, before a write."""
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                raise Killed
        if self.chance.random() < self.busy:
            self.receive_some()

    def publish(self, live: Live, *generations: Generation) -> None:
        """Write one or two generations, then switch to the last."""
        number = max(live.generations, default=-1)
        for generation in generations:
            self.write()
            number += 1
            live.generations[number] = generation
        self.write()
        live.current = number
        live.searched.add(number)

    def begin(self, live: Live) -> None:
        """Clean up and complete an interrupted revert, as every writer does first."""
        if live.current is None:
            return
        for number in uncommitted_numbers(live):
            self.write()
            del live.generations[number]
        if self.ledger.mismatch(live.now.cursor.position):
            raise Refused

        revert = self.ledger.last_revert()
        if revert is None:
            return
        is_of_current = revert.retriever == live.name and revert.current == live.current
        if is_of_current and revert.id > live.now.cursor.position.event:
            self.publish_reverted(live, revert.generation, revert.id)

    def publish_reverted(self, live: Live, number: int, event: int) -> None:
        """Search a generation again, as of the event of its revert."""
        generation = live.generations[number]
        cursor = replace(generation.cursor, position=self.ledger.position(event), replay=False)
        self.publish(live, replace(generation, cursor=cursor))

    def applied(self, generation: Generation, limit: int | None = None) -> Generation | None:
        """Return the generation after its pending events, or None if nothing is pending."""
        pending = self.ledger.view_at(generation.cursor).pending(limit)
        if not pending.events:
            return None
        cursor = replace(generation.cursor, position=pending.position, replay=False)
        documents = fold(generation.documents, pending.events)
        return replace(generation, documents=documents, cursor=cursor)

    # Operations of users.

    def receive_some(self) -> None:
        """Receive or remove random documents; the receipt is an acknowledgement."""
        names = self.chance.choices(NAMES, k=self.chance.randint(1, 3))
        if self.chance.random() < 0.3:
            for name in names:
                self.truth[name] = None
            receipt = self.ledger.remove(names, "test")
        else:
            documents = [document(name, self.draw_text()) for name in names]
            for received in documents:
                self.truth[received.document_id] = received.text
            receipt = self.ledger.receive(documents, "test")
        self.acknowledged.update(receipt.events)

    def draw_text(self) -> str:
        """Draw a new text, or one that documents have at times."""
        if self.chance.random() < 0.8:
            return f"t{next(self.texts)}"
        return "t0"

    def apply(self, name: str, limit: int | None = None) -> None:
        """Apply pending events, at most `limit` of them."""
        live = self.lives[name]
        if live.current is None:
            return
        self.begin(live)
        generation = self.applied(live.now, limit)
        if generation is not None:
            self.publish(live, generation)

    def open_new(self, name: str, snapshot: bool = False) -> None:
        """Make and promote a build of a corpus, or of the documents that are live."""
        if snapshot:
            self.apply(self.default)
            source = self.lives[self.default].now
            corpus = source.documents
            position = source.cursor.position
            cursor = LedgerCursor(position, trained=position.event)
        else:
            corpus = self.chance.choice(self.corpora)
            cursor = LedgerCursor()
        build = Build(name, next(self.builds), corpus, cursor)
        self.known_builds.append(build)
        self.promote(build)

    def promote(self, build: Build) -> None:
        """Make a build live: in its newest generation that fits the log, or in a new one."""
        live = self.lives[build.retriever]
        self.begin(live)
        number = self.newest_generation_of(live, build)
        if number is None:
            first = self.first_generation_of(build)
        else:
            first = live.generations[number]

        generations = []
        if number is None or number != live.current:
            generations.append(first)
        after = self.applied(first)
        if after is not None:
            generations.append(after)
        if generations:
            self.publish(live, *generations)
        self.write()
        self.default = build.retriever

    def newest_generation_of(self, live: Live, build: Build) -> int | None:
        """Return the number of the build's generation with the last event of this log."""
        candidates = []
        for number, generation in live.generations.items():
            position = generation.cursor.position
            if generation.build == build.number and not self.ledger.mismatch(position):
                candidates.append((position.event, number))
        if not candidates:
            return None
        _, newest = max(candidates)
        return newest

    def first_generation_of(self, build: Build) -> Generation:
        """Return the documents of a build; all events are applied again if its log is lost."""
        cursor = build.cursor
        if self.ledger.mismatch(cursor.position):
            cursor = LedgerCursor(self.ledger.position(0), replay=True)
        return Generation(dict(build.corpus), cursor, build.corpus, build.number)

    def revert(self, number: int) -> None:
        """Go back to a generation, and correct what users must find and have a receipt for."""
        live = self.lives[self.default]
        self.begin(live)
        if number == live.current or number not in live.generations:
            return
        generation = live.generations[number]
        cursor = generation.cursor
        held = HeldDocuments(generation.documents)
        target = RevertTarget(live.name, number, cursor, live.current, live.now.cursor, held)
        self.write()
        log = self.log()
        is_exact = not cursor.replay and not self.ledger.mismatch(cursor.position)
        reached_event = cursor.position.event if is_exact else 0
        reached = effective(log, reached_event)
        searched = reached | effective(log, live.now.cursor.position.event)
        last_event = log[-1].id if log else 0
        counting = effective(log, last_event)
        first_of = first_events(log)
        searched_first = {first_of[event] for event in searched}
        waiting = []
        for event in log:
            if event.id in counting and first_of[event.id] not in searched_first:
                waiting.append(event)

        revert_event = self.ledger.revert(target)

        self.truth = {name: generation.documents.get(name) for name in self.truth}
        for event in waiting:
            self.truth[event.document_id] = text_of(event)
        kept = {first_of[event.id] for event in waiting}
        kept.update(first_of[event] for event in reached)
        self.acknowledged = {event for event in self.acknowledged if first_of[event] in kept}
        self.publish_reverted(live, number, revert_event)

    def rewind(self, name: str, number: int) -> None:
        """Search a generation again, with its own cursor."""
        live = self.lives[name]
        if live.current is None:
            return
        self.begin(live)
        if number in live.generations:
            self.publish(live, live.generations[number])

    def compact(self, name: str) -> None:
        """Write the same documents into a new generation."""
        live = self.lives[name]
        if live.current is not None:
            self.begin(live)
            self.publish(live, live.now)

    def collect_garbage(self, name: str) -> None:
        """Delete all generations but the last three and the current one."""
        live = self.lives[name]
        if live.current is None:
            return
        self.begin(live)
        kept = {*sorted(live.generations)[-3:], live.current}
        for number in live.generations.keys() - kept:
            self.write()
            del live.generations[number]

    def adopt(self, name: str) -> None:
        """Accept another log for the current generation, and apply all of its events."""
        live = self.lives[name]
        if live.current is None or not self.ledger.mismatch(live.now.cursor.position):
            return
        for number in uncommitted_numbers(live):
            del live.generations[number]
        cursor = LedgerCursor(self.ledger.position(0), replay=True)
        self.publish(live, replace(live.now, cursor=cursor))

    def drain(self) -> None:
        """Apply all pending events in every retriever, undisturbed."""
        self.kill_in = None
        self.busy = 0.0
        for name in self.lives:
            self.apply(name)

    # Another log in place of the first.

    def back_up(self, name: str) -> None:
        """Copy the log to a file."""
        self.ledger.close()
        shutil.copyfile(self.folder / "ledger.sqlite", self.folder / name)
        self.ledger = Ledger.open(self.url)

    def restore(self, name: str | None) -> None:
        """Replace the log by a copy, or by an empty log if `name` is None."""
        self.ledger.close()
        for path in self.folder.glob("ledger.sqlite*"):
            path.unlink()
        if name is not None:
            shutil.copyfile(self.folder / name, self.folder / "ledger.sqlite")
        self.ledger = Ledger.open(self.url)

    def log(self) -> list[Event]:
        """Return every event, including those that a revert writes."""
        return events_of(self.ledger)


class HeldDocuments:
    """Returns the documents of a generation by id."""

    def __init__(self, texts: Documents) -> None:
        self.texts = texts

    def __call__(self, names: Iterable[str]) -> dict[str, Document]:
        held = {}
        for name in names:
            if name in self.texts:
                held[name] = document(name, self.texts[name])
        return held


def uncommitted_numbers(live: Live) -> list[int]:
    """Return the numbers of the generations that were never searched."""
    return [number for number in live.generations if number > live.current]


def events_of(ledger: Ledger) -> list[Event]:
    """Return every event of a log as its table has it."""
    query = sa.select(events).order_by(events.c.id)
    with ledger._database.read() as connection:
        return [Event(**row._mapping) for row in connection.execute(query)]


def text_of(event: Event) -> str | None:
    """Return the text that an event gives its document, or None if it removes the document."""
    if event.document is None:
        return None
    return event.document.text


def first_events(log: Iterable[Event]) -> dict[int, int]:
    """Return, for each event, the event that it repeats, or itself."""
    return {event.id: event.again or event.id for event in log}


def fold(documents: Documents, events: Iterable[Event]) -> Documents:
    """Return the documents after events, in their order."""
    after = dict(documents)
    for event in events:
        if event.kind == EventKind.PUT:
            after[event.document_id] = event.document.text
        elif event.kind == EventKind.REMOVE:
            after.pop(event.document_id, None)
    return after


def effective(log: list[Event], number: int) -> set[int]:
    """Return the events that count after event `number`, by the definition, event by event."""
    counting_after: dict[int, set[int]] = {0: set()}
    counting: set[int] = set()
    for event in log:
        if event.kind == EventKind.REVERT:
            counting = set(counting_after[event.payload["to"]])
        else:
            counting = counting | {event.id}
        counting_after[event.id] = counting
    return counting_after[number]


def step(world: World, chance: random.Random) -> None:
    """Do a random operation. Frequent operations are named twice."""
    name = chance.choice(list(world.lives))
    default = world.lives[world.default]
    operation = chance.choice(
        [
            "receive",
            "receive",
            "apply",
            "apply some",
            "apply default",
            "revert",
            "revert",
            "rewind",
            "open build",
            "open snapshot",
            "promote",
            "compact",
            "collect garbage",
        ]
    )
    if operation == "receive":
        world.receive_some()
    elif operation == "apply":
        world.apply(name)
    elif operation == "apply some":
        world.apply(name, chance.randint(1, 4))
    elif operation == "apply default":
        world.apply(world.default)
    elif operation == "revert":
        world.revert(chance.choice(list(default.generations)))
    elif operation == "rewind":
        world.rewind(name, chance.choice(list(world.lives[name].generations or [0])))
    elif operation == "open build":
        world.open_new(name)
    elif operation == "open snapshot":
        world.open_new(name, snapshot=True)
    elif operation == "promote":
        world.promote(chance.choice(world.known_builds))
    elif operation == "compact":
        world.compact(name)
    else:
        world.collect_garbage(name)
