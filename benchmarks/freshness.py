"""Measure the time until a document is searchable through the service, and reads during writes.

The time includes ledger and switch. Readers search while a writer changes a few documents in one
request. The writer gives all of them the same new edition as their title. Every answer that finds
them must therefore show one edition, the one that the writer recorded for that generation.
"""

from __future__ import annotations

import cProfile
import inspect
import os
import pstats
import random
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import freshet
from benchmarks.live_service import make_project, served
from benchmarks.measurement import row_stated
from freshet import ChangeResult, Client, Hit, SearchResult
from model_code.collection.generations.query_options import QueryOptions
from model_code.errors import FreshetError
from model_code.project import Project

Row = dict[str, Any]
BASE = "sentence-transformers/all-MiniLM-L6-v2"
SINGLE_SECONDS, BATCH_RATIO, HTTP_SECONDS = 0.100, 1.5, 0.001
MARKERS = 5
TEXT = "the marked page of this edition of the almanac"
# Pause between editions. It is the same with and without HTTP, so both wait for as many writes.
WRITE_SECONDS = 0.5
# File and function of each step of adding one document.
STEPS = {
    "receive": ("live_index.py", "receive"),
    "encode": ("encoder.py", "encode_passages_with_tokens"),
    # Includes the encoding, which `_means` subtracts.
    "write": ("generation_builder.py", "add"),
    "force to disk": ("generation_store.py", "commit"),
    "guard": ("verification.py", "verify_searchable"),
    "switch": ("generation_store.py", "set_current"),
    "open": ("searcher.py", "renewed"),
}


def rows(
    passages: int = 100_000,
    singles: int = 100,
    batch: int = 1000,
    seconds: float = 30.0,
    readers: int = 8,
    base: str | Path = BASE,
) -> list[dict[str, Any]]:
    """Start a service over random vectors, add documents to it, and search it meanwhile.

    Args:
        passages: Number of random vectors.
        singles: Documents sent one at a time.
        batch: Documents sent at once. The peer is their encoding alone, in this process with as
            many threads as the service has.
        seconds: Duration of the reads during writes.
        readers: Number of reader threads.
        base: Encoder of the queries and documents.
    """
    with tempfile.TemporaryDirectory(prefix="freshet-freshness-") as folder:
        # The service sets this as well. It must be set before torch is imported.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        project = make_project(Path(folder), base, passages)
        with served(project) as client:
            arrived = _arrival(client, project.live, singles, batch)
            steps = _steps(project, singles)
            served_reading = read_while_writing(client, seconds, readers, 1)
        with freshet.Project.open(project.root) as same:
            own = read_while_writing(
                Unserved(same), seconds, readers, len(served_reading.editions) + 1
            )
        return [
            *arrived,
            *steps,
            *_reading(served_reading, own, f"{readers} readers, 1 writer, {seconds:g} s"),
        ]


def _arrival(client: Client, live: Path, singles: int, batch: int) -> list[dict[str, Any]]:
    arrival_seconds(client, documents("warm", 3))
    alone = arrival_seconds(client, documents("single", singles))
    sent, encoded = batch_seconds(client, live, documents("batch", batch))
    found = []
    for name, quantile in (("p50", 0.5), ("p95", 0.95)):
        seconds = float(np.quantile(alone, quantile))
        goal = f"<= {SINGLE_SECONDS}" if name == "p50" else "-"
        found.append(
            row_stated(f"one document until searchable, {name} (s)", seconds, SINGLE_SECONDS, goal)
        )
    what = f"{batch:,} documents until searchable, against encoding them (s)"
    return [
        *found,
        row_stated(what, sent, encoded, f"<= {BATCH_RATIO}", sent <= BATCH_RATIO * encoded),
    ]


def _steps(project: Project, singles: int) -> list[dict[str, Any]]:
    """Measure each step of one added document, beside the total.

    Another process than the service runs them, while the service's writer is idle.
    """
    found = step_seconds(project, documents("step", singles + 1))
    whole = found.pop("all")
    return [
        row_stated(f"of one document, without HTTP: {step} (s)", own, whole, "-")
        for step, own in found.items()
    ]


def _reading(found: Reading, own: Reading, load: str) -> list[dict[str, Any]]:
    """Return the rows on reads during writes.

    own: The same without HTTP, from threads of one process that call the searcher directly.
    """
    under = f"{load}, {found.generations} generations"
    searches = float(len(found.seconds))
    table = [
        row_stated(
            f"{under}: failed searches or writes, of all",
            float(len(found.errors)),
            searches,
            "== 0",
        ),
        row_stated(
            f"{under}: answers that mix generations, of all", float(found.mixed), searches, "== 0"
        ),
    ]
    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        ours, peer = (float(np.quantile(each.seconds, quantile)) for each in (found, own))
        goal, met = (
            (f"<= peer + {HTTP_SECONDS}", ours <= peer + HTTP_SECONDS)
            if name == "p50"
            else ("-", None)
        )
        table.append(
            row_stated(f"{under}: search {name}, against no HTTP (s)", ours, peer, goal, met)
        )
    return table


def documents(name: str, count: int) -> list[Row]:
    """Return documents of about 40 words with unique titles.

    The words come from the standard library's documentation.
    """
    words = " ".join(filter(None, map(inspect.getdoc, (inspect, random, Path, dict, str)))).split()
    chance = random.Random(name)
    return [
        {
            "_id": f"{name}.{i}",
            "title": f"{name} {i}",
            "text": " ".join(chance.choices(words, k=chance.randint(20, 60))),
        }
        for i in range(count)
    ]


def arrival_seconds(client: Client, rows: Sequence[Row]) -> list[float]:
    """Measure the seconds until each document is searchable when it is sent alone.

    Each document is then searched.
    """
    seconds = []
    for row in rows:
        started = time.perf_counter()
        answer = client.add([row])
        seconds.append(time.perf_counter() - started)
        require_found(client, row, answer)
    return seconds


def batch_seconds(client: Client, live: Path, rows: Sequence[Row]) -> tuple[float, float]:
    """Return the seconds of all documents sent at once, and of encoding them alone.

    Encoding is the mean of a run before and a run after.
    """
    from model_code.collection.generations.searcher import Searcher

    searcher = Searcher.open(live)
    encoder = searcher.base.retriever.encoder
    texts = [f"{row['title']} {row['text']}" for row in rows]
    encoder.encode(texts[:32])
    encoding = []
    for _ in range(2):
        started = time.perf_counter()
        encoder.encode_passages_with_tokens(texts)
        encoding.append(time.perf_counter() - started)
        if len(encoding) == 1:
            started = time.perf_counter()
            answer = client.add(rows)
            sent = time.perf_counter() - started
    require_found(client, rows[-1], answer)
    return sent, sum(encoding) / 2


def require_found(client: Client, row: Row, answer: ChangeResult) -> None:
    """Raise FreshetError unless the document is searchable and found first."""
    hits = client.search(f"{row['title']} {row['text']}", 1).hits
    if not answer.searchable or hits[0].document_id != row["_id"]:
        raise FreshetError(
            f"document {row['_id']} was sent, but {hits[0].document_id} is found in its place"
        )


def step_seconds(project: Project, rows: Iterable[Row]) -> dict[str, float]:
    """Return mean seconds of each step, and of "all", over documents that are added one by one.

    The first document is a warm-up and does not count. Profiling adds a little time.
    """
    from model_code.collection.generations.searcher import Searcher
    from model_code.collection.index.live_index import LiveIndex

    collection, searcher = LiveIndex(project), Searcher.open(project.live)

    def add(row: Row) -> None:
        """Record one row, apply it, and open the new generation, as a service does."""
        nonlocal searcher
        collection.receive([row], "bench")
        collection.apply()
        searcher = searcher.renewed()

    first, *others = rows
    add(first)
    profile = cProfile.Profile()
    for row in others:
        profile.runcall(add, row)
    return _means(pstats.Stats(profile), len(others))


def _means(stats: pstats.Stats, documents: int) -> dict[str, float]:
    """Return cumulative seconds of the steps' functions per document."""
    spent = {
        (Path(file).name, name): entry[3]
        for (file, _, name), entry in stats.stats.items()  # type: ignore[attr-defined]
        if (Path(file).name, name) in (*STEPS.values(), ("freshness.py", "add"))
    }
    found = {step: spent[function] / documents for step, function in STEPS.items()}
    found["write"] -= found["encode"]
    return found | {"all": spent["freshness.py", "add"] / documents}


@dataclass
class Reading:
    """Seconds of each search, errors, answers and editions of readers and writer."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    answers: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    # Edition of each generation.
    editions: dict[int, str] = field(default_factory=dict)

    @property
    def generations(self) -> int:
        """Number of generations that the writer made."""
        return len(self.editions)

    @property
    def mixed(self) -> int:
        """Number of answers that do not show exactly the edition of their generation."""
        return sum(not self._whole(generation, titles) for generation, titles in self.answers)

    def _whole(self, generation: int, titles: tuple[str, ...]) -> bool:
        expected = self.editions.get(generation)
        same = len(titles) == MARKERS and len(set(titles)) == 1
        return same and (expected is None or titles[0] == expected)


class Unserved:
    """Open project that is searched without HTTP.

    Additions take the same way as in the service's writer.
    """

    def __init__(self, project: freshet.Project) -> None:
        self.add, self._searchers = project.add, project.service.searchers

    def search(self, text: str, k: int) -> SearchResult:
        """Search like `Client.search`, without request and response."""
        (page,) = self._searchers.current().search_pages([text], QueryOptions(k=k))
        return page


def read_while_writing(
    client: Client | Unserved, seconds: float, readers: int, first: int
) -> Reading:
    """Search with `readers` threads for `seconds`, and write every `WRITE_SECONDS`.

    first: Number of the first edition, which must be new.
    """
    found, stop, edition = Reading(), threading.Event(), first
    _write(client, found, edition)
    with ThreadPoolExecutor(readers) as pool:
        reading = [pool.submit(_read, client, found, stop) for _ in range(readers)]
        latest = time.monotonic() + seconds
        while time.monotonic() < latest:
            edition += 1
            _write(client, found, edition)
            time.sleep(WRITE_SECONDS)
        stop.set()
        for each in reading:
            each.result()
    return found


def _write(client: Client | Unserved, found: Reading, edition: int) -> None:
    title = f"edition {edition}"
    try:
        answer = client.add(
            [{"_id": f"marker.{i}", "title": title, "text": TEXT} for i in range(MARKERS)]
        )
    except FreshetError as error:
        found.errors.append(str(error))
        return
    found.editions[answer.generation] = title


def _read(client: Client | Unserved, found: Reading, stop: threading.Event) -> None:
    words, chance = TEXT.split(), random.Random()
    while not stop.is_set():
        # Lengths vary, as in people's queries.
        text = " ".join(words[: chance.randint(3, len(words))])
        started = time.perf_counter()
        try:
            answer = client.search(f"edition {text}", MARKERS)
        except FreshetError as error:
            found.errors.append(str(error))
            continue
        found.seconds.append(time.perf_counter() - started)
        found.answers.append((answer.generation, _titles(answer.hits)))


def _titles(hits: Sequence[Hit]) -> tuple[str, ...]:
    return tuple(hit.title for hit in hits if hit.document_id.startswith("marker."))
