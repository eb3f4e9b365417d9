"""The two threads that change the collection: one records each request in the ledger, the other
makes searchable what is there by then, all of it as one batch. So a request is safe at once,
however long an application takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from model_code.errors import FreshetError
from orchestration.service.errors import Busy, NotReady

log = logging.getLogger(__name__)
QUEUED_DOCUMENTS = 20_000  # changes that may wait for the writer
RETRY_SECONDS = 5.0
IDLE = 0.3  # seconds without a job, after which what is not urgent may begin
# seconds between two attempts at what fails again and again, each of which encodes all that waits
LONGEST = 300.0


class Job:
    """One request's documents. `received` and `applied` are never cancelled: the work goes on if
    the client leaves.

    applied: the generation that contains it; None while that one cannot be opened, so that no
    search finds it yet.
    """

    def __init__(self, size: int, receive: Callable[[Any], Any]) -> None:
        """size: documents; receive: what records them by a `LiveIndex` and returns the
        receipt.
        """
        self.size, self.receive, self.arrived = size, receive, time.monotonic()
        self.safe = False  # in the ledger
        self.received: Future[Any] = Future()
        self.applied: Future[int | None] = Future()
        for future in (self.received, self.applied):
            future.set_running_or_notify_cancel()

    def fail(self, error: Exception) -> None:
        """Give `error` as the answer that is still missing."""
        for future in (self.received, self.applied):
            with suppress(InvalidStateError):  # it has its answer
                future.set_exception(error)

    def settle(self, generation: int | None) -> None:
        """Give the last answer, unless nobody waits for it any more."""
        with suppress(InvalidStateError):
            self.applied.set_result(generation)


class Writer:
    """A thread that runs jobs by a `LiveIndex`, of at most `QUEUED_DOCUMENTS` that wait. What
    the ledger has and could not be applied is tried again after `RETRY_SECONDS`, then after twice
    as long and so on, up to `LONGEST`; the next job begins anew.
    """

    def __init__(
        self,
        open_collection: Callable[[], Any],
        switched: Callable[[], tuple[str, int | None]],
        measured: Callable[[float, Sequence[float]], None],
        spare: Callable[[], bool] = lambda: False,
    ) -> None:
        """open_collection: for the retriever that is the default one now, called for each job and
        batch; returns the same `LiveIndex` while that stays so. switched: make the searchers
        see the new generation; returns the retriever that is the default one now, and the
        generation that is searched, None while the new one cannot be opened. measured: told the
        seconds of each batch, and of each of its jobs from arrival to searchable. spare: called
        after a batch whenever no job waits for a moment, until it says that there is nothing more
        to do.
        """
        self.open_collection, self.switched, self.measured = open_collection, switched, measured
        self.spare = spare
        self.failure: str | None = None  # why received documents are not searchable
        self.closed = False
        # those that wait: first what is in the ledger, then what is not
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._resume = self._more = False
        self._pause = RETRY_SECONDS
        self._applying: Sequence[Job] = ()
        # daemons: what holds them up, such as another process with the lock, does not hold up the
        # end of this one
        self._threads = [
            threading.Thread(target=each, name=name, daemon=True)
            for each, name in ((self._receive_all, "receiver"), (self._apply_all, "applier"))
        ]

    @property
    def documents(self) -> int:
        """Documents that wait, in the ledger or not."""
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
            waiting = sum(job.size for job in self._jobs)
            # a job larger than the line may still come alone
            if waiting and waiting + job.size > QUEUED_DOCUMENTS:
                raise Busy(
                    f"{waiting:,} documents wait for the writer, and {job.size:,} more exceed the {QUEUED_DOCUMENTS:,} "
                    "that may; try again in a second, or send fewer at once"
                )
            self._jobs.append(job)
            self._changed.notify_all()
        return job

    def start(self, resume: bool) -> None:
        """Begin; `resume`: with what an earlier process received and did not apply."""
        self._resume = resume
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float | None = None) -> bool:
        """Finish what waits, then end; whether that was done within `seconds`."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        latest = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(None if latest is None else max(0.0, latest - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def release(self) -> None:
        """Answer those who wait: what is in the ledger is safe there, and what is not was not
        received.
        """
        with self._changed:
            waiting = [*self._applying, *self._jobs]
        for job in waiting:
            job.settle(None) if job.received.done() else job.fail(Busy("stopping; not received"))

    def _receive_all(self) -> None:
        while (job := self._first_unsafe()) is not None:
            safe = self._receive(job)
            with self._changed:
                if safe:
                    job.safe = True
                else:
                    self._jobs.remove(job)
                self._changed.notify_all()

    def _first_unsafe(self) -> Job | None:
        """The first job that is not in the ledger, once there is one; None if closed and there is
        none.
        """
        first = lambda: next((job for job in self._jobs if not job.safe), None)  # noqa: E731
        with self._changed:
            self._changed.wait_for(lambda: first() or self.closed)
            return first()

    def _take(self) -> list[Job] | None:
        """All that the ledger received, once something is there; an empty list after the time to
        wait; None if closed and nothing is left or will come.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.closed if not self._jobs else self._jobs[0].safe, self._patience()
            )
            if self.closed and not self._jobs:
                return None
            taken = [job for job in self._jobs if job.safe]
            self._jobs = deque(job for job in self._jobs if not job.safe)
            self._applying = taken
            return taken

    def _receive(self, job: Job) -> bool:
        """Record a job in the ledger; what the ledger refuses is this job's own and leaves the
        others alone.
        """
        try:
            receipt = job.receive(self.open_collection())
        except FreshetError as error:
            job.fail(error)
            return False
        except Exception as error:
            log.exception("a request could not be received")
            job.fail(NotReady(f"not received: {str(error) or type(error).__name__}"))
            return False
        with suppress(InvalidStateError):  # it was told otherwise by `release`
            job.received.set_result(receipt)
        return True

    def _apply_all(self) -> None:
        if self._resume:
            self._work([])
        while (jobs := self._take()) is not None:
            if jobs or self.failure:
                self._work(jobs)
            else:
                self._more = self._keep_up()

    def _keep_up(self) -> bool:
        """`spare`; what it cannot do now, such as read settings that are being edited, waits for
        the next addition.
        """
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
            generation = self._apply(collection)
        except Exception as error:
            self._fail(jobs, error)
            return
        self.failure, self._more, done = None, True, time.monotonic()
        if jobs:
            fresh = [done - job.arrived for job in jobs] if generation is not None else []
            self.measured(done - started, fresh)
        for job in jobs:
            job.settle(generation)

    def _apply(self, collection: Any) -> int | None:
        """Make what waits searchable, for another retriever, too, if that became the default one
        meanwhile.
        """
        while True:
            collection.apply()
            retriever, number = self.switched()
            if retriever == collection.retriever:
                return number
            collection = self.open_collection()

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        if str(error) != self.failure:
            log.error(
                "documents could not be made searchable: %s",
                error,
                exc_info=not isinstance(error, FreshetError),
            )
        again = self.failure is not None and not jobs
        self._pause = min(2 * self._pause, max(LONGEST, RETRY_SECONDS)) if again else RETRY_SECONDS
        self.failure = str(error) or type(error).__name__
        for job in jobs:
            again_in = f"the service tries again in {self._pause:g} s, then less often"
            state = "the documents are in the ledger, but not searchable yet"
            job.fail(NotReady(f"{state}: {self.failure}; {again_in}"))
