"""The process that is killed: it changes a live collection without end, and says before each change what it will do."""

from __future__ import annotations

import json
import os
import random
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestration.benchmarks.fault_collection import document_text
from orchestration.freshening import Freshener
from orchestration.project import Project

DOCUMENTS = 12  # ids that are added, updated and deleted over and over
ACTIONS = ("put", "put", "put", "remove", "remove", "compact", "switch", "collect")


class Journal:
    """What the worker was about to do, what it finished, and what failed: JSON lines that reach the disk at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **line: Any) -> None:
        """Append a line."""
        with self.path.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def read(self) -> list[dict[str, Any]]:
        """All whole lines; the last one may have been cut off by a crash."""
        lines = self.path.read_text().split("\n")[:-1] if self.path.exists() else []
        return [json.loads(line) for line in lines]


def work(root: Path, journal: Path, seed: int, generations: Mapping[int, Any]) -> None:
    """Change the collection under `root` until killed. generations: those that may be switched to."""
    written, chance, known = Journal(journal), random.Random(seed), list(generations)
    try:
        freshener = Freshener(Project(root))
        while True:
            there = {generation.number for generation in freshener.collection.generations()}
            action = draw(chance, [number for number in known if number in there])
            written.write(begin=action)
            perform(freshener, action)
            known.append(freshener.collection.current().number)
            written.write(end=known[-1])
    except BaseException:
        written.write(error=traceback.format_exc())
        raise


def draw(chance: random.Random, generations: list[int]) -> dict[str, Any]:
    """A random change, as plain values: several documents are put or removed at once."""
    kind = chance.choice(ACTIONS)
    ids = [f"new-{number}" for number in chance.sample(range(DOCUMENTS), chance.randint(1, 4))]
    if kind == "put":
        return {"kind": kind, "documents": {one: document_text(chance.randrange(10_000)) for one in ids}}
    if kind == "remove":
        return {"kind": kind, "ids": [*ids, f"base-{chance.randrange(4)}"]}
    return {"kind": kind, "to": chance.choice(generations[-3:])} if kind == "switch" else {"kind": kind}


def perform(freshener: Freshener, action: Mapping[str, Any]) -> None:
    """Do what `draw` drew, as the commands of the same names do."""
    kind = action["kind"]
    if kind == "put":
        rows = [{"id": one, "title": one, "text": text} for one, text in action["documents"].items()]
        freshener.receive(rows, "faults")
        freshener.apply_pending()
    elif kind == "remove":
        freshener.remove(action["ids"], "faults")
        freshener.apply_pending()
    elif kind == "compact":
        freshener.compact()
    elif kind == "switch":
        freshener.rollback(action["to"])
    else:
        freshener.collect_garbage(keep=3)
