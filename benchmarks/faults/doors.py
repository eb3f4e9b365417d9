"""Kill the processes at the doors: the service, the reader of the inbox, and a sync.

A client of the service knows which requests were acknowledged; the result of its last request is
unknown. A file in the inbox and a written source count as acknowledged: the next run must finish
them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.faults import checks
from benchmarks.faults.project import DEFAULT, OTHER, document_text, make_project
from benchmarks.faults.worker import DOCUMENTS
from benchmarks.measurement import row_stated
from freshet.errors import ServiceError
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.sync.inbox import INBOX, receive_inbox, waiting
from model_code.collection.sync.sync import sync
from model_code.errors import FreshetError
from model_code.project import Project
from orchestration.running_service import find_running_service, register_service

# Seconds until a service answers.
PATIENCE = 120
# Longest delay of a kill in seconds, from the moment when there is work.
LONGEST = 0.4
# Most acknowledged changes or taken files before the one that a kill interrupts.
FIRST = 4
SOURCE = "source.jsonl"
PRELOADED = [
    "torch",
    "transformers",
    "sqlalchemy",
    "pandas",
    "model_code.collection.generations.searcher",
    "orchestration.service.server",
]


def door_rows(kills: int, encoder: str | Path, seed: int = 0) -> list[dict[str, Any]]:
    """Kill `kills` processes, each door in turn, and count failures."""
    with tempfile.TemporaryDirectory(prefix="freshet-doors-") as folder:
        trial = DoorTrial(Path(folder), encoder, seed)
        for number in range(kills):
            trial.kill(number)
    wrong = len(trial.problems)
    return [
        row_stated(
            f"lost, doubled or half-visible after {kills} kills at the doors", wrong, 0, "== 0"
        )
    ]


def serve_forever(root: Path) -> None:
    """Run the service on a free port until it is killed or its parent ends."""
    from orchestration.service.server import serve

    threading.Thread(target=_end_with_parent, daemon=True).start()
    project = Project(root)
    with register_service(project.state) as registration:
        serve(project, "127.0.0.1", 0, registration)


def take_forever(root: Path) -> None:
    """Take files from the inbox repeatedly, like the sensor."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    live = LiveIndex(Project(root))
    while True:
        if receive_inbox(live):
            live.apply()
        time.sleep(0.01)


def sync_forever(root: Path) -> None:
    """Run `freshet sync` repeatedly."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    live = LiveIndex(Project(root))
    while True:
        sync(live, SOURCE, force=True, cwd=root)
        time.sleep(0.01)


def _end_with_parent() -> None:
    while (parent := multiprocessing.parent_process()) is not None and parent.is_alive():
        time.sleep(1)
    os._exit(1)


class DoorTrial:
    """One project through many crashes at its doors, beside a plain model of its documents."""

    def __init__(self, root: Path, encoder: str | Path, seed: int) -> None:
        self.root, self.chance = root, random.Random(seed)
        self.project, self.state = make_project(root, encoder)
        self.dropped = 0
        self.fell: Counter[str] = Counter()
        self.problems: list[str] = []
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload([*PRELOADED, __name__])

    def kill(self, number: int) -> None:
        """Start a process at one door, kill it, let the next one finish, and compare."""
        door = (self.at_the_service, self.at_the_inbox, self.at_the_source)[number % 3]
        allowed = door()
        default, other = LiveIndex(self.project, DEFAULT), LiveIndex(self.project, OTHER)
        for collection in self.chance.sample([default, other], 2):
            collection.recover()
            collection.apply()
        self.state, name = checks.searched(default), f"{door.__name__}, kill {number}"
        if self.state not in allowed:
            self.problems.append(f"{name}: {checks.difference(self.state, allowed[-1])}")
        if (same := checks.searched(other)) != self.state:
            self.problems.append(f"{name}, {OTHER}: {checks.difference(same, self.state)}")
        ids = [*self.state, *(f"new-{number}" for number in range(DOCUMENTS))]
        for collection in (default, other):
            if problem := checks.ledger_problem(collection, self.state, ids):
                self.problems.append(f"{name}, {collection.retriever}: {problem}")
            collection.ledger.close()

    @contextmanager
    def _killed(self, work: Callable[[Path], None]) -> Iterator[Any]:
        """Run a process in this block, and kill it at its end."""
        process = self.processes.Process(target=work, args=(self.root,))
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join()

    def at_the_service(self) -> tuple[checks.State, ...]:
        """Send requests, one after the other, until the service no longer answers."""
        state, action = self.state, None
        with self._killed(serve_forever) as process:
            end = time.monotonic() + PATIENCE
            while (client := find_running_service(self.project)) is None:
                if not process.is_alive() or time.monotonic() > end:
                    raise FreshetError("the service did not start")
                time.sleep(0.01)
            unharmed, took = self.chance.randint(0, FIRST), LONGEST
            while True:
                action, begun = self._drawn(), time.monotonic()
                if (unharmed := unharmed - 1) < 0:
                    threading.Timer(self.chance.uniform(0, took), process.kill).start()
                try:
                    if action["kind"] == "put":
                        rows = [
                            {"_id": one, "title": one, "text": text}
                            for one, text in action["documents"].items()
                        ]
                        client.add(rows, wait=self.chance.random() < 0.5)
                    else:
                        client.delete(action["ids"], wait=self.chance.random() < 0.5)
                except ServiceError:
                    break
                state, took = checks.changed(state, action, {}), time.monotonic() - begun
                self.fell["acknowledged"] += 1
        after = checks.changed(state, action, {})
        live = LiveIndex(self.project)
        arrived = checks.received(live, action, state)
        live.ledger.close()
        return (after,) if arrived else (state, after)

    def at_the_inbox(self) -> tuple[checks.State, ...]:
        """Drop files at once; the next run takes the remaining ones."""
        folder, state = self.root / INBOX, self.state
        folder.mkdir(exist_ok=True)
        with self._killed(take_forever):
            for _ in range(6):
                self.dropped += 1
                documents = self._drawn(put=True)["documents"]
                lines = [
                    json.dumps({"id": one, "title": one, "text": text})
                    for one, text in documents.items()
                ]
                part = folder / f"{self.dropped}.jsonl.part"
                part.write_text("\n".join(lines) + "\n")
                part.rename(part.with_suffix(""))
                state = state | documents
            left, end = 6 - self.chance.randint(0, FIRST), time.monotonic() + PATIENCE
            while len(waiting(self.project)) > left and time.monotonic() < end:
                time.sleep(0.002)
            time.sleep(self.chance.uniform(0, LONGEST / 10))
        self.fell[f"{len(waiting(self.project))} files left"] += 1
        live = LiveIndex(self.project)
        receive_inbox(live)
        live.ledger.close()
        if waiting(self.project):
            self.problems.append(f"files stay in the inbox: {waiting(self.project)}")
        return (state,)

    def at_the_source(self) -> tuple[checks.State, ...]:
        """Change a source; the next sync finishes."""
        held = {
            f"source-{i}": document_text(self.chance.randrange(10_000))
            for i in self.chance.sample(range(9), 5)
        }
        lines = [json.dumps({"id": one, "title": one, "text": text}) for one, text in held.items()]
        (self.root / SOURCE).write_text("\n".join(lines) + "\n")
        with self._killed(sync_forever):
            time.sleep(self.chance.uniform(0, LONGEST))
        live = LiveIndex(self.project)
        sync(live, SOURCE, force=True, cwd=self.root)
        live.ledger.close()
        return (
            {one: text for one, text in self.state.items() if not one.startswith("source-")} | held,
        )

    def _drawn(self, put: bool = False) -> dict[str, Any]:
        ids = [
            f"new-{number}"
            for number in self.chance.sample(range(DOCUMENTS), self.chance.randint(1, 4))
        ]
        if put or self.chance.random() < 0.7:
            return {
                "kind": "put",
                "documents": {one: document_text(self.chance.randrange(10_000)) for one in ids},
            }
        return {"kind": "remove", "ids": ids}
