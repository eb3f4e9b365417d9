"""`freshet bench faults`: kill a process that changes two live retrievers, and check the result.

A worker process adds, updates and deletes documents, compacts, opens builds like a retrain, reverts
to earlier generations and collects garbage. It applies each change to a second retriever, too. It
is killed at a random moment, every fourth time in the middle of a revert.

Then a search of each retriever must answer from one whole generation, with the documents from
before or after the interrupted change. After the next writers, in any order, no document may be
missing or doubled, and no change may be pending. Changes that a receipt acknowledged or that the
ledger recorded must be present.

The builds that the worker opens are synthetic. The module `retrains` kills real retrains. The
module `doors` kills the processes through which documents come in: service, inbox and sync.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults import checks
from benchmarks.faults.doors import door_rows
from benchmarks.faults.project import DEFAULT, OTHER, make_project
from benchmarks.faults.retrains import retrain_rows
from benchmarks.faults.worker import DOCUMENTS, Journal, work
from benchmarks.measurement import row_stated
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index.live_index import LiveIndex
from model_code.errors import FreshetError

KILLS = 200
# One in so many kills hits a retrain (see `retrains`), and one in so many hits the service, the
# reader of the inbox or a sync (see `doors`).
KILLS_PER_RETRAIN_KILL = 10
KILLS_PER_DOOR_KILL = 4
BASE = "sentence-transformers/all-MiniLM-L6-v2"
# Seconds until a worker must have finished its first change or begun a revert.
WORKER_TIMEOUT_SECONDS = 600
# One in so many kills is aimed at a revert, which takes about `REVERT_SECONDS`.
KILLS_PER_REVERT_KILL = 4
REVERT_SECONDS = 0.15
# Modules that are imported before a worker is forked, so that it starts at once.
PRELOADED = [
    "torch",
    "transformers",
    "sqlalchemy",
    "pandas",
    "model_code.collection.generations.searcher",
    __name__,
]
# Kinds of problems.
BROKEN_SEARCH = "searches not from one whole generation"
WRONG_DOCUMENTS = "lost, doubled or half-visible"
WRONG_LEDGER = "ledgers that disagree"
PROBLEMS = (BROKEN_SEARCH, WRONG_DOCUMENTS, WRONG_LEDGER)


def rows(
    kills: int = KILLS, encoder: str | Path = BASE, longest: float = 1.0, seed: int = 0
) -> list[dict[str, Any]]:
    """Kill processes, and count the failures after each kill.

    A tenth of the processes are retrains, because a kill of a retrain takes a minute. A quarter are
    the service, the reader of the inbox, or a sync. The others change documents. They are killed at
    most `longest` seconds after their first change.

    Args:
        kills: Number of kills.
        encoder: Base encoder of the projects.
        longest: Longest delay of a kill in seconds.
        seed: Seed of the changes and delays.
    """
    retrain_kills = kills // KILLS_PER_RETRAIN_KILL
    door_kills = kills // KILLS_PER_DOOR_KILL
    worker_kills = kills - retrain_kills - door_kills
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder), encoder, seed)
        for number in range(worker_kills):
            trial.kill(number, longest)

    results = []
    for problem in PROBLEMS:
        count = trial.found[problem]
        label = f"{problem} after {worker_kills} kills"
        results.append(row_stated(label, count, 0, "= 0", count == 0))

    interrupted = trial.interrupted.total()
    results.append(
        row_stated(
            "kills that interrupted a change",
            interrupted,
            worker_kills,
            "> half",
            interrupted > worker_kills / 2,
        )
    )
    reverts = trial.interrupted["revert"]
    results.append(
        row_stated(
            "kills in the middle of a revert",
            reverts,
            worker_kills,
            "> tenth",
            reverts > worker_kills / 10,
        )
    )

    if door_kills:
        results.extend(door_rows(door_kills, encoder, seed))
    if retrain_kills:
        results.extend(retrain_rows(retrain_kills, encoder, seed))
    return results


class Trial:
    """One project that survives many kills, and the documents that it must have after each kill.

    Attributes:
        project: The project.
        state: Documents that both live retrievers must hold.
        ids: Ids of all documents that may exist.
        generations: Documents of each generation of the default retriever.
        found: Number of problems by kind.
        interrupted: Number of kills by the kind of change that they interrupted.
        problems: Descriptions of the problems.
    """

    def __init__(self, root: Path, encoder: str | Path, seed: int) -> None:
        self.root = root
        self.seed = seed
        self.random = random.Random(seed)
        self.project, self.state = make_project(root, encoder)
        self.ids = [*self.state, *(f"new-{number}" for number in range(DOCUMENTS))]
        self.generations: dict[int, checks.State] = {0: dict(self.state)}
        self.found: Counter[str] = Counter()
        self.interrupted: Counter[str] = Counter()
        self.problems: list[str] = []
        # Each worker starts with everything imported.
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(PRELOADED)

    def kill(self, number: int, longest: float) -> None:
        """Start a worker, kill it, and compare the project with the expected documents.

        Args:
            number: Number of the kill.
            longest: Longest delay of the kill in seconds.
        """
        journal = Journal(self.root / f"journal-{number}.jsonl")
        seed = self.seed + number
        revert_targets = dict.fromkeys(self._revert_targets())
        worker = self.processes.Process(
            target=work, args=(self.root, journal.path, seed, revert_targets)
        )
        worker.start()
        try:
            _wait_for(journal, worker, _ends_change)
            longest_delay = longest
            if number % KILLS_PER_REVERT_KILL == 0:
                _wait_for(journal, worker, _begins_revert)
                longest_delay = REVERT_SECONDS
            time.sleep(self.random.uniform(0, longest_delay))
        finally:
            worker.kill()
            worker.join()

        interrupted, acknowledged = self._replay(journal.read())
        self._compare(interrupted, acknowledged)

    def _revert_targets(self) -> list[int]:
        """Return the numbers of the last three generations that are complete and known."""
        complete_numbers = {
            generation.number
            for generation in GenerationStore(self.project.live, DEFAULT).generations()
            if generation.complete
        }
        known_numbers = sorted(complete_numbers & self.generations.keys())
        return known_numbers[-3:]

    def _replay(self, lines: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, bool]:
        """Apply the finished changes of a worker's journal to the expected documents.

        Returns:
            The interrupted change, if there is one. Whether the worker received a receipt for it.
        """
        current_change = None
        acknowledged = False
        for line in lines:
            if "error" in line:
                raise FreshetError(f"the worker failed by itself: {line['error']}")
            if "begin" in line:
                current_change = line["begin"]
                acknowledged = False
            elif "acknowledged" in line:
                acknowledged = True
            else:
                self.state = checks.changed(self.state, current_change, self.generations)
                self.generations[line["end"]] = self.state
                current_change = None
        return current_change, acknowledged

    def _compare(self, interrupted: dict[str, Any] | None, acknowledged: bool) -> None:
        """Search both retrievers after the kill, apply pending changes, and search again.

        The changes are applied to the two retrievers in a random order.
        """
        before = after = self.state
        if interrupted is not None:
            after = checks.changed(before, interrupted, self.generations)
            self.interrupted[interrupted["kind"]] += 1
        default = LiveIndex(self.project)
        other = LiveIndex(self.project, OTHER)
        if interrupted is not None and checks.received(default, interrupted, before):
            acknowledged = True
        for collection in (default, other):
            self._check_search(collection, (before, after), interrupted)

        for collection in self.random.sample([default, other], 2):
            collection.recover()
            collection.apply()

        self.state = checks.searched(default)
        allowed_states = (after,) if acknowledged else (before, after)
        if self.state not in allowed_states:
            difference = checks.difference(self.state, after)
            self._note(WRONG_DOCUMENTS, f"{interrupted}: {difference}")
        other_state = checks.searched(other)
        if other_state != self.state:
            difference = checks.difference(other_state, self.state)
            self._note(WRONG_DOCUMENTS, f"{interrupted}, {OTHER}: {difference}")

        self.generations[default.generation.number] = self.state
        for collection in (default, other):
            problem = checks.ledger_problem(collection, self.state, self.ids)
            if problem is not None:
                self._note(WRONG_LEDGER, f"{interrupted}, {collection.retriever}: {problem}")
            collection.ledger.close()

    def _check_search(
        self,
        collection: LiveIndex,
        allowed: tuple[checks.State, ...],
        interrupted: dict[str, Any] | None,
    ) -> None:
        try:
            if checks.searched(collection) not in allowed:
                self._note(BROKEN_SEARCH, f"{interrupted}, {collection.retriever}")
        except FreshetError as error:
            self._note(BROKEN_SEARCH, str(error))

    def _note(self, kind: str, problem: str) -> None:
        self.found[kind] += 1
        self.problems.append(f"{kind}: {problem}")


def _ends_change(line: dict[str, Any]) -> bool:
    return "end" in line


def _begins_revert(line: dict[str, Any]) -> bool:
    return line.get("begin", {}).get("kind") == "revert"


def _wait_for(journal: Journal, worker: Any, is_reached: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until `is_reached` accepts the last line of the worker's journal.

    Raises:
        FreshetError: If the worker ends or does not reach the line.
    """
    deadline = time.monotonic() + WORKER_TIMEOUT_SECONDS
    while True:
        lines = journal.read()
        if lines and is_reached(lines[-1]):
            return
        if not worker.is_alive() or time.monotonic() > deadline:
            errors = [line["error"] for line in journal.read() if "error" in line]
            raise FreshetError(
                f"the worker did nothing before it was to be killed: {errors or 'no error'}"
            )
        time.sleep(0.002)
