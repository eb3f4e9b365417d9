"""`freshet bench faults`: kill a process that changes two live retrievers, and check the result.

A worker adds, updates, deletes and compacts, opens builds like a retrain, reverts to earlier
generations and collects garbage. The other retriever follows it. The worker is killed at a random
moment, every fourth time in the middle of a revert. Then a search of each retriever must answer
from one whole generation, with the documents from before or after the interrupted change. After the
next writers, in any order, nothing may be missing, doubled or pending. Changes that a receipt
acknowledged or that the ledger recorded must be present. The builds that it opens are made in a
moment: `retrains` kills real retrains, and `doors` kills the service, the inbox and syncs.
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
# One in `SHARE` kills hits a retrain, one in `DOORS` a door: see `retrains` and `doors`.
SHARE, DOORS = 10, 4
BASE = "sentence-transformers/all-MiniLM-L6-v2"
# Seconds until a worker must have finished its first change or begun a revert.
PATIENCE = 600
# One in `REVERTS` kills is aimed at a revert, which takes about `REVERT_SECONDS`.
REVERTS, REVERT_SECONDS = 4, 0.15
PRELOADED = [
    "torch",
    "transformers",
    "sqlalchemy",
    "pandas",
    "model_code.collection.generations.searcher",
    __name__,
]
PROBLEMS = (
    "searches not from one whole generation",
    "lost, doubled or half-visible",
    "ledgers that disagree",
)


def rows(
    kills: int = KILLS, encoder: str | Path = BASE, longest: float = 1.0, seed: int = 0
) -> list[dict[str, Any]]:
    """Kill `kills` processes, a tenth of them retrains and a quarter at the doors; count failures.

    Each of the other processes changes documents and is killed at most `longest` seconds after its
    first change. A retrain costs a minute per kill, which limits their number.
    """
    in_retrains, at_doors = kills // SHARE, kills // DOORS
    others = kills - in_retrains - at_doors
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder), encoder, seed)
        for number in range(others):
            trial.kill(number, longest)
    found, interrupted = trial.found, trial.interrupted.total()
    reverts = trial.interrupted["revert"]
    return [
        *(
            row_stated(f"{what} after {others} kills", found[what], 0, "= 0", not found[what])
            for what in PROBLEMS
        ),
        row_stated(
            "kills that interrupted a change",
            interrupted,
            others,
            "> half",
            interrupted * 2 > others,
        ),
        row_stated(
            "kills in the middle of a revert", reverts, others, "> tenth", reverts * 10 > others
        ),
        *(door_rows(at_doors, encoder, seed) if at_doors else ()),
        *(retrain_rows(in_retrains, encoder, seed) if in_retrains else ()),
    ]


class Trial:
    """One project through many crashes, beside a plain model of both live retrievers."""

    def __init__(self, root: Path, encoder: str | Path, seed: int) -> None:
        self.root, self.seed, self.chance = root, seed, random.Random(seed)
        self.project, self.state = make_project(root, encoder)
        self.ids = [*self.state, *(f"new-{number}" for number in range(DOCUMENTS))]
        # Documents of each generation of the default retriever.
        self.generations: dict[int, checks.State] = {0: dict(self.state)}
        self.found: Counter[str] = Counter()
        # Number of kills by the kind of change that they interrupted.
        self.interrupted: Counter[str] = Counter()
        self.problems: list[str] = []
        # Each worker starts with everything imported.
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(PRELOADED)

    def kill(self, number: int, longest: float) -> None:
        """Start a worker, kill it, and compare."""
        journal = Journal(self.root / f"journal-{number}.jsonl")
        whole = {
            each.number
            for each in GenerationStore(self.project.live, DEFAULT).generations()
            if each.complete
        }
        known = [each for each in sorted(self.generations) if each in whole][-3:]
        arguments = (self.root, journal.path, self.seed + number, dict.fromkeys(known))
        worker = self.processes.Process(target=work, args=arguments)
        worker.start()
        try:
            _wait_for(journal, worker, lambda line: "end" in line)
            if number % REVERTS:
                time.sleep(self.chance.uniform(0, longest))
            else:
                _wait_for(journal, worker, _begins_revert)
                time.sleep(self.chance.uniform(0, REVERT_SECONDS))
        finally:
            worker.kill()
            worker.join()
        self._compare(*self._replay(journal.read()))

    def _replay(self, lines: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, bool]:
        """Follow the finished changes.

        Return the interrupted change, if there is one, and whether its documents were acknowledged
        before.
        """
        begun, acknowledged = None, False
        for line in lines:
            if "error" in line:
                raise FreshetError(f"the worker failed by itself: {line['error']}")
            if "begin" in line:
                begun, acknowledged = line["begin"], False
            elif "acknowledged" in line:
                acknowledged = True
            else:
                self.state = checks.changed(self.state, begun, self.generations)
                self.generations[line["end"]] = self.state
                begun = None
        return begun, acknowledged

    def _compare(self, interrupted: dict[str, Any] | None, acknowledged: bool) -> None:
        """Search both retrievers after the kill, run the next writers, and search again.

        The next writers run in any order.
        """
        before = after = self.state
        if interrupted is not None:
            after = checks.changed(before, interrupted, self.generations)
            self.interrupted[interrupted["kind"]] += 1
        default, other = LiveIndex(self.project), LiveIndex(self.project, OTHER)
        acknowledged = acknowledged or (
            interrupted is not None and checks.received(default, interrupted, before)
        )
        for collection in (default, other):
            self._search(collection, (before, after), interrupted)
        for collection in self.chance.sample([default, other], 2):
            collection.recover()
            collection.apply()
        self.state = checks.searched(default)
        if self.state not in ((after,) if acknowledged else (before, after)):
            self._note(PROBLEMS[1], f"{interrupted}: {checks.difference(self.state, after)}")
        if checks.searched(other) != self.state:
            self._note(
                PROBLEMS[1],
                f"{interrupted}, {OTHER}: {checks.difference(checks.searched(other), self.state)}",
            )
        self.generations[default.generation.number] = self.state
        for collection in (default, other):
            if problem := checks.ledger_problem(collection, self.state, self.ids):
                self._note(PROBLEMS[2], f"{interrupted}, {collection.retriever}: {problem}")
            collection.ledger.close()

    def _search(
        self,
        collection: LiveIndex,
        allowed: tuple[checks.State, ...],
        interrupted: dict[str, Any] | None,
    ) -> None:
        try:
            if checks.searched(collection) not in allowed:
                self._note(PROBLEMS[0], f"{interrupted}, {collection.retriever}")
        except FreshetError as error:
            self._note(PROBLEMS[0], str(error))

    def _note(self, what: str, problem: str) -> None:
        self.found[what] += 1
        self.problems.append(f"{what}: {problem}")


def _begins_revert(line: dict[str, Any]) -> bool:
    return line.get("begin", {}).get("kind") == "revert"


def _wait_for(journal: Journal, worker: Any, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the worker's last line is `wanted`.

    Raises:
        FreshetError: If the worker ends or does not reach the line.
    """
    end = time.monotonic() + PATIENCE
    while not (lines := journal.read()) or not wanted(lines[-1]):
        if not worker.is_alive() or time.monotonic() > end:
            failed = [line["error"] for line in journal.read() if "error" in line]
            raise FreshetError(
                f"the worker did nothing before it was to be killed: {failed or 'no error'}"
            )
        time.sleep(0.002)
