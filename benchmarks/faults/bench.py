"""`freshet bench faults`: kill a process that changes two live retrievers, and check the result.

A worker process adds, updates and deletes documents, compacts, opens builds like a retrain, reverts
to earlier generations and collects garbage. It applies each change to a second retriever, too. It
is killed at a random moment, every fourth time in the middle of a revert.

Then a search of each retriever must answer from one whole generation, with the documents from
before or after the interrupted change. After the next writers, in any order, no document may be
missing or doubled, and no change may be pending. Changes that a receipt acknowledged or that the
ledger recorded must be present.

The builds that the worker opens are synthetic. The module `retrains` kills real retrains. The
module `receivers` kills the processes that receive documents: service, inbox and sync.
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
from benchmarks.faults.project import DEFAULT, OTHER, make_project
from benchmarks.faults.receivers import receiver_rows
from benchmarks.faults.retrains import retrain_rows
from benchmarks.faults.worker import DOCUMENTS, Journal, work
from benchmarks.measurement import row_stated
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index.live_index import LiveIndex
from model_code.errors import FreshetError

KILLS = 200
# Of this many kills, one hits a retrain (see `retrains`).
KILLS_PER_RETRAIN_KILL = 10
# Of this many kills, one hits the service, the reader of the inbox or a sync (see `receivers`).
KILLS_PER_RECEIVER_KILL = 4
BASE = "sentence-transformers/all-MiniLM-L6-v2"
# Seconds until a worker must have finished its first change or begun a revert.
WORKER_TIMEOUT_SECONDS = 600
# Of this many kills of a worker, one is aimed at a revert, which takes about `REVERT_SECONDS`.
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
    receiver_kills = kills // KILLS_PER_RECEIVER_KILL
    worker_kills = kills - retrain_kills - receiver_kills
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder), encoder, seed)
        for number in range(worker_kills):
            trial.kill(number, longest)

    results = []
    for problem in PROBLEMS:
        count = trial.problem_counts[problem]
        label = f"{problem} after {worker_kills} kills"
        results.append(row_stated(label, count, 0, "= 0", count == 0))

    # The counts above only mean something if enough kills hit a change and a revert.
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

    if receiver_kills:
        results.extend(receiver_rows(receiver_kills, encoder, seed))
    if retrain_kills:
        results.extend(retrain_rows(retrain_kills, encoder, seed))
    return results


class Trial:
    """One project that survives many kills, and the documents that it must have after each kill.

    Args:
        root: Empty folder in which the project is created.
        encoder: Base encoder of the project.
        seed: Seed of the changes and delays.

    Attributes:
        project: The project.
        state: Documents that both live retrievers must hold: the text of each document id.
        ids: Ids of all documents that may exist.
        generations: Documents of each generation of the default retriever.
        problem_counts: Number of problems by kind.
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
        self.problem_counts: Counter[str] = Counter()
        self.interrupted: Counter[str] = Counter()
        self.problems: list[str] = []
        # Each worker starts with everything imported.
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(PRELOADED)

    def kill(self, number: int, longest: float) -> None:
        """Start a worker, kill it, and compare the project with the expected documents.

        The worker runs `worker.work`, which writes each change to a journal before and after it.

        Args:
            number: Number of the kill.
            longest: Longest delay of the kill in seconds.
        """
        journal = Journal(self.root / f"journal-{number}.jsonl")
        seed = self.seed + number
        worker = self.processes.Process(
            target=work, args=(self.root, journal.path, seed, self._revert_targets())
        )
        worker.start()
        try:
            _wait_for(journal, worker, _ends_change)
            longest_delay = longest
            # A revert is short, so a random moment would hardly ever hit one.
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
        """Return the numbers of the last three generations that the worker may revert to.

        They must still have all their files, and this trial must know their documents.
        """
        complete_numbers = {
            generation.number
            for generation in GenerationStore(self.project.live, DEFAULT).generations()
            if generation.complete
        }
        known_numbers = sorted(complete_numbers & self.generations.keys())
        return known_numbers[-3:]

    def _replay(self, lines: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, bool]:
        """Apply the finished changes of a worker's journal to the expected documents.

        A change has up to three lines in the journal. `begin` holds the change, `acknowledged`
        tells that its receipt arrived, and `end` holds the generation that it led to.

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
                self.state = checks.apply_action(self.state, current_change, self.generations)
                self.generations[line["end"]] = self.state
                current_change = None
        return current_change, acknowledged

    def _compare(self, interrupted: dict[str, Any] | None, acknowledged: bool) -> None:
        """Search both retrievers after the kill, apply pending changes, and search again.

        The changes are applied to the two retrievers in a random order.

        Args:
            interrupted: The change that the kill interrupted, if there is one.
            acknowledged: Whether the worker received a receipt for it, so that it may not be lost.
        """
        default = LiveIndex(self.project)
        other = LiveIndex(self.project, OTHER)
        before = self.state
        after = self.state
        may_be_lost = not acknowledged
        if interrupted is not None:
            self.interrupted[interrupted["kind"]] += 1
            after = checks.apply_action(before, interrupted, self.generations)
            # A recorded change must survive even if the kill came before its receipt.
            if checks.is_recorded(default, interrupted, before):
                may_be_lost = False

        # Nothing has recovered yet, so a search may still find the documents from before.
        for live_index in (default, other):
            self._check_search(live_index, (before, after), interrupted)

        for live_index in self.random.sample([default, other], 2):
            live_index.recover()
            live_index.apply()

        self.state = checks.find_all_documents(default)
        allowed_states = (before, after) if may_be_lost else (after,)
        if self.state not in allowed_states:
            difference = checks.describe_difference(self.state, after)
            self._add_problem(WRONG_DOCUMENTS, f"{interrupted}: {difference}")
        other_state = checks.find_all_documents(other)
        if other_state != self.state:
            difference = checks.describe_difference(other_state, self.state)
            self._add_problem(WRONG_DOCUMENTS, f"{interrupted}, {OTHER}: {difference}")

        self.generations[default.generation.number] = self.state
        for live_index in (default, other):
            problem = checks.ledger_problem(live_index, self.state, self.ids)
            if problem is not None:
                self._add_problem(WRONG_LEDGER, f"{interrupted}, {live_index.retriever}: {problem}")
            live_index.ledger.close()

    def _check_search(
        self,
        live_index: LiveIndex,
        allowed: tuple[checks.State, ...],
        interrupted: dict[str, Any] | None,
    ) -> None:
        """Note a problem if a search does not find the documents of one of the allowed states.

        Args:
            live_index: Live index that is searched.
            allowed: Documents that a search may find: those before or after the interrupted change.
            interrupted: The change that the kill interrupted, for the problem's description.
        """
        try:
            if checks.find_all_documents(live_index) not in allowed:
                self._add_problem(BROKEN_SEARCH, f"{interrupted}, {live_index.retriever}")
        except FreshetError as error:
            self._add_problem(BROKEN_SEARCH, str(error))

    def _add_problem(self, kind: str, problem: str) -> None:
        self.problem_counts[kind] += 1
        self.problems.append(f"{kind}: {problem}")


def _ends_change(line: dict[str, Any]) -> bool:
    return "end" in line


def _begins_revert(line: dict[str, Any]) -> bool:
    return line.get("begin", {}).get("kind") == "revert"


def _wait_for(journal: Journal, worker: Any, is_reached: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until `is_reached` accepts the last line of the worker's journal.

    Args:
        journal: Journal of the worker.
        worker: Process of the worker.
        is_reached: Condition on a line.

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
