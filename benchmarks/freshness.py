"""Arrival to searchable through the service, ledger and switch included, and readers under writes.

Readers search while a writer gives a few documents, all in one request, the same new edition as
their title; so every answer that finds them must show one edition, and the one that the writer
knows its generation by.
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
from model_code.errors import FreshetError
from model_code.project import Project

Row = dict[str, Any]
BASE = "sentence-transformers/all-MiniLM-L6-v2"
SINGLE_SECONDS, BATCH_RATIO, HTTP_SECONDS = 0.100, 1.5, 0.001
MARKERS = 5
TEXT = "the marked page of this edition of the almanac"
# from one edition to the next, with HTTP and without, so that both searches wait for as many
WRITE_SECONDS = 0.5
STEPS = {  # of one document: the file and the function whose time each is
    "receive": ("live_index.py", "receive"),
    "encode": ("encoder.py", "encode_passages_with_tokens"),
    "write": ("generation_builder.py", "add"),  # encoding included, which is taken out
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
    """Start a service over `passages` random vectors of the encoder `base`, send it documents, and
    read meanwhile.

    singles: documents sent one at a time; batch: documents sent at once, whose encoding alone, in
    this process with as many threads as the service has, is the peer; seconds, readers: how long
    and by how many it is read under writes.
    """
    with tempfile.TemporaryDirectory(prefix="freshet-freshness-") as folder:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the service does, before torch comes
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
    """Each step of one document, beside all of them; by another process than the service, whose
    writer waits.
    """
    found = step_seconds(project, documents("step", singles + 1))
    whole = found.pop("all")
    return [
        row_stated(f"of one document, without HTTP: {step} (s)", own, whole, "-")
        for step, own in found.items()
    ]


def _reading(found: Reading, own: Reading, load: str) -> list[dict[str, Any]]:
    """own: the same without HTTP, by threads of one process that ask the searcher itself."""
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
    """Documents of about 40 words of the standard library's documentation, each with a title of its
    own.
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
    """The seconds of each document, sent alone, until the service says that it is searchable; it is
    then searched.
    """
    seconds = []
    for row in rows:
        started = time.perf_counter()
        answer = client.add([row])
        seconds.append(time.perf_counter() - started)
        require_found(client, row, answer)
    return seconds


def batch_seconds(client: Client, live: Path, rows: Sequence[Row]) -> tuple[float, float]:
    """The seconds of all documents sent at once, and those of encoding them alone, before and
    after, on average.
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
    """FreshetError unless the answer says searchable and a search for the document's own words
    finds it first.
    """
    hits = client.search(f"{row['title']} {row['text']}", 1).hits
    if not answer.searchable or hits[0].document_id != row["_id"]:
        raise FreshetError(
            f"document {row['_id']} was sent, but {hits[0].document_id} is found in its place"
        )


def step_seconds(project: Project, rows: Iterable[Row]) -> dict[str, float]:
    """Mean seconds of each step, and of "all", over documents that are added one by one; profiling
    adds a little.

    The first one warms up and does not count.
    """
    from model_code.collection.generations.searcher import Searcher
    from model_code.collection.index.live_index import LiveIndex

    collection, searcher = LiveIndex(project), Searcher.open(project.live)

    def add(row: Row) -> None:
        """Record one row, apply it, and open what came of it, as a service does."""
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
    """Cumulative seconds of the steps' functions, per document."""
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
    """What readers and writer noted: seconds of each search, refusals and failures, answers of two
    generations.
    """

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    answers: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    # generation -> the edition that it holds
    editions: dict[int, str] = field(default_factory=dict)

    @property
    def generations(self) -> int:
        """Generations that the writer made."""
        return len(self.editions)

    @property
    def mixed(self) -> int:
        """Answers that do not show exactly the edition of the generation that they name."""
        return sum(not self._whole(generation, titles) for generation, titles in self.answers)

    def _whole(self, generation: int, titles: tuple[str, ...]) -> bool:
        expected = self.editions.get(generation)
        same = len(titles) == MARKERS and len(set(titles)) == 1
        return same and (expected is None or titles[0] == expected)


class Unserved:
    """An open project whose searches ask the searcher itself; what is added goes the way of the
    service's writer.
    """

    def __init__(self, project: freshet.Project) -> None:
        self.add, self._searchers = project.add, project.service.searchers

    def search(self, text: str, k: int) -> SearchResult:
        """As `Client.search`, without request, line and answer."""
        searcher = self._searchers.current()
        return SearchResult(
            searcher.generation.retriever, searcher.generation.number, searcher.search(text, k)
        )


def read_while_writing(
    client: Client | Unserved, seconds: float, readers: int, first: int
) -> Reading:
    """Search by `readers` threads for so many seconds, and write every `WRITE_SECONDS`.

    first: the number of the first edition, which must be a new one.
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
        # as long as people's, of which few are equally long
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
