"""Measure writes and searches of a service that several clients use at once.

Readers search without a pause. First they are alone. Then writers add, change and delete documents
at a fixed rate. The service runs in a process of its own and encodes all documents and queries.

Half of the writes wait until they are recorded in the ledger, which gives the time until a write is
acknowledged. The others wait until they are searchable, and then search for the document, which
gives the time until a write is found.

Three faults are counted. They must not occur:

- lost: a document of which the service finally has another state than that of its last
  acknowledged write
- stale: an answer from an older generation than one that was searchable before the search began,
  or a search that does not show a write which is searchable
- mixed: an answer with documents of one request in states of different generations

The service can be killed by SIGKILL in the middle. It is started again at once. Clients repeat
their requests until it answers. Requests that were due before that have no time.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.freshness import BASE, MARKERS, TEXT, SearchLog, documents, marker_titles
from benchmarks.live_service import ServiceProcess, make_project
from benchmarks.measurement import median_row, row_below, row_stated, skipped
from freshet import Client, SearchResult
from freshet.errors import Unavailable

T = TypeVar("T")
READERS = 4
WRITES_PER_SECOND = 20.0
# Number of writers. Each has documents of its own, and sends one write after the other. So many are
# needed because a write may take seconds until it is found.
WRITERS = 40
# Of each writer's writes, the second one of three changes a document, and the third one deletes it.
ADD, CHANGE, DELETE = range(3)
# One in so many writes gives the marked documents a new title, in one request.
WRITES_PER_EDITION = 20
# One in so many searches asks for the marked documents.
SEARCHES_PER_EDITION = 4
WORDS_PER_QUERY = 6
# Seconds between two attempts of a request while the service is not running, and the longest time
# to try.
RETRY_SECONDS = 0.05
MAX_RETRY_SECONDS = 300.0
# Goals: seconds until a write is found, and search times with writers as a ratio to those without.
MAX_FOUND_SECONDS = 1.0
MAX_SEARCH_RATIO = 2.0
NO_FAULTS = "== 0"


def rows(
    passages: int = 10_000,
    seconds: float = 60.0,
    kills: int = 0,
    readers: int = READERS,
    base: str | Path = BASE,
    inline: bool = False,
    runs: int = 1,
) -> list[dict[str, Any]]:
    """Search without writers, then with writers, and compare.

    Each run starts a service of its own.

    Args:
        passages: Number of documents before the first write.
        seconds: Duration of each of the two parts.
        kills: How often the service is killed, at equal distances, while writers write.
        readers: Number of threads that search.
        base: Encoder of the queries and documents.
        inline: Whether the service applies changes itself, instead of in the apply process.
        runs: Number of runs.

    Returns:
        The median row of all runs for each measurement. For faults, the row of the worst run.
    """
    label = f"{READERS} readers, {WRITES_PER_SECOND:g} writes/s"
    if inline:
        label += " applied in the service"
    if kills:
        label += f", {kills} kills"
    if runs > 1:
        label += f", median of {runs} runs"

    rows_of_runs: list[list[dict[str, Any]]] = []
    for _ in range(runs):
        alone, together, lost = _run_once(passages, seconds, kills, readers, base, inline)
        rows_of_runs.append(_result_rows(label, alone, together, lost))
    return [_combine_runs(rows) for rows in zip(*rows_of_runs, strict=True)]


def _run_once(
    passages: int,
    seconds: float,
    kills: int,
    readers: int,
    base: str | Path,
    inline: bool,
) -> tuple[Log, Log, list[str]]:
    """Measure one service; see `rows`.

    Returns:
        The part without writers, the part with writers, and the ids of lost documents.
    """
    texts = [row["text"] for row in documents("base", passages)]
    with tempfile.TemporaryDirectory(prefix="freshet-writers-") as folder:
        project = make_project(
            Path(folder), base, passages, texts, feedback=0.3, apply_process=not inline
        )
        with ServiceProcess(project) as service:
            trial = Trial(service, texts, readers)
            alone = trial.run(seconds, writes_per_second=0, kills=0)
            together = trial.run(seconds, WRITES_PER_SECOND, kills)
            return alone, together, trial.lost_documents()


def _combine_runs(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row that stands for the rows of all runs. A fault in any run must be shown."""
    if rows[0]["goal"] == NO_FAULTS:
        return max(rows, key=lambda row: row["ours"])
    return median_row(rows)


@dataclass
class Log:
    """The requests of one part of the benchmark. Threads append to it.

    Attributes:
        acknowledged: Seconds until each write was recorded.
        found: Seconds until each write was searchable and a search showed it.
        searches: Seconds, generation and marked titles of the readers' searches.
        stale: Descriptions of stale answers.
        downtimes: Seconds from each kill until a search was answered again.
        written: Id of the document of each write.
        seconds: Duration of this part.
    """

    acknowledged: list[float] = field(default_factory=list)
    found: list[float] = field(default_factory=list)
    searches: SearchLog = field(default_factory=SearchLog)
    stale: list[str] = field(default_factory=list)
    downtimes: list[float] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Trial:
    """The clients of one service, and the documents that it must have.

    Attributes:
        expected: Title of each document that was written, by id. None: it was deleted.
    """

    def __init__(self, service: ServiceProcess, texts: Sequence[str], readers: int) -> None:
        """Connect clients to a service.

        Args:
            service: The service.
            texts: Texts of its documents, from which queries are made.
            readers: Number of threads that search.
        """
        self.service = service
        self.readers = readers
        self.expected: dict[str, str | None] = {}
        self.queries = [" ".join(text.split()[:WORDS_PER_QUERY]) for text in texts]
        # The newest generation that an answer to a write has named.
        self._searchable = 0
        self._searchable_lock = threading.Lock()
        self._editions = 0
        self._edition_lock = threading.Lock()
        self._lanes = [Lane(number) for number in range(WRITERS)]

    def run(self, seconds: float, writes_per_second: float, kills: int) -> Log:
        """Search, and write at a fixed rate.

        Args:
            seconds: How long to send requests.
            writes_per_second: Rate of the writes; 0 for none.
            kills: How often to kill the service.
        """
        log = Log()
        self.write_edition(log)
        stop = threading.Event()
        started = time.monotonic()
        with ThreadPoolExecutor(self.readers + WRITERS + 1) as pool:
            tasks: list[Future[None]] = []
            for number in range(self.readers):
                tasks.append(pool.submit(self._search_until, stop, log, number))
            tasks.append(pool.submit(self._kill_at, started, seconds, kills, log))
            self._send_writes(pool, tasks, started + seconds, writes_per_second, log)
            time.sleep(max(0.0, started + seconds - time.monotonic()))
            stop.set()
            wait(tasks)
        for task in tasks:
            task.result()
        log.seconds = time.monotonic() - started
        return log

    def lost_documents(self) -> list[str]:
        """Return the ids of written documents that the service has not as it should."""
        self.service.client.apply()
        titles: dict[str, str] = {}
        for document in self.service.client.documents():
            titles[document.document_id] = document.title
        return [name for name, title in self.expected.items() if titles.get(name) != title]

    def _send_writes(
        self,
        pool: ThreadPoolExecutor,
        tasks: list[Future[None]],
        deadline: float,
        writes_per_second: float,
        log: Log,
    ) -> None:
        """Give each writer its writes when they are due, until `deadline`."""
        if not writes_per_second:
            return
        started = time.monotonic()
        number = 0
        while time.monotonic() < deadline:
            lane = self._lanes[number % WRITERS]
            due = started + number / writes_per_second
            time.sleep(max(0.0, due - time.monotonic()))
            tasks.append(pool.submit(self.write, lane, number, due, log))
            number += 1

    def write(self, lane: Lane, number: int, due: float, log: Log) -> None:
        """Send one write of a lane, and check that it is found if it waits for that.

        Args:
            lane: The writer.
            number: Number of the write among those of all writers.
            due: Time at which the write was due, from which its seconds are counted.
            log: Receives the seconds.
        """
        if number % WRITES_PER_EDITION == 0:
            self.write_edition(log)
            return
        with lane.lock:
            document_id, title = lane.next_write()
            # Each writer waits at every second write.
            waits = (number // WRITERS + number) % 2 == 0
            result = self._repeat(_sender(document_id, title, waits))
            log.written.append(document_id)
            self.expected[document_id] = title
            if not waits:
                if self._was_running_since(due):
                    log.acknowledged.append(time.monotonic() - due)
                return

            self._note_searchable(result.generation)
            answer = self._repeat(_searcher(lane.words))
            titles = {hit.document_id: hit.title for hit in answer.hits}
            if titles.get(document_id) != title:
                log.stale.append(f"{document_id}: {titles.get(document_id)} in place of {title}")
            if self._was_running_since(due):
                log.found.append(time.monotonic() - due)

    def write_edition(self, log: Log) -> None:
        """Give the marked documents a new title in one request, and log its generation."""
        with self._edition_lock:
            self._editions += 1
            title = f"edition {self._editions}"
            marked = [{"_id": f"marker.{i}", "title": title, "text": TEXT} for i in range(MARKERS)]
            result = self._repeat(lambda client: client.add(marked))
            for row in marked:
                log.written.append(row["_id"])
                self.expected[row["_id"]] = title
            if result.generation is not None:
                log.searches.editions[result.generation] = title
            self._note_searchable(result.generation)

    def _note_searchable(self, generation: int | None) -> None:
        """Note a generation that is searchable; later answers must not be older."""
        with self._searchable_lock:
            self._searchable = max(self._searchable, generation or 0)

    def _search_until(self, stop: threading.Event, log: Log, number: int) -> None:
        """Search and log the answers until `stop` is set."""
        generator = random.Random(number)
        count = 0
        while not stop.is_set():
            count += 1
            is_edition = count % SEARCHES_PER_EDITION == 0
            text = f"edition {TEXT}" if is_edition else generator.choice(self.queries)
            oldest_allowed = self._searchable
            started = time.monotonic()
            answer = self._repeat(_searcher(text))
            if self._was_running_since(started):
                log.searches.seconds.append(time.monotonic() - started)
            if answer.generation < oldest_allowed:
                log.stale.append(f"generation {answer.generation} after {oldest_allowed}")
            if is_edition:
                titles = marker_titles(answer.hits)
                log.searches.answers.append((answer.generation, titles))

    def _was_running_since(self, started: float) -> bool:
        """Return whether the service has not been down since a time of the monotonic clock."""
        return started > self.service.ready_since

    def _repeat(self, request: Callable[[Client], T]) -> T:
        """Send a request until the service answers it, and return the answer.

        Raises:
            Unavailable: If the service does not answer although it was not killed, or does not
                answer for long.
        """
        deadline = time.monotonic() + MAX_RETRY_SECONDS
        while True:
            try:
                return request(self.service.client)
            except Unavailable:
                if self.service.kills == 0 or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)

    def _kill_at(self, started: float, seconds: float, kills: int, log: Log) -> None:
        """Kill the service several times at equal distances, and start it again each time."""
        for number in range(kills):
            due = started + seconds * (number + 1) / (kills + 1)
            time.sleep(max(0.0, due - time.monotonic()))
            killed = time.monotonic()
            self.service.kill_and_restart()
            self._repeat(_searcher(TEXT))
            log.downtimes.append(time.monotonic() - killed)


class Lane:
    """The documents of one writer, and the order of its writes.

    Attributes:
        number: Number of the writer.
        lock: Is held while a write is sent, so that writes do not overtake each other.
        words: Query that finds the documents of this writer first.
        writes: Number of writes so far.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()
        self.words = f"writer{number}"
        self.writes = 0

    def next_write(self) -> tuple[str, str | None]:
        """Return the document and the title of the next write. None: it is deleted."""
        document_number, kind = divmod(self.writes, 3)
        self.writes += 1
        document_id = f"{self.words}.{document_number}"
        if kind == DELETE:
            return document_id, None
        return document_id, f"{self.words} page {document_number} version {kind}"


def _sender(document_id: str, title: str | None, waits: bool) -> Callable[[Client], Any]:
    """Return a function that sends one write."""
    if title is None:
        return lambda client: client.delete([document_id], wait=waits)
    (row,) = documents(title, 1)
    row.update({"_id": document_id, "title": title})
    return lambda client: client.add([row], wait=waits)


def _searcher(text: str) -> Callable[[Client], SearchResult]:
    return lambda client: client.search(text, 10)


def _result_rows(
    label: str, alone: Log, together: Log, lost: Sequence[str]
) -> list[dict[str, Any]]:
    """Compare the two parts of a run.

    Args:
        label: First words of each row.
        alone: The part without writers.
        together: The part with writers.
        lost: Ids of lost documents.
    """
    rate = len(together.written) / together.seconds
    results = [row_stated(f"{label}: writes/s", rate, WRITES_PER_SECOND, "-")]
    for name, samples in (("acknowledged", together.acknowledged), ("found", together.found)):
        for quantile in (0.5, 0.99):
            goal = "-"
            if name == "found" and quantile == 0.99:
                goal = f"<= {MAX_FOUND_SECONDS:g}"
            what = f"{label}: {name} p{100 * quantile:g} (s)"
            if not samples:
                results.append(skipped(what, "no write was due after the service ran again"))
                continue
            results.append(row_stated(what, float(np.quantile(samples, quantile)), 0, goal))

    for quantile in (0.5, 0.95):
        ours = float(np.quantile(together.searches.seconds, quantile))
        peer = float(np.quantile(alone.searches.seconds, quantile))
        what = f"{label}: search p{100 * quantile:g}, against readers alone (s)"
        results.append(row_below(what, ours, peer, MAX_SEARCH_RATIO))

    answers = float(len(together.searches.seconds))
    counts = {
        "lost documents, of all writes": (len(lost), len(together.written)),
        "stale answers, of all": (len(together.stale), answers),
        "mixed answers, of all": (together.searches.mixed, answers),
    }
    for name, (count, total) in counts.items():
        results.append(row_stated(f"{label}: {name}", float(count), float(total), NO_FAULTS))
    if together.downtimes:
        longest = max(together.downtimes)
        results.append(row_stated(f"{label}: longest time until a search (s)", longest, 0, "-"))
    return results
