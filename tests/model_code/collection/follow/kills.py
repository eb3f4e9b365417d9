"""Kills of a writer and two followers, and the comparison of their answers."""

from __future__ import annotations

import random
import time
from pathlib import Path

from model_code.project import Project
from tests.model_code.collection.follow.places import follow, require_intact, searches
from tests.model_code.collection.follow.processes import (
    KillableProcess,
    answers,
    finished_changes,
    holds_something,
    keep_following,
    recorded_answers,
    write,
)

FOLLOWERS = ("first", "second")
# Longest time without a change by the writer.
STALL_SECONDS = 120


def kill_all(writer: Project, target: str, folder: Path, kills: int, changes: int) -> int:
    """Kill the writer and two followers in turn while all three work.

    Return how many answers of followers were compared with those that the writer published.
    """
    rng = random.Random(kills)
    copies = {name: Project(folder / name) for name in FOLLOWERS}
    processes = {"writer": KillableProcess(write, writer.root, target, changes, 1)}
    for name, copy in copies.items():
        processes[name] = KillableProcess(keep_following, copy.root, target, name)
    compared = 0

    try:
        for kill in range(kills):
            changes_before_kill = changes * (kill + 1) // (kills + 1)
            compared += compare_until(processes["writer"], writer, copies, changes_before_kill)
            time.sleep(rng.random() * 0.1)
            victim = list(processes)[kill % len(processes)]
            processes[victim].kill()
            if victim in copies and holds_something(copies[victim]):
                require_intact(copies[victim])
            processes[victim].start()

        compared += compare_until(processes["writer"], writer, copies, changes)
        processes["writer"].process.join()
        assert processes["writer"].process.exitcode == 0
    finally:
        for process in processes.values():
            process.kill()

    for name, copy in copies.items():
        follow(copy.root, target, name=name).update()
        require_intact(copy)
        assert searches(copy) == searches(writer)
    return compared


def compare_until(
    process: KillableProcess, writer: Project, copies: dict[str, Project], changes: int
) -> int:
    """Search the followers until the writer has made so many changes.

    Each answer must be one that the writer published. Return how many were compared.
    """
    compared = 0
    finished = finished_changes(writer.root)
    deadline = time.monotonic() + STALL_SECONDS
    while finished < changes:
        for copy in copies.values():
            if holds_something(copy):
                found = answers(copy)
                assert found in recorded_answers(writer.root), "a mixed answer"
                compared += 1
        assert not process.has_failed, "the writer failed; its error is above"
        time.sleep(0.01)

        before = finished
        finished = finished_changes(writer.root)
        if finished > before:
            deadline = time.monotonic() + STALL_SECONDS
        assert time.monotonic() < deadline, "the writer stopped"
    return compared
