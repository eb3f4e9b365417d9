"""Kill retrains of a tiny real project in each of their parts, for `freshet bench faults`.

A retrain is a process of `worker` that runs DVC and its stages. It is killed at a random moment of
the time that a part took before, every other time with all processes that it started. Then a search
must answer as before. Champion and live build must be the old ones or the new ones. Documents are
added and removed, and the same key is retried until the retrain ends.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from benchmarks.faults import checks, worker
from benchmarks.faults.project import CLONE, make_retrain_project
from benchmarks.measurement import row_stated
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import LEDGER_URL_VARIABLE
from model_code.errors import FreshetError
from model_code.project import Project
from orchestration.registry import release

STAGES = ("hierarchy", "train@hce", "index@hce", "evaluate@hce")
# Parts in the order of a retrain.
PARTS = (*list(worker.MARKED)[:2], *STAGES, *list(worker.MARKED)[2:])
STARTING, BETWEEN = "starting", "between parts"
# Parts between two kills of the same retrain.
GAP = 3
# Seconds until a part must have begun or a retrain must have ended.
PATIENCE = 600
PROBLEMS = (
    "searches not as before the retrain",
    "retrains that lost or doubled a document",
    "champions and live builds that disagree",
)
# Environment variables that would lead out of the temporary project.
OUTSIDE = (LEDGER_URL_VARIABLE, "FRESHET_STATE", "MLFLOW_TRACKING_URI")


def retrain_rows(kills: int, encoder: str | Path, seed: int = 0) -> list[dict[str, Any]]:
    """Kill `kills` retrains, and count failures."""
    with (
        tempfile.TemporaryDirectory(prefix="freshet-retrains-") as folder,
        mock.patch.dict(os.environ),
    ):
        for name in OUTSIDE:
            os.environ.pop(name, None)
        trial = RetrainTrial(Path(folder), encoder, seed)
        trial.run(kills)
    fell, reached = len(trial.fell.keys() & set(PARTS)), min(kills, len(PARTS))
    return [
        *(
            row_stated(
                f"{what} after {kills} killed retrains",
                trial.found[what],
                0,
                "= 0",
                not trial.found[what],
            )
            for what in PROBLEMS
        ),
        row_stated(
            f"of {len(PARTS)} parts of a retrain, killed in",
            fell,
            reached,
            "> half",
            fell * 2 > reached,
        ),
    ]


def wanted_parts(kills: int) -> list[int]:
    """Return the numbers of the parts to kill in, so that a few retrains pass all of them.

    >>> wanted_parts(6), len(set(wanted_parts(len(PARTS)))) == len(PARTS)
    ([0, 3, 6, 9, 1, 4], True)
    """
    order = [part for first in range(GAP) for part in range(first, len(PARTS), GAP)]
    return [order[number % len(order)] for number in range(kills)]


class RetrainTrial:
    """One project through many killed retrains, beside a plain model of its documents."""

    def __init__(self, root: Path, encoder: str | Path, seed: int) -> None:
        self.root, self.chance = root, random.Random(seed)
        self.project, self.state = make_retrain_project(root, encoder)
        self.ids = [*self.state, *(f"new-{number}" for number in range(worker.DOCUMENTS))]
        self.version, self.started = checks.NOBODY, 0
        # Seconds of each part in its last run without a kill.
        self.took: dict[str, float] = {}
        self.found: Counter[str] = Counter()
        # Number of kills by the part that they interrupted.
        self.fell: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self, kills: int) -> None:
        """Run one retrain without a kill, then others until all kills have happened.

        A rollback follows at the end.
        """
        self.attempt("measured")
        wanted, key = wanted_parts(kills), 0
        while wanted:
            wanted = self._killed(f"killed-{key}", wanted)
            key += 1
        self._roll_back()

    def _killed(self, key: str, wanted: list[int]) -> list[int]:
        """Kill the retrain `key` in one wanted part after the other, in order, and let it end.

        Return the remaining parts, including the parts that this retrain had already passed.
        """
        last, left = -1, list(wanted)
        while left and left[0] > last:
            last = left[0]
            self._change()
            if not self.attempt(key, PARTS[last]):
                # The retrain had passed the part and ended.
                return left
            left.pop(0)
        self._change()
        self.attempt(key)
        return left

    def _change(self) -> None:
        """Add or remove documents while no retrain runs or a killed one waits."""
        collection, action = LiveIndex(self.project), {"kind": ""}
        while action["kind"] not in ("put", "remove"):
            action = worker.draw(self.chance, [0])
        worker.perform(collection, action)
        self.state = checks.changed(self.state, action, {})
        collection.ledger.close()

    def attempt(self, key: str, part: str | None = None) -> bool:
        """Run the retrain `key`, kill it in `part`, and compare; return whether it was killed."""
        self.started += 1
        journal = worker.Journal(self.root / f"retrain-{self.started}.jsonl")
        with (self.root / f"retrain-{self.started}.log").open("wb") as log:
            command = [sys.executable, "-m", worker.__name__]
            command += [str(self.root), str(journal.path), key]
            # This clone takes precedence over the project's copy of the product.
            environment = os.environ | {"PYTHONPATH": str(CLONE)}
            process = psutil.Popen(command, cwd=self.root, env=environment, stdout=log, stderr=log)
        killed = self._watch(process, journal, part)
        self._compare(finished=not killed)
        return killed

    def _watch(self, process: psutil.Popen, journal: worker.Journal, part: str | None) -> bool:
        """Follow a retrain until it ends or is killed, and time its parts.

        Return whether it was killed.
        """
        begun = since = time.monotonic()
        at, kill_at = STARTING, float("inf")
        while process.poll() is None:
            now = time.monotonic()
            if now > begun + PATIENCE:
                raise FreshetError(
                    f"a retrain did not come to {part or 'its end'} in {PATIENCE} seconds"
                )
            if (doing := self._part(journal)) != at:
                self.took[at] = now - since
                at, since = doing, now
                if at == part:
                    kill_at = now + self.chance.uniform(0, self.took[at])
            if now >= kill_at:
                self.fell[at] += 1
                _kill(process, with_children=self.fell.total() % 2 == 0)
                return True
            time.sleep(0.002)
        self._require_end(process, journal)
        return False

    def _part(self, journal: worker.Journal) -> str:
        """Return the part of a retrain.

        It is the stage whose output is being written, else the part in the last line of the
        journal.
        """
        lines = journal.read()
        parts = [line for line in lines if "part" in line or "ended" in line]
        if parts and parts[-1].get("ended") == "snapshot":
            making = self.project.state / "staging"
            return next((stage for stage in STAGES if (making / stage).is_dir()), BETWEEN)
        return str(parts[-1].get("part", BETWEEN)) if parts else STARTING

    def _require_end(self, process: psutil.Popen, journal: worker.Journal) -> None:
        if process.returncode:
            said = [line["error"] for line in journal.read() if "error" in line]
            raise FreshetError(
                "a retrain failed by itself: "
                f"{said or journal.path.with_suffix('.log').read_text()}"
            )

    def _compare(self, finished: bool) -> None:
        collection = LiveIndex(Project(self.root))
        if self._searched(collection) != self.state:
            self._note(PROBLEMS[0], "before a writer began")
        self._disagreement(collection, finished, notes=False)
        collection.recover()
        collection.apply()
        found = self._searched(collection)
        if found != self.state:
            self._note(PROBLEMS[1], checks.difference(found or {}, self.state))
        self._disagreement(collection, finished, notes=finished)
        problem = checks.ledger_problem(collection, self.state, self.ids)
        if problem:
            self._note(PROBLEMS[1], problem)
        if finished:
            self.version = checks.champion_of(self.project)
        collection.ledger.close()

    def _searched(self, collection: LiveIndex) -> checks.State | None:
        try:
            return checks.searched(collection)
        except FreshetError as error:
            self._note(PROBLEMS[0], str(error))
            return None

    def _disagreement(self, collection: LiveIndex, finished: bool, notes: bool) -> None:
        said = [checks.roles_problem(collection, self.version, finished)]
        if notes:
            said.append(checks.notes_problem(collection, checks.champion_of(self.project)))
        for problem in filter(None, said):
            self._note(PROBLEMS[2], problem)

    def _roll_back(self) -> None:
        """Roll back, and check that the previous champion is whole."""
        release.rollback(self.project)
        collection = LiveIndex(Project(self.root))
        collection.apply()
        if self._searched(collection) != self.state:
            self._note(PROBLEMS[1], "after a rollback of the champion")
        collection.ledger.close()

    def _note(self, what: str, problem: str) -> None:
        self.found[what] += 1
        self.problems.append(f"{what}, start {self.started}: {problem}")


def _kill(process: psutil.Popen, with_children: bool) -> None:
    """Kill a retrain, with or without its child processes, which must then end by themselves."""
    below = process.children(recursive=True)
    process.kill()
    for one in below if with_children else ():
        try:
            one.kill()
        except psutil.NoSuchProcess:
            # The process has ended meanwhile.
            continue
    process.wait()
    left = psutil.wait_procs(below, timeout=PATIENCE)[1]
    if left:
        raise FreshetError(f"processes outlived a retrain that was killed: {left}")
