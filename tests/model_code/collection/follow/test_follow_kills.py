"""Guards that two followers equal their writer after they were killed at random moments.

Real processes are killed by SIGKILL. `pytest -m long` kills fifty times during 1,000 changes.

Run: python -m pytest tests/model_code/collection/follow/test_follow_kills.py
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from model_code.collection.generations.generation_store import CURRENT
from model_code.collection.index.live_index import LiveIndex
from model_code.project import Project
from tests.model_code.collection.follow.places import (
    KEY,
    change,
    follow,
    publish_to,
    require_intact,
    searches,
)
from tests.model_code.collection.laws import WORDS

FOLLOW = """
import sys, time
from pathlib import Path
from model_code.collection.follow.follower import Follower
from model_code.errors import FreshetError

follower = Follower(Path(sys.argv[1]), sys.argv[2], sys.argv[3].encode(), sys.argv[4])
print("ready", flush=True)
while True:
    try:
        follower.update()
    except FreshetError as error:
        print(error, file=sys.stderr, flush=True)
    time.sleep(0.01)
"""


class FollowerProcess:
    """A process that follows until it is killed."""

    def __init__(self, root: Path, target: str, name: str) -> None:
        self.project = Project(root)
        arguments = [str(root), target, KEY.decode(), name]
        self.process = subprocess.Popen(
            [sys.executable, "-c", FOLLOW, *arguments],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        )
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    @property
    def holds_something(self) -> bool:
        return (self.project.live / CURRENT).is_file()


def kill_followers(
    project: Project, target: str, folder: Path, kills: int, changes: int, rng: random.Random
) -> None:
    """Change and publish the collection while two followers are killed again and again."""
    published = []
    publish_to(project, target)
    published.append(searches(project))
    names = ("first", "second")
    changes_per_kill = max(1, changes // kills)

    for kill in range(kills):
        name = names[kill % 2]
        process = FollowerProcess(folder / name, target, name)
        for number in range(changes_per_kill):
            change_at_random(project, rng, kill * changes_per_kill + number)
            if rng.random() < 0.1:
                publish_to(project, target)
                published.append(searches(project))
        publish_to(project, target)
        published.append(searches(project))
        time.sleep(rng.random() * 0.3)
        process.kill()

        if process.holds_something:
            require_intact(process.project)
            assert searches(process.project) in published, "a mixed answer"

    for name in names:
        follower = follow(folder / name, target, name=name)
        follower.update()
        assert searches(follower.project) == searches(project)


def change_at_random(project: Project, rng: random.Random, number: int) -> None:
    document_id = f"new{rng.randrange(40)}"
    text = " ".join(rng.choice(WORDS) for _ in range(5))
    deletes = [f"d{rng.randrange(24):02d}"] if rng.random() < 0.2 else []
    change(project, {document_id: text}, deletes)
    if number % 25 == 24:
        LiveIndex(project).compact()
        LiveIndex(project).collect_garbage(2)


def test_killed_followers_equal_the_writer(own, tmp_path):
    kill_followers(own, str(tmp_path / "shared"), tmp_path, 2, 6, random.Random(1))


@pytest.mark.long
@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_followers_that_are_killed_fifty_times_equal_the_writer(own, tmp_path):
    kill_followers(own, str(tmp_path / "shared"), tmp_path, 50, 1000, random.Random(2))
