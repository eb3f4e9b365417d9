"""A writer and followers in processes of their own, which can be killed at any moment.

The processes are forked from one that has imported the libraries, so that a restart takes no time.
A kill loses no written page, so nothing waits for the disk.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from model_code.collection.generations.generation_store import CURRENT
from model_code.collection.index.live_index import LiveIndex
from model_code.errors import FreshetError
from model_code.files import write_text
from model_code.project import Project
from tests.disk import skip_fsync
from tests.model_code.collection.follow.places import change, follow, publish_to, searches
from tests.model_code.collection.laws import WORDS

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__, "fsspec"])

PROGRESS = "progress"
ANSWERS = "answers.jsonl"


class KillableProcess:
    """A process that runs a function until it is killed, or until the function returns."""

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        self.function = function
        self.arguments = arguments
        self.start()

    def start(self) -> None:
        arguments = (self.function, dict(os.environ), *self.arguments)
        self.process = FORKED.Process(target=run, args=arguments, daemon=True)
        self.process.start()

    @property
    def has_failed(self) -> bool:
        return self.process.exitcode not in (None, 0)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def run(function: Callable[..., None], environment: Mapping[str, str], *arguments: object) -> None:
    """Run a function with the environment of the test."""
    os.environ.update(environment)
    skip_fsync(pytest.MonkeyPatch())
    function(*arguments)


def write(root: Path, target: str, changes: int, seed: int) -> None:
    """Change and publish a collection, and go on where a killed writer stopped."""
    project = Project(root)
    LiveIndex(project).apply()
    publish_and_record(project, target)
    for number in range(finished_changes(root), changes):
        rng = random.Random(f"{seed}, {number}")
        change_at_random(project, rng, number)
        is_last = number == changes - 1
        if is_last or rng.random() < 0.15:
            publish_and_record(project, target)
        write_text(root / PROGRESS, str(number + 1))


def finished_changes(root: Path) -> int:
    path = root / PROGRESS
    return int(path.read_text()) if path.is_file() else 0


def publish_and_record(project: Project, target: str) -> None:
    """Publish the collection. Its answers are recorded before a follower can give them."""
    with (project.root / ANSWERS).open("a") as file:
        file.write(answers(project) + "\n")
    publish_to(project, target)


def answers(project: Project) -> str:
    """Return all hits of a few queries as one line."""
    return json.dumps(searches(project))


def recorded_answers(root: Path) -> set[str]:
    return set((root / ANSWERS).read_text().splitlines())


def change_at_random(project: Project, rng: random.Random, number: int) -> None:
    document_id = f"new{rng.randrange(40)}"
    text = " ".join(rng.choice(WORDS) for _ in range(5))
    deletes = [f"d{rng.randrange(24):02d}"] if rng.random() < 0.2 else []
    change(project, {document_id: text}, deletes)
    if number % 25 == 24:
        LiveIndex(project).compact()
        LiveIndex(project).collect_garbage(2)


def keep_following(root: Path, target: str, name: str) -> None:
    """Follow without end. A refused publication is printed, and tried again."""
    follower = follow(root, target, name=name)
    while True:
        try:
            follower.update()
        except FreshetError as error:
            print(error, file=sys.stderr, flush=True)
        time.sleep(0.01)


def holds_something(project: Project) -> bool:
    return (project.live / CURRENT).is_file()
