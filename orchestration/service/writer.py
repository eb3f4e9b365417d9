"""The two threads that change the collection: one records each request in the ledger, the other makes searchable what
is there by then, all of it as one batch. So a request is safe at once, however long an application takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
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

    def receive(self, rows: Sequence[Row], source: str, *, only_known: bool = False) -> Any:
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
            with suppress(InvalidStateError):  # it has its answer
                future.set_exception(error)

    def settle(self, settled: Settled) -> None:
        """Give the last answer, unless nobody waits for it any more."""
        with suppress(InvalidStateError):
            self.applied.set_result(settled)


def addition(rows: Sequence[Row], source: str, only_known: bool = False) -> Job:
    """A job that adds or updates documents; only_known: refuses those that are not there yet."""
    return Job(len(rows), lambda live: live.receive(rows, source, only_known=only_known))


def application() -> Job:
    """A job that brings nothing: what the ledger has already becomes searchable."""
    return Job(0, lambda live: Receipt(0, 0, (), ()))


def deletion(document_ids: Sequence[str], source: str) -> Job:
    """A job that deletes documents."""
    return Job(len(document_ids), lambda live: live.remove(document_ids, source))


class JobQueue:
    """Jobs in the order of their arrival, of at most `QUEUED_DOCUMENTS` together: first those that are not in the
    ledger yet, then those that are and that no search finds.
    """

    def __init__(self) -> None:
        self.closed = False
        self._arrived: deque[Job] = deque()
        self._received: deque[Job] = deque()
        self._changed = threading.Condition()  # whose lock may be taken again by who has it

    @property
    def documents(self) -> int:
        """Documents that wait, in the ledger or not."""
        return sum(job.size for job in self.waiting())

    @property
    def oldest_seconds(self) -> float:
        """How long the first job has waited; 0 if none waits."""
        first = next(iter(self.waiting()), None)
        return time.monotonic() - first.arrived if first else 0.0

    def put(self, job: Job) -> Job:
        """Append a job; Busy if there is no room for it, or the service stops."""
        with self._changed:
            if self.closed:
                raise Busy("the service is stopping and takes no more documents")
            waiting = self.documents
            if waiting and waiting + job.size > QUEUED_DOCUMENTS:  # a job larger than the line may still come alone
                raise Busy(
                    f"{waiting:,} documents wait for the writer, and {job.size:,} more exceed the {QUEUED_DOCUMENTS:,} "
                    "that may; try again in a second, or send fewer at once"
                )
            self._arrived.append(job)
            self._changed.notify_all()
        return job

    def arrived(self) -> Job | None:
        """The first job that is not in the ledger, once there is one; None if closed and there is none.

        It stays the first until `settle` is told what became of it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self.closed)
            return self._arrived[0] if self._arrived else None

    def settle(self, received: bool) -> None:
        """The first job is in the ledger, and waits to be applied; or it was refused."""
        with self._changed:
            job = self._arrived.popleft()
            if received:
                self._received.append(job)
            self._changed.notify_all()

    def take(self, timeout: float | None) -> list[Job] | None:
        """All that the ledger received, once something is there; an empty list after `timeout` seconds; None if closed
        and nothing is left or will come.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._received or (self.closed and not self._arrived), timeout)
            if self.closed and not self._received and not self._arrived:
                return None
            taken = list(self._received)
            self._received.clear()
            return taken

    def waiting(self) -> list[Job]:
        """All jobs that wait, in the ledger or not."""
        with self._changed:
            return [*self._received, *self._arrived]

    def close(self) -> None:
        """Take no more jobs; those that wait are still handed over."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class Writer:
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
        """open_collection: for the retriever that is the default one now, called for each job and batch; returns the
        same `LiveCollection` while that stays so. switched: make the searchers see the new generation; returns the
        retriever that is the default one now, and the generation that is searched, None while the new one cannot be
        opened. measured: told the seconds of each batch, and of each of its jobs from arrival to searchable. spare:
        called after a batch whenever no job waits for a moment, until it says that there is nothing more to do.
        """
        self.open_collection, self.queue, self.switched, self.measured = open_collection, queue, switched, measured
        self.spare = spare
        self.failure: str | None = None  # why received documents are not searchable
        self._resume = self._more = False
        self._pause = RETRY_SECONDS
        self._applying: Sequence[Job] = ()
        # daemons: what holds them up, such as another process with the lock, does not hold up the end of this one
        self._threads = [
            threading.Thread(target=each, name=name, daemon=True)
            for each, name in ((self._receive_all, "receiver"), (self._apply_all, "applier"))
        ]

    def start(self, resume: bool) -> None:
        """Begin; `resume`: with what an earlier process received and did not apply."""
        self._resume = resume
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float | None = None) -> bool:
        """Finish what waits, then end; whether that was done within `seconds`."""
        self.queue.close()
        latest = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(None if latest is None else max(0.0, latest - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def release(self) -> None:
        """Answer those who wait: what is in the ledger is safe there, and what is not was not received."""
        for job in (*self._applying, *self.queue.waiting()):
            job.settle(Settled(None, {})) if job.received.done() else job.fail(Busy("stopping; not received"))

    def _receive_all(self) -> None:
        while (job := self.queue.arrived()) is not None:
            self.queue.settle(self._receive(job))

    def _receive(self, job: Job) -> bool:
        """Record a job in the ledger; what the ledger refuses is this job's own and leaves the others alone."""
        try:
            receipt = job.receive(self.open_collection())
        except FreshetError as error:
            job.fail(error)
            return False
        except Exception as error:
            log.exception("a request could not be received")
            job.fail(Failed(f"not received: {str(error) or type(error).__name__}"))
            return False
        with suppress(InvalidStateError):  # it was told otherwise by `release`
            job.received.set_result(receipt)
        return True

    def _apply_all(self) -> None:
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
        started, self._applying = time.monotonic(), jobs
        try:
            collection = self.open_collection()
            settled = self._apply(collection)
        except Exception as error:
            self._fail(jobs, error)
            return
        self.failure, self._more, done = None, True, time.monotonic()
        if jobs:
            fresh = [done - job.arrived for job in jobs] if settled.generation is not None else []
            self.measured(done - started, fresh)
        for job in jobs:
            job.settle(settled)

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
            again_in = f"the service tries again in {self._pause:g} s, then less often"
            kept = "the documents are in the ledger, but not searchable yet"
            job.fail(Failed(f"{kept}: {self.failure}; {again_in}"))
