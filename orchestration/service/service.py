"""What the routes share, started and stopped together: searchers, writer, bounds, metrics."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from model_code.ledger.events import Feedback
from model_code.live.searcher import Searcher
from orchestration.live.collection import LiveCollection
from orchestration.live.ledger import existing_ledger
from orchestration.live.status import canary, look_for_newest
from orchestration.live.upkeep import Upkeep
from orchestration.project import Project
from orchestration.service import searchers
from orchestration.service.errors import NotReady
from orchestration.service.searchers import Searchers, SearchPool
from orchestration.service.writer import Writer

log = logging.getLogger(__name__)
T = TypeVar("T")
CANARY_SECONDS = 30.0  # at least between two searches for a new document, which cost as much as a user's
SEARCH = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CHANGE = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0)


class Metrics:
    """One registry per service, so that several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._asked: list[Callable[[], None]] = []
        self._reading = threading.Lock()
        of = {"registry": self.registry}
        self.requests = Counter("freshet_requests", "Requests by route and HTTP status.", ["route", "status"], **of)
        self.search = Histogram("freshet_search_seconds", "Searching, without waiting.", buckets=SEARCH, **of)
        self.apply = Histogram("freshet_apply_seconds", "From ledger to switch, per batch.", buckets=CHANGE, **of)
        self.fresh = Histogram(
            "freshet_freshness_seconds", "From a request's arrival to searchable.", buckets=CHANGE, **of
        )

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A value that is asked for whenever the page is read."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def per_retriever(self, name: str, text: str, values: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """One value per open retriever, asked for whenever the page is read."""
        gauge = Gauge(name, text, ["retriever"], registry=self.registry)
        self._asked.append(lambda: _replace(gauge, values()))

    def changed(self, apply_seconds: float, fresh_seconds: Sequence[float]) -> None:
        """Record a batch: its own seconds, and those of each of its requests since they arrived."""
        self.apply.observe(apply_seconds)
        for seconds in fresh_seconds:
            self.fresh.observe(seconds)

    def text(self) -> bytes:
        """The page."""
        with self._reading:
            for ask in self._asked:
                ask()
            return generate_latest(self.registry)


def _replace(gauge: Gauge, values: Iterable[tuple[str, float]]) -> None:
    gauge.clear()
    for retriever, value in values:
        gauge.labels(retriever).set(value)


class Service:
    """One project's service; `start` and `stop` may be called again without effect."""

    def __init__(
        self,
        project: Project,
        open_collection: Callable[[str], Any] | None = None,
        opener: Callable[[Path, str], Searcher] | None = None,
    ) -> None:
        """open_collection, opener: stand-ins for `LiveCollection(project, retriever)` and `Searcher.open`."""
        self.project = project
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.searchers = Searchers(project.live, opener)
        self.pool = SearchPool()
        self.metrics = Metrics()
        self._stopping = threading.Event()
        self.upkeep = Upkeep(
            project, lambda name: self._current_collection() if name == self.searchers.default() else None
        )
        self.writer = Writer(self._current_collection, self.searchers.newest, self.metrics.changed, self._spare)
        self._open_collection = open_collection or partial(LiveCollection, project)
        self._collection: tuple[str, Any] | None = None
        self.freshness_failure: str | None = None  # why nobody could tell, when last asked, how fresh all is
        self._looked = (-1, -CANARY_SECONDS)  # the generation whose documents were searched for, and when
        self._making = threading.Lock()
        self._running = False
        self._add_gauges()

    def start(self) -> None:
        """Load what is live, then begin to watch and to write; raises what is wrong with the collection."""
        if self._running:
            return
        if self.not_ready() is None:
            self.searchers.current().search("warm", 1)  # the first search of a process is the slow one
            self._current_collection().warm()
        self.writer.start(resume=existing_ledger(self.project) is not None)
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()
        self._running = True

    def stop(self, seconds: float | None = None) -> bool:
        """Finish what waits, changes first, then searches; whether that was done within `seconds`."""
        if not self._running:
            return True
        self._running = False
        latest = None if seconds is None else time.monotonic() + seconds
        finished = self.writer.stop(seconds)
        self._stopping.set()
        finished &= self.pool.close(None if latest is None else latest - time.monotonic())
        return finished

    def not_ready(self) -> str | None:
        """Why no search can be answered; None if one can."""
        try:
            self.searchers.current()
        except NotReady as error:
            return str(error)
        return None

    def freshness(self) -> dict[str, Any] | None:
        """The ledger's account of the retriever that documents are added to; None if nothing is live, or the ledger
        does not answer: `failure` says why.
        """
        try:
            return self._told(lambda: self._current_collection().status(), None)
        except NotReady:
            return None

    def judge(self, said: Feedback) -> str:
        """Keep a person's verdict on a hit; the one that counts."""
        return self._current_collection().ledger.judge(said)

    def _current_collection(self) -> Any:
        """The collection of the default retriever, which a promotion may have changed."""
        name = self.searchers.default()
        with self._making:
            if self._collection is None or self._collection[0] != name:
                self._collection = (name, self._open_collection(name))
            return self._collection[1]

    def _watch(self) -> None:
        """Look for generations that other processes make, so that no request pays for opening them."""
        while not self._stopping.wait(searchers.POLL_SECONDS):
            self.searchers.refresh()

    def _spare(self) -> bool:
        """Keep up the other live retrievers, and delete old generations, a piece at a time."""
        more = self.upkeep.step()
        self.searchers.refresh()
        if not more:
            self._look_for_newest()
        return more

    def _look_for_newest(self) -> None:
        """Search for a document of the newest batch, at most once in `CANARY_SECONDS`."""
        searcher, now = self.searchers.current(), time.monotonic()
        if searcher.generation.number != self._looked[0] and now - self._looked[1] >= CANARY_SECONDS:
            self._looked = searcher.generation.number, now
            look_for_newest(self.project, searcher, self._current_collection().seen)

    def _add_gauges(self) -> None:
        gauge, opened = self.metrics.gauge, self.searchers.opened
        gauge("freshet_queue_documents", "Documents that wait for the writer.", lambda: self.writer.documents)
        gauge("freshet_queue_seconds", "How long the first of them has waited.", lambda: self.writer.oldest_seconds)
        gauge("freshet_lag_seconds", "Age of the oldest change in the ledger that no search finds.", self._lag)
        newest = "where a search for its own title finds it, 0 if not among the first ten"
        gauge("freshet_newest_rank", f"Of a document of the newest batch: {newest}.", lambda: self._newest("rank"))
        gauge("freshet_newest_lag_seconds", "How long it waited to be searchable.", lambda: self._newest("lag"))
        gauge("freshet_searches_running", "Searches that run or wait.", lambda: self.pool.inside)
        gauge("freshet_generation_swaps", "Generations exchanged since the start.", lambda: self.searchers.swaps)
        failing = "1 if a generation cannot be opened, documents not added, or the ledger not asked."
        gauge("freshet_failing", failing, lambda: self.failure is not None)  # the page asks for the lag before
        behind = lambda: [(name, name in self.upkeep.failures) for name in {*opened(), *self.upkeep.failures}]  # noqa: E731
        generations = lambda: [(name, each.generation.number) for name, each in opened().items()]  # noqa: E731
        documents = lambda: [(name, each.generation.manifest["documents"]) for name, each in opened().items()]  # noqa: E731
        self.metrics.per_retriever("freshet_behind", "1 if it could not take in what arrived.", behind)
        self.metrics.per_retriever("freshet_generation", "The generation that is searched.", generations)
        self.metrics.per_retriever("freshet_documents", "Documents that a search can find.", documents)

    def _lag(self) -> float:
        """Seconds; 0 if nothing waits, or no document ever arrived (to look makes no ledger); NaN if nobody knows."""
        return self._told(self._waiting_seconds, math.nan)

    def _newest(self, name: str) -> float:
        """NaN before the first document."""
        found = canary(self.project)
        return math.nan if found is None else found[name] or 0.0

    def _waiting_seconds(self) -> float:
        if self._collection is None or existing_ledger(self.project) is None:
            return 0.0
        return self._collection[1].seen.backlog().seconds or 0.0

    def _told(self, question: Callable[[], T], unknown: T) -> T:
        """The answer; `unknown` if the ledger gives none, which the pages that tell of failures must survive."""
        try:
            answer = question()
        except NotReady:
            raise
        except Exception as error:  # of whatever kind the database's own are
            reason = (str(error) or type(error).__name__).splitlines()[0]
            if reason != self.freshness_failure:
                log.error("nobody can tell how fresh the collection is: %s", reason)
            self.freshness_failure = reason
            return unknown
        self.freshness_failure = None
        return answer

    @property
    def failure(self) -> str | None:
        """Why the newest documents are not found, or cannot come; None if nothing is known to be wrong."""
        return self.writer.failure or self.searchers.failure or self.freshness_failure
