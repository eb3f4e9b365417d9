"""Kill retrains of a tiny real project in each of their parts, for `freshet bench faults`.

A retrain is a process that runs DVC and its stages; `worker` starts it. It is killed in a chosen
part. The moment is random, within the time that the part took in an earlier retrain. Every other
time, all processes that the retrain started are killed, too.

After a kill, a search must find the same documents as before. Champion and live build must both be
the old version or both the new one. Then documents are added and removed, and the retrain is
started again with the same key, until it ends.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
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
# Parts in the order of a retrain. The stages follow the part `snapshot`.
MARKED_PARTS = list(worker.MARKED_FUNCTIONS)
STAGES_START = MARKED_PARTS.index("snapshot") + 1
PARTS = (*MARKED_PARTS[:STAGES_START], *STAGES, *MARKED_PARTS[STAGES_START:])
# Names for the time before the first part of a retrain, and between two parts.
STARTING = "starting"
BETWEEN_PARTS = "between parts"
# The same retrain is killed again in the part that comes so many parts later.
PARTS_BETWEEN_KILLS = 3
# Seconds until a part must have begun or a retrain must have ended.
RETRAIN_TIMEOUT_SECONDS = 600
# Kinds of problems.
BROKEN_SEARCH = "searches not as before the retrain"
WRONG_DOCUMENTS = "retrains that lost or doubled a document"
WRONG_VERSIONS = "champions and live builds that disagree"
PROBLEMS = (BROKEN_SEARCH, WRONG_DOCUMENTS, WRONG_VERSIONS)
# Environment variables that would lead out of the temporary project.
OUTSIDE_VARIABLES = (LEDGER_URL_VARIABLE, "FRESHET_STATE", "MLFLOW_TRACKING_URI")


def retrain_rows(kills: int, encoder: str | Path, seed: int = 0) -> list[dict[str, Any]]:
    """Kill `kills` retrains, and count failures."""
    with (
        tempfile.TemporaryDirectory(prefix="freshet-retrains-") as folder,
        mock.patch.dict(os.environ),
    ):
        for name in OUTSIDE_VARIABLES:
            os.environ.pop(name, None)
        trial = RetrainTrial(Path(folder), encoder, seed)
        trial.run(kills)

    results = []
    for problem in PROBLEMS:
        count = trial.problem_counts[problem]
        label = f"{problem} after {kills} killed retrains"
        results.append(row_stated(label, count, 0, "= 0", count == 0))

    killed_parts = len(trial.kills_by_part.keys() & set(PARTS))
    possible_parts = min(kills, len(PARTS))
    results.append(
        row_stated(
            f"of {len(PARTS)} parts of a retrain, killed in",
            killed_parts,
            possible_parts,
            "> half",
            killed_parts > possible_parts / 2,
        )
    )
    return results


def wanted_parts(kills: int) -> list[int]:
    """Return the numbers of the parts to kill in, so that a few retrains pass all of them.

    A retrain can only be killed in a part that it has not passed. It is killed in every third part
    here, and the retrains after it are killed in the parts between.

    >>> wanted_parts(6)
    [0, 3, 6, 9, 1, 4]
    >>> len(set(wanted_parts(len(PARTS)))) == len(PARTS)
    True
    """
    order: list[int] = []
    for first in range(PARTS_BETWEEN_KILLS):
        order.extend(range(first, len(PARTS), PARTS_BETWEEN_KILLS))
    return [order[number % len(order)] for number in range(kills)]


class RetrainTrial:
    """One project that survives many killed retrains, and the documents that it must have.

    Args:
        root: Empty folder in which the project is created.
        encoder: Base encoder of the project.
        seed: Seed of the changes and delays.

    Attributes:
        project: The project.
        state: Documents that a search must find: the text of each document id.
        ids: Ids of all documents that may exist.
        version: Version of the champion after the last finished retrain.
        started: Number of started retrains.
        part_seconds: Seconds that each part took when it last ran without a kill.
        problem_counts: Number of problems by kind.
        kills_by_part: Number of kills in each part.
        problems: Descriptions of the problems.
    """

    def __init__(self, root: Path, encoder: str | Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.project, self.state = make_retrain_project(root, encoder)
        self.ids = [*self.state, *(f"new-{number}" for number in range(worker.DOCUMENTS))]
        self.version = checks.NO_VERSION
        self.started = 0
        self.part_seconds: dict[str, float] = {}
        self.problem_counts: Counter[str] = Counter()
        self.kills_by_part: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self, kills: int) -> None:
        """Run one retrain without a kill, then others until all kills have happened.

        A rollback follows at the end.
        """
        self.attempt("measured")
        remaining_parts = wanted_parts(kills)
        number = 0
        while remaining_parts:
            remaining_parts = self._kill_in_parts(f"killed-{number}", remaining_parts)
            number += 1
        self._roll_back()

    def _kill_in_parts(self, key: str, parts: list[int]) -> list[int]:
        """Kill the retrain `key` in one part after the other, in order, and let it end.

        Args:
            key: Key of the retrain. A retrain that starts again with the same key resumes.
            parts: Numbers of the parts to kill in. This retrain takes the first ones, as long as
                their numbers ascend.

        Returns:
            The numbers that are left for other retrains.
        """
        last_part = -1
        remaining_parts = list(parts)
        while remaining_parts and remaining_parts[0] > last_part:
            last_part = remaining_parts[0]
            self._change_documents()
            was_killed = self.attempt(key, PARTS[last_part])
            if not was_killed:
                # The retrain had passed the part before, and ended. Another one is killed there.
                return remaining_parts
            remaining_parts.pop(0)
        self._change_documents()
        self.attempt(key)
        return remaining_parts

    def _change_documents(self) -> None:
        """Add or remove documents while no retrain runs, for example after one was killed."""
        live_index = LiveIndex(self.project)
        action = worker.draw(self.random, [0])
        while action["kind"] not in ("put", "remove"):
            action = worker.draw(self.random, [0])
        worker.perform(live_index, action)
        self.state = checks.apply_action(self.state, action, {})
        live_index.ledger.close()

    def attempt(self, key: str, part: str | None = None) -> bool:
        """Run the retrain `key`, kill it in `part`, and check the project.

        Args:
            key: Key of the retrain.
            part: Part to kill it in. None lets it end.

        Returns:
            Whether it was killed.
        """
        self.started += 1
        journal = worker.Journal(self.root / f"retrain-{self.started}.jsonl")
        command = [sys.executable, "-m", worker.__name__, str(self.root), str(journal.path), key]
        # This clone takes precedence over the project's copy of the product.
        environment = {**os.environ, "PYTHONPATH": str(CLONE)}
        with (self.root / f"retrain-{self.started}.log").open("wb") as log:
            process = psutil.Popen(command, cwd=self.root, env=environment, stdout=log, stderr=log)
        was_killed = self._watch(process, journal, part)
        self._compare(finished=not was_killed)
        return was_killed

    def _watch(self, process: psutil.Popen, journal: worker.Journal, part: str | None) -> bool:
        """Follow a retrain until it ends or is killed, and time its parts.

        Args:
            process: The process of the retrain.
            journal: Journal that names the part that the retrain is in.
            part: Part to kill it in, at a random moment within the seconds that the part took
                before. None lets it end.

        Returns:
            Whether it was killed.

        Raises:
            FreshetError: If the retrain fails by itself, or does not end in time.
        """
        started = time.monotonic()
        current_part = STARTING
        part_started = started
        kill_time = float("inf")
        while process.poll() is None:
            now = time.monotonic()
            if now > started + RETRAIN_TIMEOUT_SECONDS:
                raise FreshetError(
                    f"a retrain did not come to {part or 'its end'} "
                    f"in {RETRAIN_TIMEOUT_SECONDS} seconds"
                )

            new_part = self._find_part(journal)
            if new_part != current_part:
                self.part_seconds[current_part] = now - part_started
                current_part = new_part
                part_started = now
                if current_part == part:
                    kill_time = now + self.random.uniform(0, self.part_seconds[current_part])

            if now >= kill_time:
                self.kills_by_part[current_part] += 1
                is_even_kill = self.kills_by_part.total() % 2 == 0
                _kill(process, with_children=is_even_kill)
                return True
            time.sleep(0.002)
        self._require_success(process, journal)
        return False

    def _find_part(self, journal: worker.Journal) -> str:
        """Return the part that a retrain is in.

        The journal names the parts outside of stages. A stage is recognised by the folder in which
        it prepares its output.
        """
        lines = [line for line in journal.read() if "part" in line or "ended" in line]
        if not lines:
            return STARTING
        last_line = lines[-1]
        # The stages follow the snapshot.
        if last_line.get("ended") == "snapshot":
            for stage in STAGES:
                if (self.project.state / "staging" / stage).is_dir():
                    return stage
        return str(last_line.get("part", BETWEEN_PARTS))

    def _require_success(self, process: psutil.Popen, journal: worker.Journal) -> None:
        """Raise FreshetError with the retrain's own error if it ended with one."""
        if process.returncode != 0:
            errors = [line["error"] for line in journal.read() if "error" in line]
            log = journal.path.with_suffix(".log").read_text()
            raise FreshetError(f"a retrain failed by itself: {errors or log}")

    def _compare(self, finished: bool) -> None:
        """Check search and versions after a retrain; apply pending changes, and check again.

        Args:
            finished: Whether the retrain ended without a kill, so that its version must be live.
        """
        live_index = LiveIndex(Project(self.root))
        if self._search(live_index) != self.state:
            self._add_problem(BROKEN_SEARCH, "before a writer began")
        self._check_versions(live_index, finished)

        live_index.recover()
        live_index.apply()

        actual_state = self._search(live_index)
        if actual_state != self.state:
            difference = checks.describe_difference(actual_state or {}, self.state)
            self._add_problem(WRONG_DOCUMENTS, difference)
        self._check_versions(live_index, finished)
        if finished:
            champion = checks.champion_of(self.project)
            problem = checks.promotion_problem(live_index, champion)
            if problem is not None:
                self._add_problem(WRONG_VERSIONS, problem)
        problem = checks.ledger_problem(live_index, self.state, self.ids)
        if problem is not None:
            self._add_problem(WRONG_DOCUMENTS, problem)
        if finished:
            self.version = checks.champion_of(self.project)
        live_index.ledger.close()

    def _search(self, live_index: LiveIndex) -> checks.State | None:
        """Return all documents that a search finds; None, with a note, if it fails."""
        try:
            return checks.find_all_documents(live_index)
        except FreshetError as error:
            self._add_problem(BROKEN_SEARCH, str(error))
            return None

    def _check_versions(self, live_index: LiveIndex, finished: bool) -> None:
        """Note a problem if champion and live build are not the same allowed version."""
        problem = checks.version_problem(live_index, self.version, finished)
        if problem is not None:
            self._add_problem(WRONG_VERSIONS, problem)

    def _roll_back(self) -> None:
        """Roll back, and check that the previous champion is whole."""
        release.rollback(self.project)
        live_index = LiveIndex(Project(self.root))
        live_index.apply()
        if self._search(live_index) != self.state:
            self._add_problem(WRONG_DOCUMENTS, "after a rollback of the champion")
        live_index.ledger.close()

    def _add_problem(self, kind: str, problem: str) -> None:
        self.problem_counts[kind] += 1
        self.problems.append(f"{kind}, start {self.started}: {problem}")


def _kill(process: psutil.Popen, with_children: bool) -> None:
    """Kill a retrain, with or without its child processes, which must then end by themselves."""
    children = process.children(recursive=True)
    process.kill()
    if with_children:
        for child in children:
            # A child may have ended meanwhile.
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.wait()
    _, running = psutil.wait_procs(children, timeout=RETRAIN_TIMEOUT_SECONDS)
    if running:
        raise FreshetError(f"processes outlived a retrain that was killed: {running}")
