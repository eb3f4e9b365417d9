"""The processes that `freshet bench faults` kills: one changes documents, the other retrains.

They write a line to a journal before and after each step, which tells where a kill hit them.
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
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

# Number of document ids that are added, updated and deleted repeatedly.
DOCUMENTS = 12
# Kinds of changes. A kind that is listed more often is drawn more often.
ACTIONS = (
    "put",
    "put",
    "put",
    "put",
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
        if not self.path.exists():
            return []
        whole_lines = self.path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in whole_lines]


def work(root: Path, journal: Path, seed: int, revert_targets: Iterable[int]) -> None:
    """Change the two live retrievers of a project until killed or until the parent ends.

    Args:
        root: Folder of the project.
        journal: File of the journal.
        seed: Seed of the changes.
        revert_targets: Numbers of existing generations to revert to. The generations that this
            process makes are added to them.
    """
    log = Journal(journal)
    generator = random.Random(seed)
    known_numbers = list(revert_targets)
    try:
        live_index = LiveIndex(Project(root))
        other = LiveIndex(Project(root), OTHER)
        while _parent_runs():
            # Collecting garbage deletes generations, which cannot be reverted to any more.
            complete_numbers = {
                generation.number
                for generation in live_index.store.generations()
                if generation.complete
            }
            possible_numbers = [number for number in known_numbers if number in complete_numbers]
            action = draw(generator, possible_numbers)
            log.write(begin=action)
            perform(live_index, action, partial(log.write, acknowledged=True))
            follow(other, action)
            known_numbers.append(live_index.generation.number)
            log.write(end=live_index.generation.number)
    except BaseException:
        log.write(error=traceback.format_exc())
        raise


def _parent_runs() -> bool:
    """Return whether the process that kills this one still runs."""
    parent = multiprocessing.parent_process()
    return parent is None or parent.is_alive()


def draw(generator: random.Random, generations: list[int]) -> dict[str, Any]:
    """Draw a random change, as plain values that can be written to the journal.

    Args:
        generator: Generator of the draws.
        generations: Numbers of the generations to revert to. One of the last three is drawn.

    Returns:
        The `kind`, one of `ACTIONS`, and its arguments. A put or retrain has `documents`, the text
        of each id, and `seed`. A removal has `ids`. A revert has `to`, a generation's number.
    """
    kind = generator.choice(ACTIONS)
    ids = draw_ids(generator)
    if kind in ("put", "retrain"):
        documents = draw_texts(generator, ids)
        return {"kind": kind, "documents": documents, "seed": generator.randrange(10**9)}
    if kind == "remove":
        base_id = f"base-{generator.randrange(4)}"
        return {"kind": kind, "ids": [*ids, base_id]}
    if kind == "revert":
        return {"kind": kind, "to": generator.choice(generations[-3:])}
    return {"kind": kind}


def draw_ids(generator: random.Random) -> list[str]:
    """Draw one to four of the ids that are changed."""
    count = generator.randint(1, 4)
    return [f"new-{number}" for number in generator.sample(range(DOCUMENTS), count)]


def draw_texts(generator: random.Random, ids: Iterable[str]) -> dict[str, str]:
    """Draw a text for each id."""
    return {document_id: document_text(generator.randrange(10_000)) for document_id in ids}


def _do_nothing() -> None:
    pass


def perform(
    live_index: LiveIndex,
    action: Mapping[str, Any],
    acknowledge: Callable[[], None] = _do_nothing,
) -> None:
    """Run an action of `draw` like the command of the same name.

    Args:
        live_index: Live index that is changed.
        action: Change that `draw` returned.
        acknowledge: Called once the documents are recorded. From then on they may not be lost.
    """
    kind = action["kind"]
    if kind == "put":
        live_index.receive(make_rows(action["documents"]), "faults")
        acknowledge()
        live_index.apply()
    elif kind == "remove":
        live_index.remove(action["ids"], "faults")
        acknowledge()
        live_index.apply()
    elif kind == "retrain":
        _retrain(live_index, action["documents"], action["seed"], acknowledge)
    elif kind == "compact":
        live_index.compact()
    elif kind == "revert":
        live_index.revert(action["to"])
    else:
        live_index.collect_garbage(keep=3)


def follow(other: LiveIndex, action: Mapping[str, Any]) -> None:
    """Apply an action to another retriever: its events, or the same maintenance."""
    if action["kind"] in ("compact", "collect"):
        perform(other, action)
    else:
        other.apply()


def make_rows(documents: Mapping[str, str]) -> list[dict[str, str]]:
    """Return rows to add for the texts by id. A document's title is its id."""
    return [
        {"id": document_id, "title": document_id, "text": text}
        for document_id, text in documents.items()
    ]


def _retrain(
    live_index: LiveIndex,
    arriving: Mapping[str, str],
    seed: int,
    acknowledge: Callable[[], None],
) -> None:
    """Build from the live documents while others arrive, and open the build, like a retrain.

    Args:
        live_index: Live index that receives the documents and opens the build.
        arriving: Texts by id of documents that arrive after the build has read its documents.
        seed: Seed of the build's hierarchy.
        acknowledge: Called once the arriving documents are recorded.
    """
    searcher = live_index.builder.searcher
    root = live_index.project.root
    texts = {row["id"]: row["text"] for row in live_documents(searcher.generation)}
    # The build includes the events up to this position. Opening it applies the later ones.
    snapshot = searcher.generation.cursor.position
    live_index.receive(make_rows(arriving), "faults")
    acknowledge()
    with tempfile.TemporaryDirectory(dir=root) as folder:
        encoder = searcher.base.retriever.encoder  # type: ignore[attr-defined]
        build = write_build(root, Path(folder), encoder, texts, seed)
        artifacts = BuildArtifacts(
            encoder=build["encoder"],
            index=build["index"],
            documents=build["documents"],
            hierarchy=build["hierarchy"],
        )
        rules = build["text"]
        open_build(live_index.project, live_index.retriever, artifacts, {}, rules, snapshot)


# Parts of a retrain that are not stages, in order: their names, modules and functions.
MARKED_FUNCTIONS = {
    "plan": (retrain, "_begin_retrain"),
    "snapshot": (retrain, "make_workspace"),
    "register": (release, "register"),
    "judge": (gate, "judge_challenger"),
    "open": (release, "open_version"),
    "champion": (release, "_make_champion"),
    "absorb": (retrain, "_record_outcome"),
}


def retrain_once(root: Path, journal: Path, key: str) -> None:
    """Retrain the project under `root`, and promote the result whatever the gate decides.

    Args:
        root: Folder of the project.
        journal: File of the journal, which receives a line at the start and end of each part.
        key: Key of the retrain. A retrain with the key of a killed one resumes it.
    """
    log = Journal(journal)
    for name, (module, function_name) in MARKED_FUNCTIONS.items():
        function = getattr(module, function_name)
        setattr(module, function_name, _mark_in_journal(log, name, function))
    # The gate must pass, because the tiny model gains nothing.
    gate.judge_retrain = _always_pass(judge_retrain)
    try:
        result = retrain.retrain(Project(root), key)
        log.write(
            part="end",
            at=time.time(),
            version=result.version.version,
            generation=result.generation,
        )
    except BaseException:
        log.write(error=traceback.format_exc())
        raise


def _mark_in_journal(
    journal: Journal, name: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return `function` with a line in the journal before and after it, which locate a kill."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        journal.write(part=name, at=time.time())
        result = function(*arguments, **keywords)
        journal.write(ended=name, at=time.time())
        return result

    return call


def _always_pass(judge: Callable[..., Verdict]) -> Callable[..., Verdict]:
    """Return the gate's test with a verdict that always passes and keeps its numbers."""

    def judge_and_pass(*arguments: Any) -> Verdict:
        return replace(judge(*arguments), passed=True)

    return judge_and_pass


if __name__ == "__main__":
    retrain_once(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
