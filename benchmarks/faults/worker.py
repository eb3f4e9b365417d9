"""Processes that are killed: one changes documents, the other retrains.

They write a line before each step.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.faults.project import OTHER, document_text, write_build
from model_code.collection.generations.build import BuildArtifacts
from model_code.collection.index.builds import open_build
from model_code.collection.index.live_index import LiveIndex
from model_code.evaluation.promotion import Verdict, judge_retrain
from model_code.project import Project
from orchestration.freshness import retrain
from orchestration.freshness.snapshot import live_documents
from orchestration.registry import gate, release

# Number of ids that are added, updated and deleted repeatedly.
DOCUMENTS = 12
ACTIONS = ("put",) * 4 + (
    "remove",
    "retrain",
    "retrain",
    "compact",
    "revert",
    "revert",
    "revert",
    "collect",
)


class Journal:
    """JSON lines of started, finished and failed steps, which are forced to disk at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **line: Any) -> None:
        """Append a line."""
        with self.path.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def read(self) -> list[dict[str, Any]]:
        """Return all whole lines; a crash may have cut off the last one."""
        lines = self.path.read_text().split("\n")[:-1] if self.path.exists() else []
        return [json.loads(line) for line in lines]


def work(root: Path, journal: Path, seed: int, generations: Mapping[int, Any]) -> None:
    """Change the live collections under `root` until killed or until the parent ends.

    generations: Generations to revert to.
    """
    written, chance, known = Journal(journal), random.Random(seed), list(generations)
    try:
        collection, other = LiveIndex(Project(root)), LiveIndex(Project(root), OTHER)
        while _is_wanted():
            whole = {
                generation.number
                for generation in collection.store.generations()
                if generation.complete
            }
            action = draw(chance, [number for number in known if number in whole])
            written.write(begin=action)
            perform(collection, action, lambda: written.write(acknowledged=True))
            follow(other, action)
            known.append(collection.generation.number)
            written.write(end=known[-1])
    except BaseException:
        written.write(error=traceback.format_exc())
        raise


def _is_wanted() -> bool:
    """Return whether the process that kills this one still runs."""
    parent = multiprocessing.parent_process()
    return parent is None or parent.is_alive()


def draw(chance: random.Random, generations: list[int]) -> dict[str, Any]:
    """Draw a random change as plain values: several documents are put or removed at once."""
    kind = chance.choice(ACTIONS)
    ids = [f"new-{number}" for number in chance.sample(range(DOCUMENTS), chance.randint(1, 4))]
    if kind in ("put", "retrain"):
        documents = {one: document_text(chance.randrange(10_000)) for one in ids}
        return {"kind": kind, "documents": documents, "seed": chance.randrange(10**9)}
    if kind == "remove":
        return {"kind": kind, "ids": [*ids, f"base-{chance.randrange(4)}"]}
    return (
        {"kind": kind, "to": chance.choice(generations[-3:])}
        if kind == "revert"
        else {"kind": kind}
    )


def perform(
    collection: LiveIndex,
    action: Mapping[str, Any],
    acknowledge: Callable[[], None] = lambda: None,
) -> None:
    """Run an action of `draw` like the command of the same name.

    acknowledge: Called with the receipt. From then on the documents may not be lost.
    """
    kind = action["kind"]
    if kind == "put":
        _receive(collection, action["documents"])
        acknowledge()
        collection.apply()
    elif kind == "remove":
        collection.remove(action["ids"], "faults")
        acknowledge()
        collection.apply()
    elif kind == "retrain":
        _retrain(collection, action["documents"], action["seed"], acknowledge)
    elif kind == "compact":
        collection.compact()
    elif kind == "revert":
        collection.revert(action["to"])
    else:
        collection.collect_garbage(keep=3)


def follow(other: LiveIndex, action: Mapping[str, Any]) -> None:
    """Apply the events of `action` to another retriever, with the same maintenance."""
    if action["kind"] in ("compact", "collect"):
        perform(other, action)
    else:
        other.apply()


def _receive(collection: LiveIndex, documents: Mapping[str, str]) -> None:
    collection.receive(
        [{"id": one, "title": one, "text": text} for one, text in documents.items()], "faults"
    )


def _retrain(
    collection: LiveIndex,
    arriving: Mapping[str, str],
    seed: int,
    acknowledge: Callable[[], None],
) -> None:
    """Build from the live documents while others arrive, and promote it, like a retrain."""
    searcher, root = collection.builder.searcher, collection.project.root
    texts = {row["id"]: row["text"] for row in live_documents(searcher.generation)}
    snapshot = searcher.generation.cursor.position
    _receive(collection, arriving)
    acknowledge()
    with tempfile.TemporaryDirectory(dir=root) as folder:
        encoder = searcher.base.retriever.encoder  # type: ignore[attr-defined]
        built = write_build(root, Path(folder), encoder, texts, seed)
        parts = BuildArtifacts(
            *(built[name] for name in ("encoder", "index", "documents", "hierarchy"))
        )
        open_build(collection.project, collection.retriever, parts, {}, built["text"], snapshot)


# Parts of a retrain outside its stages, in order: their names and functions.
MARKED = {
    "plan": (retrain, "_begin_retrain"),
    "snapshot": (retrain, "make_workspace"),
    "register": (release, "register"),
    "judge": (gate, "judge_challenger"),
    "open": (release, "open_version"),
    "champion": (release, "_make_champion"),
    "absorb": (retrain, "_record_outcome"),
}


def retrain_once(root: Path, journal: Path, key: str) -> None:
    """Retrain the project under `root`, and promote the result without regard to the gate."""
    written = Journal(journal)
    for name, (module, function) in MARKED.items():
        setattr(module, function, _marked(written, name, getattr(module, function)))
    # The gate must pass, because the tiny model gains nothing.
    setattr(gate, "judge_retrain", _passing(judge_retrain))  # noqa: B010
    try:
        done = retrain.retrain(Project(root), key)
        written.write(
            part="end", at=time.time(), version=done.version.version, generation=done.generation
        )
    except BaseException:
        written.write(error=traceback.format_exc())
        raise


def _marked(journal: Journal, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any, **named: Any) -> Any:
        """Call the function between two lines of the journal, which locate a kill."""
        journal.write(part=name, at=time.time())
        found = function(*arguments, **named)
        journal.write(ended=name, at=time.time())
        return found

    return called


def _passing(judge: Callable[..., Verdict]) -> Callable[..., Verdict]:
    return lambda *arguments: replace(judge(*arguments), passed=True)


if __name__ == "__main__":
    retrain_once(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
