"""Tests of random histories of two live retrievers against a plain model, while files fail.

Clients add, update and delete documents, drop files into the inbox, follow a source, revert, rewind,
compact, erase, collect garbage, and release builds of either retriever, which is searched by default
then.

Between any two steps the process may die before any operation on a file, or one such operation may
fail: the disk is full, or does not answer. Another process may be killed, or find the disk full in
the middle of any write, including SQLite's.

After the next application, both retrievers must hold what was received, as the model has it, and
`freshet verify` must find nothing.
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
# Mutations that a wrong history must reveal.
NOTICED = (
    "what waits is rolled back at recovery",
    "the pointer moves before the folder has its name",
    "a document of a batch is dropped",
    "the last event is passed over",
    "a removal is lost",
    "a revert compensates nothing",
    "a build is opened as if it held all that arrived",
)
FAILING_OPERATIONS = ("rename", "replace", "mkdir", "unlink", "rmdir", "fsync")
# Actions of clients; frequent actions are named three times.
ACTIONS = (
    "put",
    "put",
    "put",
    "apply",
    "apply",
    "apply",
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
# Actions that another process may do.
PROCESS_ACTIONS = ("put", "update", "remove", "apply", "follow", "revert", "compact", "collect")
# Bytes of a file after which a write stops short.
FILE_SIZE_LIMITS = (1 << 9, 1 << 11, 1 << 13, 1 << 15)
State = dict[str, str]
Change = tuple[str, str | None]


class Dead(BaseException):
    """The process is dead: no code catches this, and no later operation happens."""


@contextmanager
def fault(chance: random.Random, kind: str | None) -> Iterator[None]:
    """Let one operation on a file fail, and all later ones if the process is dead.

    Args:
        chance: Chooses the operation.
        kind: `dead`, `full` for a full disk, `broken` for a disk that does not answer, or None.
    """
    if kind is None:
        yield
        return

    remaining = chance.randrange(20)

    def fail_at_last(operation):
        def count_and_call(*arguments, **options):
            nonlocal remaining
            remaining -= 1
            if kind == "dead" and remaining < 0:
                raise Dead
            if remaining == -1:
                code = errno.ENOSPC if kind == "full" else errno.EIO
                raise OSError(code, "the disk fails")
            return operation(*arguments, **options)

        return count_and_call

    write_text = Path.write_text

    def write_half_if_full(path, text, **options):
        """Write half of a text before the write that finds the disk full."""
        if kind == "full" and remaining == 0:
            write_text(path, text[: len(text) // 2], **options)
        return write_text(path, text, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_text", fail_at_last(write_half_if_full))
        for name in FAILING_OPERATIONS:
            patch.setattr(os, name, fail_at_last(getattr(os, name)))
        yield


def run_elsewhere(chance: random.Random, work: Callable[[], None]) -> bytes:
    """Do work in another process, which is killed, or whose writes stop short.

    Returns:
        One byte for each acknowledgement.
    """
    limit = chance.choice((None, *FILE_SIZE_LIMITS))
    reading, writing = os.pipe()

    def acknowledge(self: History, changes: list[Change]) -> None:
        os.write(writing, b"+")

    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            History.acknowledge = acknowledge
            work()
        finally:
            os._exit(0)

    os.close(writing)
    if limit is None:
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as acknowledgements:
        return acknowledgements.read()


class History:
    """A project with two live retrievers, and the state that it must have.

    Attributes:
        received: Documents after all that was received.
        searched: Documents that the default retriever was last seen to hold.
        waiting: Changes that arrived since, in order.
        held: Documents of each generation that was searched by default.
        source: Documents of the file that is followed.
        written: Number of batches that clients have written.
        done: Actions and their faults, in order.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.project = make_project(root)
        open_build(self.project, BASE, retriever="other")
        self.received: State = dict(BASE)
        self.searched: State = dict(BASE)
        self.waiting: list[Change] = []
        self.held: dict[tuple[str, int], State] = {("hce", 0): dict(BASE)}
        self.source: State = {}
        self.written = 0
        self.done: list[str] = []

    @property
    def default(self) -> str:
        """Name of the retriever that is searched by default."""
        return default_retriever(self.project.live)

    @property
    def behind(self) -> str:
        """Name of the other retriever."""
        return next(name for name in NAMES if name != self.default)

    def step(self) -> None:
        """Do one action of a client, which in one of two cases meets a fault; then check."""
        action = self.chance.choice(ACTIONS)
        kind = self.draw_fault(action)
        self.done.append(f"{action} {kind or ''}".strip())
        retriever = self.behind if action in ("follow", "rewind") else None
        index = LiveIndex(self.project, retriever)
        number = 0
        if action in ("revert", "rewind"):
            number = self.chance.choice(self.numbers(index))
        allowed = self.states_after(action, index, number)
        changes = self.draw_changes(action)

        try:
            if kind == "process":
                self.act_in_another_process(index, action, number, changes)
            else:
                with fault(self.chance, kind):
                    self.act(index, action, number, changes)
        except (Dead, OSError):
            assert kind is not None, self.done[-5:]
        except FreshetError as error:
            # A generation with an erased text cannot be searched again. Nothing has changed then.
            if action != "revert" or "which was erased" not in str(error):
                raise
            allowed = [self.received]
        finally:
            index.ledger.close()

        if action == "inbox":
            # A dropped file is acknowledged, and is looked at until it is received.
            receive_inbox(index)
            assert waiting(self.project) == []
        if len(allowed) > 1:
            self.settle(allowed, kind is not None)
        self.check_search()

    def draw_fault(self, action: str) -> str | None:
        """Draw the kind of a fault, or None."""
        kinds = ["dead", "full", "broken"]
        if action in PROCESS_ACTIONS:
            kinds.append("process")
        if self.chance.random() < 1 / 2:
            return self.chance.choice(kinds)
        return None

    def states_after(self, action: str, index: LiveIndex, number: int) -> list[State]:
        """Return the states that the project may have after an action, the present one first.

        A revert brings back the documents of its generation, and keeps what waits.
        """
        states = [self.received]
        if action == "revert" and number != index.generation.number:
            states.append(apply_to(self.held[self.default, number], self.waiting))
        return states

    def numbers(self, index: LiveIndex) -> list[int]:
        """Return the newest generations that a client may go back to.

        A process that died before the switch may have left a generation that is none of them.
        """
        current = index.generation.number
        whole = []
        for generation in index.store.generations():
            if generation.complete and generation.number <= current:
                whole.append(generation.number)
        if index.retriever == self.default:
            whole = [number for number in whole if (self.default, number) in self.held]
        return whole[-4:]

    def draw_changes(self, action: str) -> list[Change]:
        """Draw the changes that a client is about to send. Files of changes are written already."""
        ids = self.chance.sample(CHANGED, self.chance.randint(1, 3))
        if action in ("remove", "erase"):
            return [(name, None) for name in ids if name in self.received]

        self.written += 1
        if action == "sync":
            in_source = [name for name in OF_SOURCE if self.chance.random() < 0.6]
            self.source = {name: self.draw_text(name) for name in in_source}
            rows = []
            for name, text in self.source.items():
                rows.append((name.removeprefix(SOURCE_PREFIX), text))
            self.write_rows("source.jsonl", rows)
        changes = [(name, self.draw_text(name)) for name in ids]
        if action == "inbox":
            self.write_rows(f"{INBOX}/{self.written}.jsonl", changes)
        return changes

    def draw_text(self, name: str) -> str:
        """Draw a new text, or one of three, which the document may have already."""
        number = self.written
        if self.chance.random() >= 0.5:
            number = self.chance.randrange(3)
        return f"text-{number}-of-{name}."

    def write_rows(self, name: str, changes: list[Change]) -> None:
        """Write changes into a file of the project."""
        path = self.project.root / name
        path.parent.mkdir(exist_ok=True)
        lines = [json.dumps(row(document_id, text)) + "\n" for document_id, text in changes]
        path.write_text("".join(lines))

    def act(self, index: LiveIndex, action: str, number: int, changes: list[Change]) -> None:
        """Do an action. What is received is acknowledged at once; see `record_acknowledgements`."""
        ids = [document_id for document_id, _ in changes]
        if action in ("put", "update"):
            rows = [row(document_id, text) for document_id, text in changes]
            index.receive(rows, "client", only_known=action == "update")
        elif action in ("apply", "follow"):
            index.apply()
        elif action == "remove":
            index.remove(ids, "client")
        elif action == "erase":
            self.erase(index, ids)
        elif action == "sync":
            self.follow_source(index)
        elif action == "inbox":
            receive_inbox(index)
        elif action == "release":
            self.release()
        elif action == "rewind":
            index.rewind(number)
            index.apply()
        elif action == "revert":
            index.revert(number)
        elif action == "compact":
            index.compact()
        else:
            index.collect_garbage(keep=4)

    def follow_source(self, index: LiveIndex) -> None:
        """Synchronise the source. Then the index holds the documents that the source holds."""
        sync(index, "source.jsonl", force=True, cwd=self.project.root)
        of_source = {name: self.received[name] for name in OF_SOURCE if name in self.received}
        assert self.source == of_source, self.done[-5:]

    def act_in_another_process(
        self, index: LiveIndex, action: str, number: int, changes: list[Change]
    ) -> None:
        """Do an action in a process that is killed.

        What was acknowledged was received, and more may have been: all of a batch or nothing.
        """
        new = []
        for document_id, text in changes:
            is_known = action == "put" or document_id in self.received
            if is_known and self.received.get(document_id) != text:
                new.append((document_id, text))

        def act_there() -> None:
            self.act(LiveIndex(self.project, index.retriever), action, number, changes)

        acknowledged = run_elsewhere(self.chance, act_there)
        if action not in ("put", "update", "remove"):
            return

        events = index.ledger.latest([document_id for document_id, _ in new])
        logged = []
        before = []
        for document_id, _ in new:
            if document_id in events:
                payload = events[document_id].payload
                logged_text = payload["text"] if payload else None
                logged.append((document_id, logged_text))
                before.append((document_id, self.received.get(document_id)))
        has_arrived = bool(new) and logged == new
        if has_arrived:
            self.acknowledge(new)
            return
        assert not (acknowledged and new), self.done[-5:]
        assert logged == before, (self.done[-5:], "half a batch")

    def erase(self, index: LiveIndex, ids: list[str]) -> None:
        """Erase documents. Then no file has their texts, unless this is reported."""
        texts_of_ids = [self.received[document_id] for document_id in ids]
        secrets = [text for text in texts_of_ids if text.startswith("text-")]
        with suppress_remaining() as reported:
            erase_documents(index, ids)
        if reported:
            return

        self.waiting = []
        for secret in secrets:
            assert list(held_in(self.project.live, secret)) == [], self.done[-5:]

    def release(self) -> None:
        """Release a build of either retriever, made of what is live, while a document arrives.

        The retriever is searched by default then.
        """
        index = LiveIndex(self.project)
        documents = texts(self.project, IDS, self.default)
        snapshot = index.generation.cursor.position
        index.receive([row("n0", self.draw_text("n0"))], "while it was trained")
        index.ledger.close()
        release_build(self.project, self.chance.choice(NAMES), documents, {}, None, snapshot)

    def acknowledge(self, changes: list[Change]) -> None:
        """Record that a client has a receipt of changes."""
        new = []
        for document_id, text in changes:
            if self.received.get(document_id) != text:
                new.append((document_id, text))
        self.received = apply_to(self.received, new)
        self.waiting += new

    def settle(self, allowed: list[State], is_faulty: bool) -> None:
        """Find out whether a revert happened; without a fault it did. Then apply what waits."""
        index = LiveIndex(self.project)
        index.recover()
        index.apply()
        index.ledger.close()
        found = texts(self.project, IDS, self.default)
        if not is_faulty:
            allowed = allowed[1:]
        assert found in allowed, self.done[-5:]
        self.received = found

    def check_search(self) -> None:
        """Check that a search finds what it did before, or all that was received.

        It never finds a part of a batch, and never less than before.
        """
        found = texts(self.project, IDS, self.default)
        number = LiveIndex(self.project).generation.number
        assert found in (self.searched, self.received), (self.done[-5:], found, self.received)
        if found == self.received:
            self.searched = found
            self.waiting = []
        self.held[self.default, number] = found

    def drain(self) -> None:
        """Apply what waits in both retrievers, in any order.

        Then both hold all that was received, and nothing is damaged.
        """
        for name in self.chance.sample(NAMES, 2):
            index = LiveIndex(self.project, name)
            index.apply()
            index.ledger.close()
        for name in NAMES:
            assert texts(self.project, IDS, name) == self.received, self.done[-5:]
        assert list(find_damage(self.project)) == [], self.done[-5:]
        self.check_search()


@contextmanager
def suppress_remaining() -> Iterator[list[str]]:
    """Collect the report that texts of a build remain, instead of raising it."""
    reported: list[str] = []
    try:
        yield reported
    except FreshetError as error:
        if "texts remain" not in str(error):
            raise
        reported.append(str(error))


def apply_to(state: State, changes: list[Change]) -> State:
    """Return a state after changes, in their order."""
    after: dict[str, str | None] = {**state, **dict(changes)}
    return {name: text for name, text in sorted(after.items()) if text is not None}


def make_document(document_id: str, text: str) -> Document:
    """Return a document as its source or client sends it: its title is its name there."""
    if document_id in OF_SOURCE:
        title = document_id.removeprefix(SOURCE_PREFIX)
        return Document(document_id, title, text, fields={"source": "source"})
    return Document(document_id, document_id, text)


def record_acknowledgements(history: History, patch: pytest.MonkeyPatch) -> None:
    """Let every receipt of a document be acknowledged in the history, at any door.

    Builders and builds have no vectors.
    """
    # A process that dies at its line of the audit log has recorded a change and acknowledged none.
    # Killed processes of these histories do that; a fault of a file could not be told apart.
    patch.setattr(AuditLog, "append", lambda *_, **__: None)
    record = LiveIndex.record
    remove = LiveIndex.remove

    def record_and_acknowledge(self, documents, source, *arguments):
        documents = list(documents)
        receipt = record(self, documents, source, *arguments)
        if receipt.events:
            history.acknowledge([(document.document_id, document.text) for document in documents])
        return receipt

    def remove_and_acknowledge(self, document_ids, source):
        ids = list(document_ids)
        receipt = remove(self, ids, source)
        history.acknowledge([(document_id, None) for document_id in ids])
        return receipt

    def add_build(store, documents, provenance, text, cursor, choose):
        rows = []
        for document_id, document_text in documents.items():
            rows.append(document_row(make_document(document_id, document_text)))
        return make_generation(store, rows, None, cursor, provenance)

    def make_stand_in(project, name, find_ledger, opened=None):
        return StandInBuilder(project.live, name)

    patch.setattr(LiveIndex, "record", record_and_acknowledge)
    patch.setattr(LiveIndex, "remove", remove_and_acknowledge)
    for module in ("builds", "live_index"):
        make_builder = f"model_code.collection.index.{module}.make_generation_builder"
        patch.setattr(make_builder, make_stand_in)
    patch.setattr("model_code.collection.index.builds.add_build", add_build)


def live(root: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int) -> History:
    """Do random steps of a history, and drain it after every tenth."""
    skip_fsync(monkeypatch)
    history = History(root, seed)
    with pytest.MonkeyPatch.context() as patch:
        record_acknowledgements(history, patch)
        for number in range(steps):
            history.step()
            if number % 10 == 9:
                history.drain()
    return history


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 150), *(pytest.param(seed, 500, marks=pytest.mark.long) for seed in range(1, 21))],
)
def test_no_history_loses_what_was_received(tmp_path, monkeypatch, seed, steps):
    history = live(tmp_path, monkeypatch, seed, steps)

    deaths = [action for action in history.done if "dead" in action]
    assert len(deaths) > steps / 40
    assert {action.partition(" ")[0] for action in history.done} == set(ACTIONS)


@pytest.mark.parametrize("mutation", NOTICED)
def test_wrong_history_is_noticed(tmp_path, monkeypatch, mutation):
    owner, name, mutate = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, mutate(getattr(owner, name)))

    with pytest.raises((AssertionError, FreshetError)):
        live(tmp_path, monkeypatch, seed=1, steps=150)
