"""`freshet bench faults`: kill -9 a process that changes a live collection, and look what is left.

A worker adds, updates, deletes, compacts, opens builds as a retrain does, goes back to earlier generations and collects
garbage. It is killed at a random moment; then a search must answer from one whole generation, with the documents of
before or after the change that was interrupted. After the next writer nothing may be missing, doubled or pending, and
what a receipt had acknowledged must be there. What it opens is built in a moment: `retrains` kills real retrains.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.faults import checks as fault_checks
from benchmarks.faults import worker as fault_worker
from benchmarks.faults.collection import make_collection
from benchmarks.faults.retrains import retrain_rows
from benchmarks.faults.rows import row
from model_code.errors import FreshetError
from model_code.live.collection import Collection
from orchestration.live.collection import LiveCollection
from orchestration.project import Project

KILLS = 200
SHARE = 10  # one in so many kills a retrain: see `retrains`
BASE = "sentence-transformers/all-MiniLM-L6-v2"
PATIENCE = 120  # seconds until a worker must have finished its first change
PRELOADED = ["torch", "transformers", "sqlalchemy", "pandas", "model_code.live.searcher", __name__]


def rows(kills: int = KILLS, encoder: str | Path = BASE, longest: float = 1.0, seed: int = 0) -> list[dict[str, Any]]:
    """Kill `kills` processes, a tenth of them retrains, and count what went wrong.

    The others each change documents and are killed at most `longest` seconds after their first change. A retrain costs
    a minute for every kill, so there are not more of them.
    """
    in_retrains = kills // SHARE
    others = kills - in_retrains
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder), encoder, seed)
        for number in range(others):
            trial.kill(number, longest)
    found = trial.found
    met = found["interrupted"] * 2 > others
    return [
        *(row(f"{what} after {others} kills", found[what], 0, "= 0", found[what] == 0) for what in PROBLEMS),
        row("kills that interrupted a change", found["interrupted"], others, "> half", met),
        *(retrain_rows(in_retrains, encoder, seed) if in_retrains else ()),
    ]


PROBLEMS = ("searches not from one whole generation", "lost, doubled or half-visible", "ledgers that disagree")


class Trial:
    """One collection through many crashes, beside the plain model of what it must hold."""

    def __init__(self, root: Path, encoder: str | Path, seed: int) -> None:
        self.root, self.seed, self.chance = root, seed, random.Random(seed)
        self.project, self.state = make_collection(root, encoder)
        self.base = tuple(self.state)
        self.generations: dict[int, fault_checks.State] = {0: dict(self.state)}
        self.found: Counter[str] = Counter()
        self.problems: list[str] = []
        self.processes = multiprocessing.get_context("forkserver")  # each worker starts with everything imported
        self.processes.set_forkserver_preload(PRELOADED)

    def kill(self, number: int, longest: float) -> None:
        """Start a worker, kill it, and compare."""
        journal = fault_worker.Journal(self.root / f"journal-{number}.jsonl")
        whole = {one.number for one in Collection(self.project.live, "hce").generations() if one.whole}
        known = [one for one in sorted(self.generations) if one in whole][-3:]
        arguments = (self.root, journal.path, self.seed + number, dict.fromkeys(known))
        worker = self.processes.Process(target=fault_worker.work, args=arguments)
        worker.start()
        _wait_for_change(journal, worker)
        time.sleep(self.chance.uniform(0, longest))
        worker.kill()
        worker.join()
        self._compare(*self._replay(journal.read()))

    def _replay(self, lines: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, bool]:
        """Follow the finished changes; return the one that was interrupted, if one was, and whether its documents were
        acknowledged before.
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
                self.state = fault_checks.changed(self.state, begun, self.generations)
                self.generations[line["end"]] = self.state
                begun = None
        return begun, acknowledged

    def _compare(self, interrupted: dict[str, Any] | None, acknowledged: bool) -> None:
        before = self.state
        after = before if interrupted is None else fault_checks.changed(before, interrupted, self.generations)
        self.found["interrupted"] += interrupted is not None
        collection = LiveCollection(Project(self.root))
        try:
            if fault_checks.searched(collection) not in (before, after):
                self._note(PROBLEMS[0], f"{interrupted}")
        except FreshetError as error:
            self._note(PROBLEMS[0], str(error))
        collection.begin()
        collection.apply()
        self.state = fault_checks.searched(collection)
        allowed = (after,) if acknowledged and interrupted is not None else (before, after)
        if self.state not in allowed:
            self._note(PROBLEMS[1], f"{interrupted}: {fault_checks.difference(self.state, after)}")
        self.generations[collection.generation.number] = self.state
        ids = [*self.base, *(f"new-{i}" for i in range(fault_worker.DOCUMENTS))]
        problem = fault_checks.ledger_problem(collection, self.state, ids)
        if problem:
            self._note(PROBLEMS[2], problem)
        collection.ledger.close()

    def _note(self, what: str, problem: str) -> None:
        self.found[what] += 1
        self.problems.append(f"{what}: {problem}")


def _wait_for_change(journal: fault_worker.Journal, worker: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not any("end" in line for line in journal.read()):
        if not worker.is_alive() or time.monotonic() > end:
            failed = [line["error"] for line in journal.read() if "error" in line]
            raise FreshetError(f"the worker did nothing before it was to be killed: {failed or 'no error'}")
        time.sleep(0.005)
