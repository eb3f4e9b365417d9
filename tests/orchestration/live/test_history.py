"""Guards histories of two live retrievers: random clients against a plain model, while files fail under them.

Between any two steps the process may die before any operation on a file, or one such operation may fail: the disk is
full, or does not answer. What was received must be found after the next application, in both retrievers, as the model
has it, and `freshet verify` must find nothing.

pytest tests/orchestration/live/test_history.py
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from model_code.errors import FreshetError
from orchestration.live.collection import LiveCollection
from orchestration.live.verify import problems
from tests.benchmarks.test_faults import MUTATIONS
from tests.orchestration.live_example import BASE, StandInWriter, make_project, open_build, texts

IDS = [*BASE, *(f"n{number}" for number in range(8))]
NOTICED = (
    "what waits is rolled back at recovery",
    "the pointer moves before the folder has its name",
    "a document of a batch is dropped",
    "the last event is passed over",
    "a removal is lost",
    "a revert compensates nothing",
)
FAILING = ("rename", "replace", "mkdir", "unlink", "rmdir", "fsync")
ACTIONS = ("put", "put", "remove", "apply", "apply", "follow", "revert", "compact", "collect")
State = dict[str, str]


class Dead(BaseException):
    """The process is dead: nothing catches this, and nothing that it would still do happens."""


@contextmanager
def fault(chance: random.Random, kind: str) -> Iterator[None]:
    """In this block one operation on a file fails, and if the process is dead, all later ones do."""
    left = chance.randrange(12)

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

    with pytest.MonkeyPatch.context() as patch:
        for name in FAILING:
            patch.setattr(os, name, failing(getattr(os, name)))
        yield


class History:
    """A project with two live retrievers, and what it must hold.

    told: all that was received; searched: what the default retriever was seen to hold last; waiting: what came since,
    in order; held: what each of its generations holds.
    """

    def __init__(self, root, seed: int) -> None:
        self.chance, self.project = random.Random(seed), make_project(root)
        open_build(self.project, BASE, retriever="other")
        self.told: State = dict(BASE)
        self.searched: State = dict(BASE)
        self.waiting: list[tuple[str, str | None]] = []
        self.held: dict[int, State] = {0: dict(BASE)}
        self.done: list[str] = []

    def collection(self, name: str) -> LiveCollection:
        collection = LiveCollection(self.project, name)
        collection.__dict__["writer"] = StandInWriter(self.project.live, name)
        return collection

    def step(self) -> None:
        """One operation of a client, which in one of three cases meets a fault; then look."""
        action = self.chance.choice(ACTIONS)
        kind = self.chance.choice(("dead", "full", "broken")) if self.chance.random() < 1 / 3 else None
        self.done.append(f"{action} {kind or ''}".strip())
        name = "other" if action == "follow" else "hce"
        collection, allowed, number = self.collection(name), [self.told], 0
        if action == "revert":
            whole = {each.number for each in collection.collection.generations() if each.whole}
            number = self.chance.choice(sorted(self.held.keys() & whole)[-4:])
            if number != collection.generation.number:
                allowed.append(folded(self.held[number], self.waiting))
        try:
            if kind is None:
                self.perform(collection, action, number)
            else:
                with fault(self.chance, kind):
                    self.perform(collection, action, number)
        except (Dead, OSError):
            assert kind is not None, self.done[-5:]
        finally:
            collection.ledger.close()
        if len(allowed) > 1:
            self.settle(allowed, kind is not None)
        self.look()

    def perform(self, collection: LiveCollection, action: str, number: int) -> None:
        """Do it; what was received is told at once."""
        ids = self.chance.sample(IDS, self.chance.randint(1, 3))
        if action == "put":
            rows = [{"id": one, "title": one, "text": f"text {self.chance.randrange(1000)}"} for one in ids]
            collection.receive(rows, "client")
            self.tell([(row["id"], row["text"]) for row in rows])
        elif action == "remove":
            known = [one for one in ids if one in self.told]
            collection.remove(known, "client")
            self.tell([(one, None) for one in known])
        elif action in ("apply", "follow"):
            collection.apply()
        elif action == "revert":
            collection.revert(number)
        elif action == "compact":
            collection.compact()
        else:
            collection.collect_garbage(keep=4)

    def tell(self, changes: list[tuple[str, str | None]]) -> None:
        self.told = folded(self.told, changes)
        self.waiting += changes

    def settle(self, allowed: list[State], faulty: bool) -> None:
        """A revert happened or did not; without a fault it did. What waited is applied next."""
        collection = self.collection("hce")
        collection.begin()
        collection.apply()
        collection.ledger.close()
        found = texts(self.project, IDS)
        assert found in (allowed if faulty else allowed[1:]), self.done[-5:]
        self.told = found

    def look(self) -> None:
        """A search finds what it did before, or all that was received: never a part, and never less than before."""
        found, number = texts(self.project, IDS), self.collection("hce").generation.number
        assert found in (self.searched, self.told), (self.done[-5:], found, self.told)
        if found == self.told:
            self.searched, self.waiting = found, []
        self.held[number] = found

    def drain(self) -> None:
        """Both retrievers take in what waits, in any order: both hold all that was received, and all is whole."""
        for name in self.chance.sample(["hce", "other"], 2):
            collection = self.collection(name)
            collection.apply()
            collection.ledger.close()
        assert texts(self.project, IDS) == texts(self.project, IDS, "other") == self.told, self.done[-5:]
        assert list(problems(self.project)) == [], self.done[-5:]
        self.look()


def folded(state: State, changes: list[tuple[str, str | None]]) -> State:
    """A state after changes, in their order."""
    last = dict(state) | dict(changes)
    return {one: text for one, text in sorted(last.items()) if text is not None}


def live(root, monkeypatch, seed: int, steps: int) -> None:
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.setattr("os.fsync", lambda handle: None)
    history = History(root, seed)
    for number in range(steps):
        history.step()
        if number % 10 == 9:
            history.drain()
    assert sum("dead" in each for each in history.done) > steps / 20


def test_no_history_loses_what_was_received(tmp_path, monkeypatch):
    live(tmp_path, monkeypatch, seed=0, steps=150)


@pytest.mark.parametrize("mutation", NOTICED)
def test_a_history_that_is_wrong_is_noticed(tmp_path, monkeypatch, mutation):
    owner, name, change = MUTATIONS[mutation]
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    with pytest.raises((AssertionError, FreshetError)):
        live(tmp_path, monkeypatch, seed=0, steps=150)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 21))
def test_no_long_history_loses_what_was_received(tmp_path, monkeypatch, seed):
    live(tmp_path, monkeypatch, seed, steps=500)
