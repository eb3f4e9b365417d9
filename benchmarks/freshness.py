"""Measure the time until a document is searchable through the service, and searches during writes.

The time includes recording the document in the ledger and switching to the new generation.

For the second part, readers search while a writer changes a few documents in one request. Each
request gives all of them the same new title, "edition N". An answer that finds these documents must
therefore show the same title for all of them, and the title that belongs to its generation.
Otherwise it mixes generations.
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
from collections.abc import Callable, Iterable, Sequence
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
# Goals: seconds until one document is searchable, ratio of a batch to its encoding, and seconds
# that HTTP adds to a search.
MAX_SINGLE_SECONDS = 0.100
MAX_BATCH_RATIO = 1.5
MAX_HTTP_SECONDS = 0.001
# Number of documents that the writer changes in one request.
MARKERS = 5
TEXT = "the marked page of this edition of the almanac"
# Seconds between two requests of the writer. Searches with and without HTTP are compared, so that
# both must be disturbed by the same number of writes.
WRITE_PAUSE_SECONDS = 0.5
# File and function of each step of adding one document, as they appear in a profile.
STEPS = {
    "receive": ("live_index.py", "receive"),
    "encode": ("encoder.py", "encode_documents_with_signs"),
    # Includes the encoding, which `_mean_step_seconds` subtracts.
    "write": ("generation_builder.py", "add"),
    "force to disk": ("generation_store.py", "commit"),
    "guard": ("verification.py", "verify_searchable"),
    "switch": ("generation_store.py", "set_current"),
    "open": ("searcher.py", "renewed"),
}
# File and function that call all these steps.
ALL_STEPS = ("freshness.py", "add")


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
            results = _arrival_rows(client, project.live, singles, batch)
            results.extend(_step_rows(project, singles))
            served_log = read_while_writing(client, seconds, readers, first_edition=1)

        first_edition = len(served_log.editions) + 1
        with freshet.Project.open(project.root) as opened:
            unserved = Unserved(opened)
            unserved_log = read_while_writing(unserved, seconds, readers, first_edition)

        load = f"{readers} readers, 1 writer, {seconds:g} s"
        results.extend(_reading_rows(served_log, unserved_log, load))
        return results


def _arrival_rows(client: Client, live: Path, singles: int, batch: int) -> list[dict[str, Any]]:
    """Measure the time until documents are searchable, one at a time and in a batch.

    Args:
        client: Client of the service.
        live: Folder of the live collection.
        singles: Documents sent one at a time.
        batch: Documents sent at once.
    """
    # The first additions load caches and are not counted.
    arrival_seconds(client, documents("warm", 3))
    single_seconds = arrival_seconds(client, documents("single", singles))
    sent_seconds, encoding_seconds = batch_seconds(client, live, documents("batch", batch))

    results = []
    for name, quantile in (("p50", 0.5), ("p95", 0.95)):
        label = f"one document until searchable, {name} (s)"
        goal = f"<= {MAX_SINGLE_SECONDS}" if name == "p50" else "-"
        value = float(np.quantile(single_seconds, quantile))
        results.append(row_stated(label, value, MAX_SINGLE_SECONDS, goal))

    label = f"{batch:,} documents until searchable, against encoding them (s)"
    goal = f"<= {MAX_BATCH_RATIO}"
    met = sent_seconds <= MAX_BATCH_RATIO * encoding_seconds
    results.append(row_stated(label, sent_seconds, encoding_seconds, goal, met))
    return results


def _step_rows(project: Project, singles: int) -> list[dict[str, Any]]:
    """Measure each step of adding one document, and compare it with the total.

    The steps run in this process, while the writer of the service is idle.
    """
    times = step_seconds(project, documents("step", singles + 1))
    total = times.pop("all")
    return [
        row_stated(f"of one document, without HTTP: {step} (s)", step_time, total, "-")
        for step, step_time in times.items()
    ]


def _reading_rows(
    served_log: SearchLog, unserved_log: SearchLog, load: str
) -> list[dict[str, Any]]:
    """Return the rows on reads during writes.

    Args:
        served_log: Searches over HTTP.
        unserved_log: Searches without HTTP, by threads of this process that call the searcher.
        load: Description of the load, for the rows' names.
    """
    label = f"{load}, {served_log.generations} generations"
    searches = float(len(served_log.seconds))
    errors = float(len(served_log.errors))
    mixed_answers = float(served_log.mixed)
    results = [
        row_stated(f"{label}: failed searches or writes, of all", errors, searches, "== 0"),
        row_stated(
            f"{label}: answers that mix generations, of all", mixed_answers, searches, "== 0"
        ),
    ]

    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        ours = float(np.quantile(served_log.seconds, quantile))
        peer = float(np.quantile(unserved_log.seconds, quantile))
        # Only the median has a goal.
        goal = "-"
        met = None
        if name == "p50":
            goal = f"<= peer + {MAX_HTTP_SECONDS}"
            met = ours <= peer + MAX_HTTP_SECONDS
        search_label = f"{label}: search {name}, against no HTTP (s)"
        results.append(row_stated(search_label, ours, peer, goal, met))
    return results


def documents(name: str, count: int) -> list[Row]:
    """Return documents of about 40 words with unique titles.

    The words come from the standard library's documentation.
    """
    docstrings = [
        inspect.getdoc(documented) or "" for documented in (inspect, random, Path, dict, str)
    ]
    words = " ".join(docstrings).split()
    generator = random.Random(name)
    rows = []
    for number in range(count):
        length = generator.randint(20, 60)
        text = " ".join(generator.choices(words, k=length))
        rows.append({"_id": f"{name}.{number}", "title": f"{name} {number}", "text": text})
    return rows


def arrival_seconds(client: Client, rows: Sequence[Row]) -> list[float]:
    """Send documents one at a time, and return the seconds until each one is searchable.

    A search then checks that the document is found.
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

    Encoding is the mean of a run before and a run after, so that other load affects both numbers.

    Args:
        client: Client of the service.
        live: Folder of the live collection, whose encoder is used.
        rows: Documents to send.
    """
    from model_code.collection.generations.searcher import Searcher

    searcher = Searcher.open(live)
    encoder = searcher.base.retriever.encoder
    texts = [f"{row['title']} {row['text']}" for row in rows]
    encoder.encode_queries(texts[:32])

    def encode() -> None:
        encoder.encode_documents_with_signs(texts)

    encoding_before = _wall_seconds(encode)
    started = time.perf_counter()
    answer = client.add(rows)
    sent_seconds = time.perf_counter() - started
    encoding_after = _wall_seconds(encode)

    require_found(client, rows[-1], answer)
    return sent_seconds, (encoding_before + encoding_after) / 2


def _wall_seconds(task: Callable[[], None]) -> float:
    started = time.perf_counter()
    task()
    return time.perf_counter() - started


def require_found(client: Client, row: Row, answer: ChangeResult) -> None:
    """Raise FreshetError unless the document is searchable and found first.

    Args:
        client: Client of the service.
        row: A document that was added.
        answer: The service's answer to the addition.
    """
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

    live_index = LiveIndex(project)
    searcher = Searcher.open(project.live)

    def add(row: Row) -> None:
        """Record one row, apply it, and open the new generation, as a service does."""
        nonlocal searcher
        live_index.receive([row], "bench")
        live_index.apply()
        searcher = searcher.renewed()

    warm_up, *counted = rows
    add(warm_up)
    profile = cProfile.Profile()
    for row in counted:
        profile.runcall(add, row)
    return _mean_step_seconds(pstats.Stats(profile), len(counted))


def _mean_step_seconds(stats: pstats.Stats, documents: int) -> dict[str, float]:
    """Return the mean seconds of each step per document, from a profile of all documents."""
    functions = {*STEPS.values(), ALL_STEPS}
    # Seconds in each function and in those that it calls. They are item 3 of an entry.
    cumulative_seconds: dict[tuple[str, str], float] = {}
    for (path, _, name), entry in stats.stats.items():  # type: ignore[attr-defined]
        function = (Path(path).name, name)
        if function in functions:
            cumulative_seconds[function] = entry[3]

    means = {step: cumulative_seconds[function] / documents for step, function in STEPS.items()}
    means["write"] -= means["encode"]
    means["all"] = cumulative_seconds[ALL_STEPS] / documents
    return means


@dataclass
class SearchLog:
    """Searches of the readers, and changes of the writer.

    Attributes:
        seconds: Duration of each search.
        errors: Messages of failed searches and writes.
        answers: Generation of each answer, and the titles of the writer's documents in it.
        editions: Title that the writer gave its documents, by generation.
    """

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    answers: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    editions: dict[int, str] = field(default_factory=dict)

    @property
    def generations(self) -> int:
        """Number of generations that the writer made."""
        return len(self.editions)

    @property
    def mixed(self) -> int:
        """Number of answers that do not show all documents of the writer as in one generation."""
        return sum(self._is_mixed(generation, titles) for generation, titles in self.answers)

    def _is_mixed(self, generation: int, titles: tuple[str, ...]) -> bool:
        """Return whether an answer shows documents of more than its own generation.

        The writer gives all its documents one title per generation. So all of them must be found,
        with the title of the answer's generation.
        """
        if len(titles) != MARKERS or len(set(titles)) != 1:
            return True
        # The writer may not have received the number of the newest generation yet.
        expected = self.editions.get(generation)
        return expected is not None and titles[0] != expected


class Unserved:
    """An open project that is searched without HTTP, with the two methods that readers need.

    Documents are added through the queue of the service, as over HTTP.
    """

    def __init__(self, project: freshet.Project) -> None:
        self.add = project.add
        self._searchers = project.service.searchers

    def search(self, text: str, k: int) -> SearchResult:
        """Search like `Client.search`, without request and response."""
        (page,) = self._searchers.current().search_pages([text], QueryOptions(k=k))
        return page


def read_while_writing(
    client: Client | Unserved, seconds: float, readers: int, first_edition: int
) -> SearchLog:
    """Search with several threads while this thread writes every `WRITE_PAUSE_SECONDS`.

    Args:
        client: Searches and adds documents.
        seconds: How long to search and write.
        readers: Number of threads that search.
        first_edition: Number of the first edition, which must be new.
    """
    log = SearchLog()
    stop = threading.Event()
    edition = first_edition
    _write_edition(client, log, edition)
    with ThreadPoolExecutor(readers) as pool:
        reader_tasks = [pool.submit(_search_until, client, log, stop) for _ in range(readers)]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            edition += 1
            _write_edition(client, log, edition)
            time.sleep(WRITE_PAUSE_SECONDS)
        stop.set()
        for reader_task in reader_tasks:
            reader_task.result()
    return log


def _write_edition(client: Client | Unserved, log: SearchLog, edition: int) -> None:
    """Give all documents of the writer a new title in one request, and log the generation."""
    title = f"edition {edition}"
    rows = [{"_id": f"marker.{i}", "title": title, "text": TEXT} for i in range(MARKERS)]
    try:
        answer = client.add(rows)
    except FreshetError as error:
        log.errors.append(str(error))
        return
    log.editions[answer.generation] = title


def _search_until(client: Client | Unserved, log: SearchLog, stop: threading.Event) -> None:
    """Search and log the answers until `stop` is set."""
    words = TEXT.split()
    generator = random.Random()
    while not stop.is_set():
        # Lengths vary, as in people's queries.
        text = " ".join(words[: generator.randint(3, len(words))])
        started = time.perf_counter()
        try:
            answer = client.search(f"edition {text}", MARKERS)
        except FreshetError as error:
            log.errors.append(str(error))
            continue
        log.seconds.append(time.perf_counter() - started)
        log.answers.append((answer.generation, marker_titles(answer.hits)))


def marker_titles(hits: Sequence[Hit]) -> tuple[str, ...]:
    """Return the titles of the writer's documents among the hits."""
    return tuple(hit.title for hit in hits if hit.document_id.startswith("marker."))
