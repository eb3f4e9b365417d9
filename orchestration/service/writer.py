"""The one thread that changes the collection: what waits becomes one batch, in the ledger first, then searchable."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from model_code.errors import FreshetError
from model_code.ledger.events import Receipt
from orchestration.service.errors import Busy, Failed

log = logging.getLogger(__name__)
QUEUED_DOCUMENTS = 20_000  # changes that may wait for the writer
RETRY_SECONDS = 5.0
IDLE = 0.3  # seconds without a job, after which what is not urgent may begin
LONGEST = 300.0  # seconds between two attempts at what fails again and again, each of which encodes all that waits
Row = Mapping[str, Any]


class Receipts(Protocol):
    """What of `orchestration.live.collection.LiveCollection` a job needs."""

    def receive(self, rows: Sequence[Row], source: str) -> Any:
        """Record documents to add or update in the ledger."""

    def remove(self, ids: Sequence[str], source: str) -> Any:
        """Record documents to delete in the ledger."""


@dataclass(frozen=True)
class Settled:
    """A job is done: `generation` contains it, `statuses` are those of every document of its batch.

    generation: None while the one that contains it cannot be opened, so that no search finds the documents yet.
    """

    generation: int | None
    statuses: Mapping[str, str]


class Job:
    """One request's documents. `received` and `applied` are never cancelled: the work goes on if the client leaves."""

    def __init__(self, size: int, receive: Callable[[Receipts], Any]) -> None:
        """size: documents; receive: what records them in the ledger and returns the receipt."""
        self.size, self.receive, self.arrived = size, receive, time.monotonic()
        self.received: Future[Any] = Future()
        self.applied: Future[Settled] = Future()
        for future in (self.received, self.applied):
            future.set_running_or_notify_cancel()

    def fail(self, error: Exception) -> None:
        """Give `error` as the answer that is still missing."""
        for future in (self.received, self.applied):
            if not future.done():
                future.set_exception(error)


def addition(rows: Sequence[Row], source: str) -> Job:
    """A job that adds or updates documents."""
    return Job(len(rows), lambda live: live.receive(rows, source))


def application() -> Job:
    """A job that brings nothing: what the ledger has already becomes searchable."""
    return Job(0, lambda live: Receipt(0, 0, (), ()))


def deletion(document_ids: Sequence[str], source: str) -> Job:
    """A job that deletes documents."""
    return Job(len(document_ids), lambda live: live.remove(document_ids, source))


class JobQueue:
    """Jobs in the order of their arrival, of at most `QUEUED_DOCUMENTS` together."""

    def __init__(self) -> None:
        self.closed = False
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()

    @property
    def documents(self) -> int:
        """Documents that wait."""
        with self._changed:
            return sum(job.size for job in self._jobs)

    @property
    def oldest_seconds(self) -> float:
        """How long the first job has waited; 0 if none waits."""
        with self._changed:
            return time.monotonic() - self._jobs[0].arrived if self._jobs else 0.0

    def put(self, job: Job) -> Job:
        """Append a job; Busy if there is no room for it, or the service stops."""
        with self._changed:
            if self.closed:
                raise Busy("the service is stopping and takes no more documents")
            waiting = sum(other.size for other in self._jobs)
            if waiting and waiting + job.size > QUEUED_DOCUMENTS:  # a job larger than the line may still come alone
                raise Busy(
                    f"{waiting:,} documents wait for the writer, and {job.size:,} more exceed the {QUEUED_DOCUMENTS:,} "
                    "that may; try again in a second, or send fewer at once"
                )
            self._jobs.append(job)
            self._changed.notify()
        return job

    def take(self, timeout: float | None) -> list[Job] | None:
        """All that waits, once something does; an empty list after `timeout` seconds; None if closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self.closed, timeout)
            if self.closed and not self._jobs:
                return None
            taken = list(self._jobs)
            self._jobs.clear()
            return taken

    def close(self) -> None:
        """Take no more jobs; those that wait are still handed over."""
        with self._changed:
            self.closed = True
            self._changed.notify()


class WriterThread:
    """Runs jobs by a `LiveCollection`. What the ledger has and could not be applied is tried again after
    `RETRY_SECONDS`, then after twice as long and so on, up to `LONGEST`; the next job begins anew.
    """

    def __init__(
        self,
        open_collection: Callable[[], Any],
        queue: JobQueue,
        switched: Callable[[], tuple[str, int | None]],
        measured: Callable[[float, Sequence[float]], None],
        spare: Callable[[], bool] = lambda: False,
    ) -> None:
        """open_collection: for the retriever that is the default one now, called for each batch; returns the same
        `LiveCollection` while that stays so. switched: make the searchers see the new generation; returns the retriever
        that is the default one now, and the generation that is searched, None while the new one cannot be opened.
        measured: told the seconds of each batch, and of each of its jobs from arrival to searchable. spare: called
        after a batch whenever no job waits for a moment, until it says that there is nothing more to do.
        """
        self.open_collection, self.queue, self.switched, self.measured = open_collection, queue, switched, measured
        self.spare = spare
        self.failure: str | None = None  # why received documents are not searchable
        self._resume = self._more = False
        self._pause = RETRY_SECONDS
        self._thread = threading.Thread(target=self._run, name="writer")

    def start(self, resume: bool) -> None:
        """Begin; `resume`: with what an earlier process received and did not apply."""
        self._resume = resume
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, then end."""
        self.queue.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        if self._resume:
            self._work([])
        while (jobs := self.queue.take(self._patience())) is not None:
            if jobs or self.failure:
                self._work(jobs)
            else:
                self._more = self._keep_up()

    def _keep_up(self) -> bool:
        """`spare`; what it cannot do now, such as read settings that are being edited, waits for the next addition."""
        try:
            return self.spare()
        except Exception as error:
            log.error("upkeep has to wait: %s", error, exc_info=not isinstance(error, FreshetError))
            return False

    def _patience(self) -> float | None:
        """Seconds to wait for jobs before doing something else."""
        return self._pause if self.failure else IDLE if self._more else None

    def _work(self, jobs: Sequence[Job]) -> None:
        started = time.monotonic()
        try:
            collection = self.open_collection()
            received = [job for job in jobs if _receive(collection, job)]
            settled = self._apply(collection)
        except Exception as error:
            self._fail(jobs, error)
            return
        self.failure, self._more, done = None, True, time.monotonic()
        if jobs:
            fresh = [done - job.arrived for job in received] if settled.generation is not None else []
            self.measured(done - started, fresh)
        for job in received:
            job.applied.set_result(settled)

    def _apply(self, collection: Any) -> Settled:
        """Make what waits searchable, for another retriever, too, if that became the default one meanwhile."""
        while True:
            applied = collection.apply()
            retriever, number = self.switched()
            if retriever == collection.retriever:
                return Settled(number, applied.statuses if applied else {})
            collection = self.open_collection()

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        if str(error) != self.failure:
            log.error("documents could not be made searchable: %s", error, exc_info=not isinstance(error, FreshetError))
        again = self.failure is not None and not jobs
        self._pause = min(2 * self._pause, max(LONGEST, RETRY_SECONDS)) if again else RETRY_SECONDS
        self.failure = str(error) or type(error).__name__
        for job in jobs:
            kept = "the documents are in the ledger, but not searchable yet" if _is_received(job) else "not received"
            job.fail(Failed(f"{kept}: {self.failure}; the service tries again in {self._pause:g} s, then less often"))


def _receive(collection: Any, job: Job) -> bool:
    """Record a job in the ledger; what the ledger refuses is this job's own and leaves the others alone."""
    try:
        receipt = job.receive(collection)
    except FreshetError as error:
        job.fail(error)
        return False
    except Exception as error:
        log.exception("a request could not be received")
        job.fail(Failed(f"not received: {str(error) or type(error).__name__}"))
        return False
    job.received.set_result(receipt)
    return True


def _is_received(job: Job) -> bool:
    return job.received.done() and job.received.exception() is None
