"""What the routes share, started and stopped together: searchers, writer, bounds, metrics."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.maintenance import BackgroundMaintenance
from model_code.collection.index.project_ledger import open_ledger_if_exists
from model_code.collection.index.status import live_status, probe_newest_document, read_canary
from model_code.errors import FreshetError
from model_code.project import Project
from orchestration.service import searchers
from orchestration.service.errors import NotReady
from orchestration.service.searchers import Searchers, SearchPool
from orchestration.service.writer import Writer

log = logging.getLogger(__name__)
T = TypeVar("T")
# at least between two searches for a new document, which cost as much as a user's
CANARY_SECONDS = 30.0
SEARCH = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CHANGE = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0)


class Metrics:
    """One registry per service, so that several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = {"registry": self.registry}
        self.requests = Counter(
            "freshet_requests", "Requests by route and HTTP status.", ["route", "status"], **of
        )
        self.search = Histogram(
            "freshet_search_seconds", "Searching, without waiting.", buckets=SEARCH, **of
        )
        self.apply = Histogram(
            "freshet_apply_seconds", "From ledger to switch, per batch.", buckets=CHANGE, **of
        )
        self.fresh = Histogram(
            "freshet_freshness_seconds",
            "From a request's arrival to searchable.",
            buckets=CHANGE,
            **of,
        )

    def changed(self, apply_seconds: float, fresh_seconds: Sequence[float]) -> None:
        """Record a batch: its own seconds, and those of each of its requests since they arrived."""
        self.apply.observe(apply_seconds)
        for seconds in fresh_seconds:
            self.fresh.observe(seconds)


class Service:
    """One project's service; `start` and `stop` may be called again without effect."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.searchers = Searchers(project.live)
        self.pool = SearchPool()
        self.metrics = Metrics()
        self._stopping = threading.Event()
        self.upkeep = BackgroundMaintenance(
            project, lambda name: self.collection() if name == self.searchers.default() else None
        )
        self.writer = Writer(
            self.collection, self.searchers.newest, self.metrics.changed, self._spare
        )
        self._collection: LiveIndex | None = None
        # why nobody could tell, when last asked, how fresh all is
        self.freshness_failure: str | None = None
        # the generation whose documents were searched for, and when
        self._looked = (-1, -CANARY_SECONDS)
        self._making = threading.Lock()
        self._running = False
        self.metrics.registry.register(self)

    def start(self) -> None:
        """Load what is live, then begin to watch and to write; raises what is wrong with the
        collection.
        """
        if self._running:
            return
        with suppress(NotReady):
            # the first search of a process is the slow one
            self.searchers.current().search("warm", 1)
            self.collection().warm()
        self.writer.start(resume=open_ledger_if_exists(self.project) is not None)
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
        """Why no search can be answered, such as damage; None if one can."""
        try:
            self.searchers.current()
        except FreshetError as error:
            return str(error)
        return None

    def freshness(self) -> dict[str, Any] | None:
        """The ledger's account of the retriever that documents are added to; None if nothing is
        live, or the ledger does not answer: `failure` says why.
        """
        return self._answer(lambda: live_status(self.project, self.collection().retriever), None)

    def collection(self) -> LiveIndex:
        """The collection of the default retriever, which a promotion may have changed."""
        name = self.searchers.default()
        with self._making:
            if self._collection is None or self._collection.retriever != name:
                self._collection = LiveIndex(
                    self.project, name, lambda: self.searchers.newest_of(name).parts
                )
            return self._collection

    def _watch(self) -> None:
        """Look for generations that other processes make, so that no request pays for opening them."""
        while not self._stopping.wait(searchers.POLL_SECONDS):
            self.searchers.refresh()

    def _spare(self) -> bool:
        """Keep up the other live retrievers, and delete old generations, a piece at a time; whether
        there is more.

        Behind the last piece search for a document of the newest batch, at most once in
        `CANARY_SECONDS`.
        """
        more = self.upkeep.run_once()
        self.searchers.refresh()
        if more:
            return True
        searcher, now = self.searchers.current(), time.monotonic()
        if (
            searcher.generation.number != self._looked[0]
            and now - self._looked[1] >= CANARY_SECONDS
        ):
            self._looked = searcher.generation.number, now
            probe_newest_document(self.project, searcher, self.collection().ledger_view)
        return False

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What has its value whenever the page of metrics is read."""
        # before the first document
        newest = read_canary(self.project) or {"rank": math.nan, "lag": math.nan}
        place = "where a search for its own title finds it, 0 if not among the first ten"
        lag = self._answer(self._waiting_seconds, math.nan)  # before `failure` is asked for
        for name, text, value in (
            ("queue_documents", "Documents that wait for the writer.", self.writer.documents),
            ("queue_seconds", "How long the first of them has waited.", self.writer.oldest_seconds),
            ("lag_seconds", "Age of the oldest change in the ledger that no search finds.", lag),
            ("newest_rank", f"Of a document of the newest batch: {place}.", newest["rank"] or 0),
            ("newest_lag_seconds", "How long it waited to be searchable.", newest["lag"]),
            ("searches_running", "Searches that run or wait.", self.pool.inside),
            ("generation_swaps", "Generations exchanged since the start.", self.searchers.swaps),
            (
                "failing",
                "1 if a generation cannot be opened, documents not added, or the ledger not asked.",
                self.failure is not None,
            ),
        ):
            yield GaugeMetricFamily(f"freshet_{name}", text, float(value))
        opened, behind = self.searchers.opened(), dict(self.upkeep.failures)
        for name, text, values in (
            (
                "behind",
                "1 if it could not take in what arrived.",
                {each: each in behind for each in opened | behind},
            ),
            (
                "generation",
                "The generation that is searched.",
                {name: each.generation.number for name, each in opened.items()},
            ),
            (
                "documents",
                "Documents that a search can find.",
                {name: each.generation.manifest["documents"] for name, each in opened.items()},
            ),
        ):
            gauge = GaugeMetricFamily(f"freshet_{name}", text, labels=["retriever"])
            for retriever, value in values.items():
                gauge.add_metric([retriever], value)
            yield gauge

    def _waiting_seconds(self) -> float:
        """0 if nothing waits, or no document ever arrived: to look makes no ledger."""
        if self._collection is None or open_ledger_if_exists(self.project) is None:
            return 0.0
        return self._collection.ledger_view.backlog().seconds or 0.0

    def _answer(self, question: Callable[[], T], unknown: T) -> T:
        """The answer; `unknown` if the ledger gives none, which the pages that tell of failures
        must survive.
        """
        try:
            answer = question()
        except NotReady:
            return unknown
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
        """Why the newest documents are not found, or cannot come; None if nothing is known to be
        wrong.
        """
        return self.writer.failure or self.searchers.failure or self.freshness_failure
