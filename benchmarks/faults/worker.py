"""The process that is killed: it changes a live collection without end, and says before each change what it will do."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.faults.collection import document_text, write_build
from model_code.live.build import Parts
from model_code.live.generation import Generation
from orchestration.freshness.snapshot import live_documents
from orchestration.live.collection import LiveCollection
from orchestration.live.opening import open_build
from orchestration.project import Project

DOCUMENTS = 12  # ids that are added, updated and deleted over and over
ACTIONS = ("put",) * 4 + ("remove", "retrain", "retrain", "compact", "switch", "switch", "collect")


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
    """Change the collection under `root` until killed, or left alone. generations: those that may be switched to."""
    written, chance, known = Journal(journal), random.Random(seed), list(generations)
    try:
        collection = LiveCollection(Project(root))
        while _is_wanted():
            whole = {generation.number for generation in collection.collection.generations() if generation.whole}
            action = draw(chance, [number for number in known if number in whole])
            written.write(begin=action)
            perform(collection, action, lambda: written.write(acknowledged=True))
            known.append(collection.generation.number)
            written.write(end=known[-1])
    except BaseException:
        written.write(error=traceback.format_exc())
        raise


def _is_wanted() -> bool:
    """Whether the process that is to kill this one is still there."""
    parent = multiprocessing.parent_process()
    return parent is None or parent.is_alive()


def draw(chance: random.Random, generations: list[int]) -> dict[str, Any]:
    """A random change, as plain values: several documents are put or removed at once."""
    kind = chance.choice(ACTIONS)
    ids = [f"new-{number}" for number in chance.sample(range(DOCUMENTS), chance.randint(1, 4))]
    if kind in ("put", "retrain"):
        documents = {one: document_text(chance.randrange(10_000)) for one in ids}
        return {"kind": kind, "documents": documents, "seed": chance.randrange(10**9)}
    if kind == "remove":
        return {"kind": kind, "ids": [*ids, f"base-{chance.randrange(4)}"]}
    return {"kind": kind, "to": chance.choice(generations[-3:])} if kind == "switch" else {"kind": kind}


def perform(collection: LiveCollection, action: Mapping[str, Any], acknowledge: Callable[[], None]) -> None:
    """Do what `draw` drew, as the commands of the same names do.

    acknowledge: called with the receipt in hand: from then on the documents may not be lost.
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
    elif kind == "switch":
        collection.revert(action["to"])
    else:
        collection.collect_garbage(keep=3)


def _receive(collection: LiveCollection, documents: Mapping[str, str]) -> None:
    collection.receive([{"id": one, "title": one, "text": text} for one, text in documents.items()], "faults")


def _retrain(
    collection: LiveCollection, arriving: Mapping[str, str], seed: int, acknowledge: Callable[[], None]
) -> None:
    """Build anew from what is live, while documents arrive, and promote it, as a retrain does behind its gate."""
    searcher, root = collection.writer.searcher, collection.project.root
    texts, snapshot = dict(_texts(searcher.generation)), searcher.generation.standing.position
    _receive(collection, arriving)
    acknowledge()
    with tempfile.TemporaryDirectory(dir=root) as folder:
        built = write_build(root, Path(folder), searcher.base.retriever.encoder, texts, seed)  # type: ignore[attr-defined]
        parts = Parts(*(built[name] for name in ("encoder", "index", "documents", "hierarchy")))
        open_build(collection.project, collection.retriever, parts, {}, built["text"], snapshot)


def _texts(generation: Generation) -> Iterator[tuple[str, str]]:
    return ((row["id"], row["text"]) for row in live_documents(generation))
