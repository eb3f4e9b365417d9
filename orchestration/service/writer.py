"""The one thread that changes the collection: what waits becomes one batch, in the ledger first, then searchable."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from model_code.errors import FreshetError
from orchestration.service.job_queue import JobQueue
from orchestration.service.jobs import Job, Settled
from orchestration.service.refusals import Failed

log = logging.getLogger(__name__)
IDLE = 0.3  # seconds without a job, after which what is not urgent may begin
LONGEST = 300.0  # seconds between two attempts at what fails again and again, each of which encodes all that waits


class WriterThread:
    """Runs jobs by a `LiveCollection`. What the ledger has and could not be applied is tried again after
    `retry_seconds`, then after twice as long and so on, up to `LONGEST`; the next job begins anew.
    """

    def __init__(
        self,
        open_collection: Callable[[], Any],
        queue: JobQueue,
        switched: Callable[[], tuple[str, int | None]],
        measured: Callable[[float, Sequence[float]], None],
        retry_seconds: float,
        spare: Callable[[], bool] = lambda: False,
    ) -> None:
        """open_collection: for the retriever that is the default one now, called for each batch; returns the same
        `LiveCollection` while that stays so. switched: make the searchers see the new generation; returns the retriever
        that is the default one now, and the generation that is searched, None while the new one cannot be opened.
        measured: told the seconds of each batch, and of each of its jobs from arrival to searchable. spare: called
        after a batch whenever no job waits for a moment, until it says that there is nothing more to do.
        """
        self.open_collection, self.queue, self.switched, self.measured = open_collection, queue, switched, measured
        self.retry_seconds, self.spare = retry_seconds, spare
        self.failure: str | None = None  # why received documents are not searchable
        self._resume = self._more = False
        self._pause = retry_seconds
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
        self._pause = min(2 * self._pause, max(LONGEST, self.retry_seconds)) if again else self.retry_seconds
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
