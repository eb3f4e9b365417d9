"""Kill the processes that receive documents: the service, the reader of the inbox, and a sync.

A client of the service knows which requests were acknowledged. Only the result of its last request
is unknown. A file in the inbox and a file of a source count as acknowledged: after the kill, the
next run must take their documents.
"""

from __future__ import annotations

import itertools
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
from benchmarks.faults.project import DEFAULT, OTHER, make_project
from benchmarks.faults.worker import DOCUMENTS, draw_ids, draw_texts, make_rows
from benchmarks.measurement import row_stated
from freshet.client import Client
from freshet.errors import ServiceError
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.sync.inbox import INBOX, receive_inbox, waiting
from model_code.collection.sync.sync import sync
from model_code.errors import FreshetError
from model_code.project import Project
from orchestration.running_service import find_running_service, register_service

# Longest wait in seconds for the first answer of a service, or for the inbox to become shorter.
SERVICE_TIMEOUT_SECONDS = 120
# Largest number of seconds from the beginning of the work to the kill.
MAX_KILL_DELAY = 0.4
# Largest number of changes or files that are finished before the interrupted one.
MAX_FINISHED_CHANGES = 4
# Number of files that are put into the inbox at once.
INBOX_FILES = 6
# Number of documents that a source may have, and that it has at a time.
SOURCE_DOCUMENTS = 9
PRESENT_SOURCE_DOCUMENTS = 5
# Share of changes that put documents; the others remove some.
PUT_SHARE = 0.7
# File of a named source, and the beginning of the ids of its documents.
SOURCE = "source.jsonl"
SOURCE_PREFIX = "source:"
PRELOADED = [
    "torch",
    "transformers",
    "sqlalchemy",
    "pandas",
    "model_code.collection.generations.searcher",
    "orchestration.service.server",
]


def receiver_rows(kills: int, encoder: str | Path, seed: int = 0) -> list[dict[str, Any]]:
    """Kill `kills` processes, and count failures. The three kinds of processes take turns."""
    with tempfile.TemporaryDirectory(prefix="freshet-doors-") as folder:
        trial = ReceiverTrial(Path(folder), encoder, seed)
        for number in range(kills):
            trial.kill(number)
    label = f"lost, doubled or half-visible after {kills} kills at the doors"
    return [row_stated(label, len(trial.problems), 0, "== 0")]


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
    """End this process once its parent has ended."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        time.sleep(1)
    os._exit(1)


class ReceiverTrial:
    """One project that survives many kills, and the documents that it must have after each kill.

    Args:
        root: Empty folder in which the project is created.
        encoder: Base encoder of the project.
        seed: Seed of the changes and delays.

    Attributes:
        project: The project.
        state: Documents that both retrievers must hold: the text of each document id.
        dropped_files: Number of files that were put into the inbox.
        counts: Numbers that tell what the kills hit. Key "acknowledged": acknowledged requests.
            Key "N files left": kills after which N files were in the inbox.
        problems: Descriptions of the problems.
    """

    def __init__(self, root: Path, encoder: str | Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.project, self.state = make_project(root, encoder)
        self.dropped_files = 0
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload([*PRELOADED, __name__])

    def kill(self, number: int) -> None:
        """Start a process, kill it, let another one finish its work, and compare the documents.

        Args:
            number: Number of the kill. The three kinds of processes take turns.
        """
        kill_functions = (self.kill_service, self.kill_inbox_reader, self.kill_sync)
        kill_process = kill_functions[number % len(kill_functions)]
        allowed_states = kill_process()

        default = LiveIndex(self.project, DEFAULT)
        other = LiveIndex(self.project, OTHER)
        for live_index in self.random.sample([default, other], 2):
            live_index.recover()
            live_index.apply()

        kill_name = f"{kill_process.__name__}, kill {number}"
        self.state = checks.find_all_documents(default)
        if self.state not in allowed_states:
            difference = checks.describe_difference(self.state, allowed_states[-1])
            self.problems.append(f"{kill_name}: {difference}")
        other_state = checks.find_all_documents(other)
        if other_state != self.state:
            difference = checks.describe_difference(other_state, self.state)
            self.problems.append(f"{kill_name}, {OTHER}: {difference}")

        ids = [*self.state, *(f"new-{number}" for number in range(DOCUMENTS))]
        for live_index in (default, other):
            problem = checks.ledger_problem(live_index, self.state, ids)
            if problem is not None:
                self.problems.append(f"{kill_name}, {live_index.retriever}: {problem}")
            live_index.ledger.close()

    @contextmanager
    def _run_and_kill(self, work: Callable[[Path], None]) -> Iterator[Any]:
        """Run a process in this block, and kill it at its end."""
        process = self.processes.Process(target=work, args=(self.root,))
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join()

    def kill_service(self) -> tuple[checks.State, ...]:
        """Send requests one after the other, and kill the service during one of them.

        Returns:
            The states that are allowed after the kill: with the interrupted change, and also
            without it if the ledger does not hold it.
        """
        state = self.state
        with self._run_and_kill(serve_forever) as process:
            client = self._wait_for_service(process)
            finished_changes = self.random.randint(0, MAX_FINISHED_CHANGES)
            request_seconds = MAX_KILL_DELAY
            for change_number in itertools.count():
                action = self._draw_change()
                started = time.monotonic()
                # The delay may be longer than this request. Then a later request is interrupted.
                if change_number >= finished_changes:
                    delay = self.random.uniform(0, request_seconds)
                    threading.Timer(delay, process.kill).start()
                try:
                    self._send(client, action)
                except ServiceError:
                    break
                state = checks.apply_action(state, action, {})
                request_seconds = time.monotonic() - started
                self.counts["acknowledged"] += 1

        state_after = checks.apply_action(state, action, {})
        live_index = LiveIndex(self.project)
        is_recorded = checks.is_recorded(live_index, action, state)
        live_index.ledger.close()
        return (state_after,) if is_recorded else (state, state_after)

    def _wait_for_service(self, process: Any) -> Client:
        """Return a client once the service answers; raise FreshetError if it does not."""
        deadline = time.monotonic() + SERVICE_TIMEOUT_SECONDS
        while True:
            client = find_running_service(self.project)
            if client is not None:
                return client
            if not process.is_alive() or time.monotonic() > deadline:
                raise FreshetError("the service did not start")
            time.sleep(0.01)

    def _send(self, client: Client, action: dict[str, Any]) -> None:
        """Send a change. Every other request waits until the change is searchable."""
        wait = self.random.random() < 0.5
        if action["kind"] == "put":
            client.add(make_rows(action["documents"]), wait=wait)
        else:
            client.delete(action["ids"], wait=wait)

    def kill_inbox_reader(self) -> tuple[checks.State, ...]:
        """Put files into the inbox, kill the process that takes them, and take the remaining files.

        Returns:
            The only state that is allowed after the kill.
        """
        folder = self.root / INBOX
        folder.mkdir(exist_ok=True)
        state = dict(self.state)
        with self._run_and_kill(take_forever):
            for _ in range(INBOX_FILES):
                self.dropped_files += 1
                documents = draw_texts(self.random, draw_ids(self.random))
                # The reader ignores names that end with .part, so it never sees half a file.
                partial_file = folder / f"{self.dropped_files}.jsonl.part"
                _write_rows(partial_file, documents)
                partial_file.rename(partial_file.with_suffix(""))
                state.update(documents)

            # Kill the reader shortly after it has taken a random number of files.
            remaining_files = INBOX_FILES - self.random.randint(0, MAX_FINISHED_CHANGES)
            deadline = time.monotonic() + SERVICE_TIMEOUT_SECONDS
            while len(waiting(self.project)) > remaining_files and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(self.random.uniform(0, MAX_KILL_DELAY / 10))

        self.counts[f"{len(waiting(self.project))} files left"] += 1
        live_index = LiveIndex(self.project)
        receive_inbox(live_index)
        live_index.ledger.close()
        if waiting(self.project):
            self.problems.append(f"files stay in the inbox: {waiting(self.project)}")
        return (state,)

    def kill_sync(self) -> tuple[checks.State, ...]:
        """Change a source, kill the process that syncs it, and sync it again.

        Returns:
            The only state that is allowed after the kill.
        """
        numbers = self.random.sample(range(SOURCE_DOCUMENTS), PRESENT_SOURCE_DOCUMENTS)
        documents = draw_texts(self.random, [f"document-{number}" for number in numbers])
        _write_rows(self.root / SOURCE, documents)
        with self._run_and_kill(sync_forever):
            time.sleep(self.random.uniform(0, MAX_KILL_DELAY))

        live_index = LiveIndex(self.project)
        sync(live_index, SOURCE, force=True, cwd=self.root)
        live_index.ledger.close()

        # A sync removes the documents that the source no longer has.
        state = {
            document_id: text
            for document_id, text in self.state.items()
            if not document_id.startswith(SOURCE_PREFIX)
        }
        for document_id, text in documents.items():
            state[f"{SOURCE_PREFIX}{document_id}"] = text
        return (state,)

    def _draw_change(self) -> dict[str, Any]:
        """Draw an addition or removal, as a plain value that `checks.apply_action` takes."""
        ids = draw_ids(self.random)
        if self.random.random() < PUT_SHARE:
            return {"kind": "put", "documents": draw_texts(self.random, ids)}
        return {"kind": "remove", "ids": ids}


def _write_rows(path: Path, documents: checks.State) -> None:
    lines = [json.dumps(row) + "\n" for row in make_rows(documents)]
    path.write_text("".join(lines))
