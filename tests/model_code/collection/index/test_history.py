"""Guards histories of two live retrievers: random clients against a plain model, while files fail
under them.

Clients add, update and delete, drop files into the inbox, follow a source, revert, rewind, compact,
erase, collect garbage, and release builds of either retriever, which is searched by default then.
Between any two steps the process may die before any operation on a file, or one such operation may
fail: the disk is full, or does not answer. Another process may be killed, or find the disk full in
the middle of any write, SQLite's too. What was received must be found after the next application,
in both retrievers, as the model has it, and `freshet verify` must find nothing.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model_code.audit import AuditLog
from model_code.collection.backup.repair import find_damage
from model_code.collection.erase import erase_documents
from model_code.collection.generations.generation_store import default_retriever
from model_code.collection.index.builds import open_build as release_build
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.segments.documents import document_row
from model_code.collection.sync.inbox import INBOX, receive_inbox, waiting
from model_code.collection.sync.sync import sync
from model_code.errors import FreshetError
from model_code.text.documents import Document
from tests.benchmarks.test_faults import MUTATIONS
from tests.disk import skip_fsync
from tests.live_example import (
    BASE,
    StandInBuilder,
    make_generation,
    make_project,
    open_build,
    row,
    texts,
)
from tests.model_code.collection.backup.test_backup import held_in

NAMES = ("hce", "other")
CHANGED = [*BASE, *(f"n{number}" for number in range(8))]
# Documents of the named source `source`, whose ids begin with its name.
SOURCE_PREFIX = "source:"
OF_SOURCE = [f"{SOURCE_PREFIX}s{number}" for number in range(5)]
IDS = [*CHANGED, *OF_SOURCE]
NOTICED = (
    "what waits is rolled back at recovery",
    "the pointer moves before the folder has its name",
    "a document of a batch is dropped",
    "the last event is passed over",
    "a removal is lost",
    "a revert compensates nothing",
    "a build is opened as if it held all that arrived",
)
FAILING = ("rename", "replace", "mkdir", "unlink", "rmdir", "fsync")
ACTIONS = (
    *("put",) * 3,
    *("apply",) * 3,
    "remove",
    "update",
    "follow",
    "revert",
    "compact",
    "collect",
    "rewind",
    "release",
    "sync",
    "inbox",
    "erase",
)
# which another process may do
PLAIN = ("put", "update", "remove", "apply", "follow", "revert", "compact", "collect")
LIMITS = (1 << 9, 1 << 11, 1 << 13, 1 << 15)  # bytes of a file, past which a write stops short
State = dict[str, str]
Change = tuple[str, str | None]


class Dead(BaseException):
    """The process is dead: nothing catches this, and nothing that it would still do happens."""


@contextmanager
def fault(chance: random.Random, kind: str | None) -> Iterator[None]:
    """In this block one operation on a file fails, and if the process is dead, all later ones do;
    None: all is well.
    """
    left = chance.randrange(20)

    def failing(real):
        def operation(*arguments, **options):
            nonlocal left
            left -= 1
            if kind == "dead" and left < 0:
                raise Dead
            if left == -1:
                raise OSError(errno.ENOSPC if kind == "full" else errno.EIO, "the disk fails")
            return real(*arguments, **options)

        return operation

    def short(path, text, **options):
        """Half of a text is written where the disk is full."""
        if kind == "full" and left == 0:
            real_text(path, text[: len(text) // 2], **options)
        return real_text(path, text, **options)  # which then fails, as it is counted

    real_text = Path.write_text
    with pytest.MonkeyPatch.context() as patch:
        if kind is not None:
            patch.setattr(Path, "write_text", failing(short))
        for name in FAILING if kind is not None else ():
            patch.setattr(os, name, failing(getattr(os, name)))
        yield


def elsewhere(chance: random.Random, work: Callable[[], None]) -> bytes:
    """Do it in another process, which is killed, or whose writes stop short; what it acknowledged."""
    limit = chance.choice((None, *LIMITS))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            History.acknowledge = lambda self, changes: os.write(writing, b"+")
            work()
        finally:
            os._exit(0)
    os.close(writing)
    if limit is None:
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as said:
        return said.read()


class History:
    """A project with two live retrievers, and what it must hold.

    told: all that was received; searched: what the default retriever was seen to hold last;
    waiting: what came since, in order; held: what each generation holds that was searched by
    default; source: what a followed file holds.
    """

    def __init__(self, root, seed: int) -> None:
        self.chance, self.project = random.Random(seed), make_project(root)
        open_build(self.project, BASE, retriever="other")
        self.told: State = dict(BASE)
        self.searched: State = dict(BASE)
        self.waiting: list[Change] = []
        self.held: dict[tuple[str, int], State] = {("hce", 0): dict(BASE)}
        self.source: State = {}
        self.written = 0
        self.done: list[str] = []

    @property
    def default(self) -> str:
        return default_retriever(self.project.live)

    @property
    def behind(self) -> str:
        """The retriever that is not searched by default."""
        return next(name for name in NAMES if name != self.default)

    def step(self) -> None:
        """One operation of a client, which in one of two cases meets a fault; then look."""
        action = self.chance.choice(ACTIONS)
        kinds = ("dead", "full", "broken", *(("process",) if action in PLAIN else ()))
        kind = self.chance.choice(kinds) if self.chance.random() < 1 / 2 else None
        self.done.append(f"{action} {kind or ''}".strip())
        collection = LiveIndex(
            self.project, self.behind if action in ("follow", "rewind") else None
        )
        allowed, number = [self.told], 0
        if action in ("revert", "rewind"):
            number = self.chance.choice(self.numbers(collection))
            if action == "revert" and number != collection.generation.number:
                allowed.append(folded(self.held[self.default, number], self.waiting))
        changes = self.changes(action)
        try:
            if kind == "process":
                self.in_another_process(collection, action, number, changes)
            else:
                with fault(self.chance, kind):
                    self.perform(collection, action, number, changes)
        except (Dead, OSError):
            assert kind is not None, self.done[-5:]
        # to what still holds a text that was to be erased; nothing has changed then
        except FreshetError as error:
            if action != "revert" or "which was erased" not in str(error):
                raise
            del allowed[1:]
        finally:
            collection.ledger.close()
        if action == "inbox":  # what was dropped is acknowledged, and looked at until it is taken
            receive_inbox(collection)
            assert waiting(self.project) == []
        if len(allowed) > 1:
            self.settle(allowed, kind is not None)
        self.look()

    def numbers(self, collection: LiveIndex) -> list[int]:
        """The newest generations that one may go back to; none that a process left which died
        before the switch.
        """
        current, every = collection.generation.number, collection.store.generations()
        whole = [each.number for each in every if each.complete and each.number <= current]
        if collection.retriever != self.default:
            return whole[-4:]
        return [number for number in whole if (self.default, number) in self.held][-4:]

    def changes(self, action: str) -> list[Change]:
        """What a client is about to say, on the disk already where it is a file."""
        ids = self.chance.sample(CHANGED, self.chance.randint(1, 3))
        if action in ("remove", "erase"):
            return [(one, None) for one in ids if one in self.told]
        self.written += 1
        if action == "sync":
            self.source = {one: self.text(one) for one in OF_SOURCE if self.chance.random() < 0.6}
            rows = [(one.removeprefix(SOURCE_PREFIX), text) for one, text in self.source.items()]
            self.write("source.jsonl", rows)
        said = [(one, self.text(one)) for one in ids]
        if action == "inbox":
            self.write(f"{INBOX}/{self.written}.jsonl", said)
        return said

    def text(self, one: str) -> str:
        """Half of the texts are of few, so that documents are said to be what they are already."""
        return f"text-{self.written if self.chance.random() < 0.5 else self.chance.randrange(3)}-of-{one}."

    def write(self, name: str, said: list[Change]) -> None:
        path = self.project.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row(*each)) + "\n" for each in said))

    def perform(
        self, collection: LiveIndex, action: str, number: int, changes: list[Change]
    ) -> None:
        """Do it; what is received is acknowledged at once, see `telling`."""
        ids = [one for one, _ in changes]
        known = action == "update"
        doing: dict[str, Callable[[], object]] = {
            "put": lambda: collection.receive(
                [row(*each) for each in changes], "client", only_known=known
            ),
            "remove": lambda: collection.remove(ids, "client"),
            "erase": lambda: self.erase(collection, ids),
            "sync": lambda: self.follow_source(collection),
            "inbox": lambda: receive_inbox(collection),
            "release": self.release,
            "apply": collection.apply,
            "rewind": lambda: (collection.rewind(number), collection.apply()),
            "revert": lambda: collection.revert(number),
            "compact": collection.compact,
            "collect": lambda: collection.collect_garbage(keep=4),
        }
        doing[{"update": "put", "follow": "apply"}.get(action, action)]()

    def follow_source(self, collection: LiveIndex) -> None:
        """The index holds of the source what the source holds."""
        sync(collection, "source.jsonl", force=True, cwd=self.project.root)
        assert self.source == {one: self.told[one] for one in OF_SOURCE if one in self.told}, (
            self.done[-5:]
        )

    def in_another_process(
        self, collection: LiveIndex, action: str, number: int, changes: list[Change]
    ) -> None:
        """Do it there. What was acknowledged was received, and more may have been: all of a batch
        or nothing.
        """
        known = [each for each in changes if action == "put" or each[0] in self.told]
        new = [(one, text) for one, text in known if self.told.get(one) != text]
        said = elsewhere(
            self.chance,
            lambda: self.perform(
                LiveIndex(self.project, collection.retriever), action, number, changes
            ),
        )
        if action not in ("put", "update", "remove"):
            return
        last = collection.ledger.latest([one for one, _ in new])
        logged = [
            (one, last[one].payload["text"] if last[one].payload else None)
            for one, _ in new
            if one in last
        ]
        arrived = bool(new) and logged == new
        assert arrived or not (said and new), self.done[-5:]
        assert arrived or logged == [(one, self.told.get(one)) for one, _ in logged], (
            self.done[-5:],
            "half a batch",
        )
        if arrived:
            self.acknowledge(new)

    def erase(self, collection: LiveIndex, ids: list[str]) -> None:
        """Afterwards no file has their texts, unless that is said."""
        secrets = [text for one in ids if (text := self.told[one]).startswith("text-")]
        with suppress_remaining() as said:
            erase_documents(collection, ids)
        if said:
            return
        self.waiting = []
        assert [file for secret in secrets for file in held_in(self.project.live, secret)] == [], (
            self.done[-5:]
        )

    def release(self) -> None:
        """A build on what is live, of either retriever, while a document arrives; it is searched by
        default then.
        """
        collection = LiveIndex(self.project)
        documents, snapshot = (
            texts(self.project, IDS, self.default),
            collection.generation.cursor.position,
        )
        collection.receive([row("n0", self.text("n0"))], "while it was trained")
        collection.ledger.close()
        release_build(self.project, self.chance.choice(NAMES), documents, {}, None, snapshot)

    def acknowledge(self, changes: list[Change]) -> None:
        """Somebody was told that this was received."""
        new = [(one, text) for one, text in changes if self.told.get(one) != text]
        self.told = folded(self.told, new)
        self.waiting += new

    def settle(self, allowed: list[State], faulty: bool) -> None:
        """A revert happened or did not; without a fault it did. What waited is applied next."""
        collection = LiveIndex(self.project)
        collection.recover()
        collection.apply()
        collection.ledger.close()
        found = texts(self.project, IDS, self.default)
        assert found in (allowed if faulty else allowed[1:]), self.done[-5:]
        self.told = found

    def look(self) -> None:
        """A search finds what it did before, or all that was received: never a part, and never less
        than before.
        """
        found, number = (
            texts(self.project, IDS, self.default),
            LiveIndex(self.project).generation.number,
        )
        assert found in (self.searched, self.told), (self.done[-5:], found, self.told)
        if found == self.told:
            self.searched, self.waiting = found, []
        self.held[self.default, number] = found

    def drain(self) -> None:
        """Both retrievers take in what waits, in any order: both hold all that was received, and
        all is whole.
        """
        for name in self.chance.sample(NAMES, 2):
            collection = LiveIndex(self.project, name)
            collection.apply()
            collection.ledger.close()
        assert texts(self.project, IDS) == texts(self.project, IDS, "other") == self.told, (
            self.done[-5:]
        )
        assert list(find_damage(self.project)) == [], self.done[-5:]
        self.look()


@contextmanager
def suppress_remaining() -> Iterator[list[str]]:
    """Texts of a build remain, which is said."""
    said: list[str] = []
    try:
        yield said
    except FreshetError as error:
        if "texts remain" not in str(error):
            raise
        said.append(str(error))


def folded(state: State, changes: list[tuple[str, str | None]]) -> State:
    """A state after changes, in their order."""
    last = dict(state) | dict(changes)
    return {one: text for one, text in sorted(last.items()) if text is not None}


def telling(history: History, patch: pytest.MonkeyPatch) -> None:
    """Whatever receives documents for a client, at any door, acknowledges them; writers and builds
    have no vectors.
    """
    # A process that dies at its line of the audit log has recorded a change and acknowledged none.
    # Killed processes of these histories do that; a fault of a file could not be told apart.
    patch.setattr(AuditLog, "append", lambda *_, **__: None)
    record = LiveIndex.record
    remove = LiveIndex.remove

    def recorded(self, documents, source, *arguments):
        documents = list(documents)
        receipt = record(self, documents, source, *arguments)
        if receipt.events:
            history.acknowledge([(each.document_id, each.text) for each in documents])
        return receipt

    def removed(self, document_ids, source):
        ids = list(document_ids)
        receipt = remove(self, ids, source)
        history.acknowledge([(one, None) for one in ids])
        return receipt

    def add_build(collection, documents, provenance, text, cursor, choose):
        rows = [document_row(make_document(*each)) for each in documents.items()]
        return make_generation(collection, rows, None, cursor, provenance)

    patch.setattr(LiveIndex, "record", recorded)
    patch.setattr(LiveIndex, "remove", removed)
    for module in ("builds", "live_index"):
        writer = f"model_code.collection.index.{module}.make_generation_builder"
        patch.setattr(writer, lambda own, name, opened=None: StandInBuilder(own.live, name))
    patch.setattr("model_code.collection.index.builds.add_build", add_build)


def make_document(document_id, text):
    """Return a document as its source or client sends it: its title is its name there."""
    if document_id in OF_SOURCE:
        return Document(
            document_id, document_id.removeprefix(SOURCE_PREFIX), text, fields={"source": "source"}
        )
    return Document(document_id, document_id, text)


def live(root, monkeypatch, seed: int, steps: int) -> None:
    skip_fsync(monkeypatch)
    history = History(root, seed)
    with pytest.MonkeyPatch.context() as patch:
        telling(history, patch)
        for number in range(steps):
            history.step()
            if number % 10 == 9:
                history.drain()
    assert sum("dead" in each for each in history.done) > steps / 40
    assert {each.partition(" ")[0] for each in history.done} == set(ACTIONS)


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 150), *(pytest.param(seed, 500, marks=pytest.mark.long) for seed in range(1, 21))],
)
def test_no_history_loses_what_was_received(tmp_path, monkeypatch, seed, steps):
    live(tmp_path, monkeypatch, seed, steps)


@pytest.mark.parametrize("mutation", NOTICED)
def test_a_history_that_is_wrong_is_noticed(tmp_path, monkeypatch, mutation):
    owner, name, change = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    with pytest.raises((AssertionError, FreshetError)):
        live(tmp_path, monkeypatch, seed=1, steps=150)
