"""The state that all routes share: searchers, queue, search threads and metrics."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from model_code.collection.follow.follower import Follower
from model_code.collection.follow.signature import read_key
from model_code.collection.generations.generation_store import retrievers
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.maintenance import BackgroundMaintenance
from model_code.collection.index.project_ledger import has_ledger
from model_code.collection.index.status import live_status, probe_newest_document, read_canary
from model_code.collection.ledger.events import Receipt
from model_code.collection.settings import LiveSettings
from model_code.collection.sync.inbox import receive_inbox, waiting
from model_code.corpus.rows import Rejection
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.retrieval.reranker import Reranker, RerankSettings
from orchestration.service import searchers
from orchestration.service.apply_process import ApplyProcess, uses_pytorch
from orchestration.service.errors import Busy, NotReady
from orchestration.service.following import FollowThread, PublishThread
from orchestration.service.ingest_queue import Applier, IngestJob, IngestQueue, apply_job
from orchestration.service.search_process import SearchProcesses
from orchestration.service.search_tasks import SearchTask
from orchestration.service.searchers import Searchers, SearchPool
from orchestration.service.shadow import ShadowThread
from orchestration.service.telemetry import Telemetry

log = logging.getLogger(__name__)
T = TypeVar("T")
# Smallest number of seconds between two searches that check whether a new document is found. Each
# costs as much as a user's search.
CANARY_SECONDS = 30.0
# Seconds between two checks of the inbox for new files.
INBOX_SECONDS = 10.0
# Seconds between two removals of expired documents from the index. Searches hide an expired
# document at once, so the removal is not urgent.
EXPIRY_SECONDS = 30.0
# Upper bounds of the buckets of two histograms: times of searches and of changes, in seconds.
SEARCH_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CHANGE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0)


class Metrics:
    """Counters and histograms of one service.

    Each service has its own Prometheus registry, so that several services can run in one process.

    Attributes:
        telemetry: Receives the same numbers; None if OpenTelemetry is off.
    """

    def __init__(self, telemetry: Telemetry | None = None) -> None:
        self.telemetry = telemetry
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "freshet_requests",
            "Requests by route and HTTP status.",
            ["route", "status"],
            registry=self.registry,
        )
        self.search = Histogram(
            "freshet_search_seconds",
            "Time of a search, without waiting.",
            buckets=SEARCH_BUCKETS,
            registry=self.registry,
        )
        self.apply = Histogram(
            "freshet_apply_seconds",
            "Time of a batch, from ledger to searchable.",
            buckets=CHANGE_BUCKETS,
            registry=self.registry,
        )
        self.freshness = Histogram(
            "freshet_freshness_seconds",
            "Time from the arrival of a change to searchable.",
            buckets=CHANGE_BUCKETS,
            registry=self.registry,
        )

    def observe_search(self, seconds: float) -> None:
        """Add the seconds that a search took to the histogram of search times."""
        self.search.observe(seconds)
        if self.telemetry is not None:
            self.telemetry.record_duration("search", seconds)

    def observe_batch(self, apply_seconds: float, freshness_seconds: Sequence[float]) -> None:
        """Record the time of a batch, which makes changes searchable, and the lag of its requests.

        Args:
            apply_seconds: Seconds that the batch took.
            freshness_seconds: For each request, the seconds from its arrival until it was
                searchable.
        """
        self.apply.observe(apply_seconds)
        for seconds in freshness_seconds:
            self.freshness.observe(seconds)

        if self.telemetry is not None:
            self.telemetry.record_duration("apply", apply_seconds)
            for seconds in freshness_seconds:
                self.telemetry.record_duration("freshness", seconds)
            attributes = {"requests": len(freshness_seconds)}
            self.telemetry.record_past_span("apply", apply_seconds, attributes)

    def span(self, name: str, **attributes: Any) -> AbstractContextManager[Any]:
        """Return a context manager that is a span of OpenTelemetry, or does nothing."""
        if self.telemetry is None:
            return nullcontext()
        return self.telemetry.span(name, attributes)


class Service:
    """The service of one project.

    A second call of `start` or `stop` has no effect.

    Args:
        project: The project.
        follower: Updates the project from a published collection. None if the project is not a
            copy of one.
        telemetry: Receives spans and metrics; None if OpenTelemetry is off.
        apply_process: Applies changes in a separate process. None: a thread of this process applies
            them.
        search_processes: Number of processes that search. 0: threads of this process search.
    """

    def __init__(
        self,
        project: Project,
        follower: Follower | None = None,
        telemetry: Telemetry | None = None,
        apply_process: ApplyProcess | None = None,
        search_processes: int = 0,
    ) -> None:
        self.project = project
        self.follow_thread = None if follower is None else FollowThread(follower)
        self.publish_thread: PublishThread | None = None
        self.shadow_thread: ShadowThread | None = None
        self.apply_process = apply_process
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.searchers = Searchers(project.live, self._load_reranker)
        self.search_processes: SearchProcesses | None = None
        if search_processes > 0:
            self.search_processes = SearchProcesses(project, search_processes, self.searchers)
        # Each process needs a thread that waits for its answers.
        self.pool = SearchPool(max(searchers.SEARCH_THREADS, search_processes))
        self.metrics = Metrics(telemetry)
        self.maintenance = BackgroundMaintenance(project, self._loaded_index)
        self.ingest_queue = IngestQueue(
            self.index,
            self.searchers.newest,
            self.metrics.observe_batch,
            self._maintain,
            self.applier,
        )
        # The error of the last read of the ledger; None if it succeeded.
        self.freshness_failure: str | None = None

        self._index: LiveIndex | None = None
        self._index_lock = threading.Lock()
        # The generation in which a new document was last searched for, and when. The start values
        # allow the first such search at once.
        self._probed_generation = -1
        self._probe_time = -CANARY_SECONDS
        # The error of the last look for new generations; None if it succeeded.
        self._watch_failure: str | None = None
        self._is_running = False
        self._stopping = threading.Event()
        self.metrics.registry.register(self)

    def start(self) -> None:
        """Load the live index, and start the threads.

        Raises:
            FreshetError: If the live index is damaged.
        """
        if self._is_running:
            return
        if self.search_processes is not None:
            self.search_processes.start()
        # Before the first build nothing is live (`NotReady`), and there is nothing to load.
        with suppress(NotReady):
            # The first search of a process is slow. It is done here, so that no user waits for it.
            self.searchers.current().search("warm", 1)
            if self._may_change and self._applies_first_change():
                self.index().warm()

        self._start_changes()
        if self.metrics.telemetry is not None:
            names = [gauge.name for gauge in self.collect()]
            self.metrics.telemetry.observe_gauges(names, self.collect)
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()
        threading.Thread(target=self._watch_inbox, name="inbox", daemon=True).start()
        self._is_running = True

    def _start_changes(self) -> None:
        """Start the threads that change the index.

        In a writer, these apply the changes of requests and of the inbox. In a follower, a copy of
        a published collection, one thread fetches new generations.
        """
        if self.follow_thread is not None:
            self.ingest_queue.refuse_changes(
                "this service searches a copy of a published collection; send changes to the "
                "service of its writer"
            )
            self.follow_thread.start()
        elif self.project.is_read_only:
            self.ingest_queue.refuse_changes(
                f"{self.project.root} cannot be written by the user of this service; start it as "
                "the owner of the project"
            )
        else:
            self.ingest_queue.start(apply_at_start=has_ledger(self.project))
            self._start_publishing()
            self._start_shadow_mode()

    def _start_publishing(self) -> None:
        """Publish new generations if the setting `live.publish` names a place.

        Copies on other machines fetch these snapshots of the index from there.

        Raises:
            SettingsError: If there is no key to sign with.
        """
        target = self.project.settings("live", LiveSettings).publish
        if target is not None:
            self.publish_thread = PublishThread(self.project, target, read_key())
            self.publish_thread.start()

    def _start_shadow_mode(self) -> None:
        """Compare the challenger with the champion if `live.shadow_share` is not 0.

        In shadow mode, the challenger answers this share of the live queries, and nobody sees its
        answers. It is the registered version that asks to be promoted.
        """
        share = self.project.settings("live", LiveSettings).shadow_share
        if share > 0:
            self.shadow_thread = ShadowThread(
                self.project, share, self.searchers.current, lambda: self.pool.inside > 0
            )
            self.shadow_thread.start()

    def stop(self, seconds: float | None = None) -> bool:
        """Finish the waiting changes, then the running searches, and stop the threads.

        Args:
            seconds: Time limit; None for no limit.

        Returns:
            Whether everything was finished in time.
        """
        if not self._is_running:
            return True
        self._is_running = False
        deadline = None if seconds is None else time.monotonic() + seconds
        changes_finished = self.ingest_queue.stop(seconds)
        if self.apply_process is not None:
            self.apply_process.stop()
        self._stopping.set()
        for thread in (self.follow_thread, self.publish_thread, self.shadow_thread):
            if thread is not None:
                thread.stop()
        remaining = None if deadline is None else deadline - time.monotonic()
        searches_finished = self.pool.close(remaining)
        if self.search_processes is not None:
            self.search_processes.stop()
        if self.metrics.telemetry is not None:
            self.metrics.telemetry.shutdown()
        return changes_finished and searches_finished

    def search(self, task: SearchTask[T], retriever: str | None = None) -> T:
        """Run a search in a search process, or in this thread if there is none.

        Args:
            task: The search.
            retriever: Name of a live retriever. None: the default retriever.

        Raises:
            NotReady: If there is no live retriever.
            NotFound: If `retriever` is not live.
        """
        if self.search_processes is not None:
            return self.search_processes.run(task, retriever)
        return task.run(self.searchers.current(retriever))

    @property
    def ready_search_processes(self) -> int:
        """Number of search processes that are ready. 0 if threads of this process search."""
        return 0 if self.search_processes is None else self.search_processes.ready_count

    def not_ready_reason(self) -> str | None:
        """Return the reason why no search can be answered; None if searches can be answered."""
        try:
            self.searchers.current()
        except FreshetError as error:
            return str(error)
        return None

    def freshness(self) -> dict[str, Any] | None:
        """Return how fresh the default retriever is: its live index and the ledger.

        None if nothing is live, or if the ledger cannot be read. In the second case `failure` has
        the reason.
        """
        return self._ask_ledger(lambda: live_status(self.project, self.index().retriever), None)

    def index(self) -> LiveIndex:
        """Return the live index of the default retriever.

        A promotion can change the default retriever, so the result must not be kept.
        """
        name = self.searchers.default()
        with self._index_lock:
            if self._index is None or self._index.retriever != name:
                self._index = LiveIndex(
                    self.project,
                    name,
                    lambda: self.searchers.newest_of(name).parts,
                    note_recorded=self.ingest_queue.encode_soon,
                )
            return self._index

    def applier(self) -> Applier:
        """Return the object that applies changes to the default retriever.

        It works in a separate process if there is one and it is ready.
        """
        index = self.index()
        if self.apply_process is None:
            return index
        return self.apply_process.applier(index)

    def _load_reranker(self) -> Reranker | None:
        return Reranker.load(self.project.settings("rerank", RerankSettings))

    def _loaded_index(self, retriever: str) -> LiveIndex | None:
        """Return the live index of a retriever if it is in memory, and None otherwise."""
        if retriever == self.searchers.default():
            return self.index()
        return None

    def _watch(self) -> None:
        """Open new generations that other processes have made, and remove expired documents.

        This runs in a thread of its own until the service stops, so that no request has to wait
        until a generation is open.
        """
        checked = time.monotonic()
        while not self._stopping.wait(searchers.POLL_SECONDS):
            self._open_new_generations()
            if self.apply_process is not None:
                self.apply_process.stop_if_idle()
            if self.search_processes is not None:
                # A process that was killed is replaced by another one.
                self.search_processes.start()
            if time.monotonic() - checked < EXPIRY_SECONDS:
                continue
            checked = time.monotonic()
            try:
                self._remove_expired()
            except Exception as error:
                # Every error is caught, so that the thread goes on to open new generations. An
                # example are settings that are half edited.
                log.error("expired documents were not removed: %s", error)

    def _open_new_generations(self) -> None:
        """Open new generations of all retrievers. An error does not end the thread that watches.

        An example is a process that has too many open files for a moment. The same error is logged
        only once.
        """
        failure = None
        try:
            self.searchers.refresh()
        except Exception as error:
            failure = str(error) or type(error).__name__
            if failure != self._watch_failure:
                log.error("new generations cannot be looked for: %s", failure)
        self._watch_failure = failure

    def _applies_first_change(self) -> bool:
        """Return whether this process applies changes until the apply process is ready."""
        return self.apply_process is None or uses_pytorch()

    @property
    def _may_change(self) -> bool:
        """Whether this service changes the index, so it is neither read-only nor a follower."""
        return self.follow_thread is None and not self.project.is_read_only

    def _remove_expired(self) -> None:
        """Remove expired documents from the index.

        Expired documents are removed whenever changes are applied. So a job without changes is
        queued if a document has expired.
        """
        # If this service changes nothing, the process that does removes the documents.
        if not self._may_change:
            return
        # Do nothing if nothing is live yet (`NotReady`) or the service is stopping (`Busy`).
        with suppress(NotReady, Busy):
            if self.searchers.current().expired_documents():
                self.ingest_queue.put(apply_job())

    def _watch_inbox(self) -> None:
        """Receive the files of the inbox until the service stops.

        If `freshet ui` runs, its sensor receives files too. Each file is received only once.
        """
        while not self._stopping.wait(INBOX_SECONDS):
            try:
                self.receive_inbox()
            except Exception as error:
                # Every error is caught, so that the thread goes on and the next check tries again.
                log.error("the inbox was not received: %s", error)

    def receive_inbox(self) -> None:
        """Queue the files that wait in the inbox, and wait until they are recorded.

        Do nothing if no file waits, if nothing is live yet, or if this service changes nothing.
        """
        if not waiting(self.project) or not retrievers(self.project.live):
            return
        if not self._may_change:
            return
        job = self.ingest_queue.put(IngestJob(0, _record_inbox))
        job.received.result()

    def _maintain(self) -> bool:
        """Do one piece of maintenance, and return whether there is more.

        Maintenance updates the other live retrievers and deletes old generations. After the last
        piece, a document of the newest batch is searched for.
        """
        has_more = self.maintenance.run_once()
        self.searchers.refresh()
        if not has_more:
            self._probe_newest_document()
        return has_more

    def _probe_newest_document(self) -> None:
        """Search for a document of the newest batch, and record its rank.

        The rank shows monitoring systems whether new documents are found (a canary).

        This is done once per generation, and at most every `CANARY_SECONDS`.
        """
        searcher = self.searchers.current()
        now = time.monotonic()
        is_new = searcher.generation.number != self._probed_generation
        if is_new and now - self._probe_time >= CANARY_SECONDS:
            self._probed_generation = searcher.generation.number
            self._probe_time = now
            probe_newest_document(self.project, searcher, self.index().ledger_view)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics that are computed when Prometheus reads them."""
        # The ledger is read first, because the metric `failing` also reports a failed read.
        lag = self._ask_ledger(self._oldest_waiting_seconds, math.nan)

        newest_rank = math.nan
        newest_lag = math.nan
        canary = read_canary(self.project)
        if canary is not None:
            # The rank is None if the search did not find the new document.
            newest_rank = canary["rank"] or 0
            newest_lag = canary["lag"]

        yield _gauge("queue_documents", "Documents in the queue.", self.ingest_queue.documents)
        yield _gauge(
            "queue_seconds",
            "Time that the first of them has waited.",
            self.ingest_queue.oldest_seconds,
        )
        yield _gauge(
            "lag_seconds", "Age of the oldest change in the ledger that is not searchable.", lag
        )
        yield _gauge(
            "newest_rank",
            "Rank of a new document in a search for its title; 0 if not among the first ten.",
            newest_rank,
        )
        yield _gauge(
            "newest_lag_seconds", "Time until this document became searchable.", newest_lag
        )
        yield _gauge("searches_running", "Searches that run or wait.", self.pool.inside)
        yield _gauge(
            "search_processes",
            "Search processes that are ready; 0 if threads search.",
            self.ready_search_processes,
        )
        yield _gauge(
            "generation_swaps", "Generations replaced since the start.", self.searchers.swaps
        )
        yield _gauge(
            "failing",
            "1 if a generation cannot be opened, documents cannot be added, or the ledger does "
            "not answer.",
            self.failure is not None,
        )
        for thread in (self.follow_thread, self.publish_thread, self.shadow_thread):
            if thread is not None:
                yield from thread.gauges()
        yield from self._retriever_gauges()

    def _retriever_gauges(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics that have one value per retriever."""
        behind = {}
        generations = {}
        documents = {}
        for name, searcher in self.searchers.opened().items():
            behind[name] = False
            generations[name] = searcher.generation.number
            documents[name] = searcher.generation.manifest["documents"]
        # Maintenance may have failed for another retriever, which is not open for search here.
        for name in list(self.maintenance.failures):
            behind[name] = True

        yield _gauge_by_retriever("behind", "1 if the retriever could not be updated.", behind)
        yield _gauge_by_retriever(
            "generation", "Number of the generation that is searched.", generations
        )
        yield _gauge_by_retriever("documents", "Searchable documents.", documents)

    def _oldest_waiting_seconds(self) -> float:
        """Return the age in seconds of the oldest change that is not searchable.

        It is 0 if every change is searchable, or if there is no ledger. A follower has no ledger,
        and a writer has none before its first document arrives. This method does not create one.
        """
        if self.follow_thread is not None:
            return 0.0
        if self._index is None or not has_ledger(self.project):
            return 0.0
        return self._index.ledger_view.backlog().seconds or 0.0

    def _ask_ledger(self, question: Callable[[], T], default: T) -> T:
        """Return the result of a read of the ledger, or `default` if the read fails.

        Every error is caught, because status and metrics must work even if the database fails.
        """
        try:
            answer = question()
        except NotReady:
            return default
        except Exception as error:
            message = str(error) or type(error).__name__
            reason = message.splitlines()[0]
            # The same failure is logged only once.
            if reason != self.freshness_failure:
                log.error("the freshness of the index is unknown: %s", reason)
            self.freshness_failure = reason
            return default
        self.freshness_failure = None
        return answer

    @property
    def failure(self) -> str | None:
        """The reason why new documents are not searchable or cannot be added; None if all works."""
        return self.ingest_queue.failure or self.searchers.failure or self.freshness_failure


def _record_inbox(index: LiveIndex) -> Receipt:
    """Record the files of the inbox, and return one receipt for all of them.

    A file that could not be read has no receipt of its own.
    """
    received = 0
    unchanged = 0
    rejected: list[Rejection] = []
    events: list[int] = []
    for result in receive_inbox(index):
        if result.receipt is not None:
            received += result.receipt.received
            unchanged += result.receipt.unchanged
            rejected.extend(result.receipt.rejected)
            events.extend(result.receipt.events)
    return Receipt(received, unchanged, tuple(rejected), tuple(events))


def _gauge(name: str, description: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"freshet_{name}", description, float(value))


def _gauge_by_retriever(
    name: str, description: str, values: Mapping[str, float]
) -> GaugeMetricFamily:
    """Return a Prometheus metric with the label `retriever`, and one value per retriever."""
    gauge = GaugeMetricFamily(f"freshet_{name}", description, labels=["retriever"])
    for retriever, value in values.items():
        gauge.add_metric([retriever], value)
    return gauge
