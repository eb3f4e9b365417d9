"""The queue of changes that requests bring, with three threads that process it.

The first thread records each change in the ledger, the log of changes on the disk. A recorded
change survives a crash. The second thread makes all changes that are recorded so far searchable in
one batch. A batch may take long, and requests are still recorded meanwhile. The third thread
encodes the documents of these requests, so that the next batch takes less time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Protocol

from model_code.audit import acting_as, current_actor
from model_code.collection.ledger.events import Receipt
from model_code.errors import FreshetError
from model_code.text.documents import Document
from orchestration.service.encode_queue import EncodeQueue
from orchestration.service.errors import Busy, NotReady, Refusal

log = logging.getLogger(__name__)
# Largest number of changed documents that may wait in the queue.
MAX_QUEUED_DOCUMENTS = 20_000
# Seconds to wait after a failed batch. The time doubles with each further failure, up to
# `MAX_RETRY_SECONDS`, because every attempt encodes all waiting documents again.
RETRY_SECONDS = 5.0
MAX_RETRY_SECONDS = 300.0
# A request with more documents is encoded with its batch and not before.
MAX_ENCODED_AHEAD = 64
# Seconds without a job after which maintenance of the index may start.
IDLE_SECONDS = 0.3


class Applier(Protocol):
    """Applies recorded changes to a retriever, as `LiveIndex` does.

    Attributes:
        retriever: Name of the retriever.
    """

    retriever: str

    def apply(self) -> Any:
        """Make all recorded changes searchable."""

    def encode_ahead(self, documents: Sequence[Document]) -> None:
        """Encode recorded documents, so that the next `apply` is faster."""


class IngestJob:
    """The change of one request, with its results as futures.

    The futures are never cancelled: the work continues if the client disconnects.

    Args:
        size: Number of documents.
        record: Records the change with a `LiveIndex` and returns a receipt.

    Attributes:
        received: Future of the receipt, which is set when the change is in the ledger.
        applied: Future of the number of a generation that contains the change. Its result is None
            if that generation cannot be opened, so that no search finds the change yet.
        actor: Who makes the change, for the audit log.
        is_recorded: Whether the change is in the ledger.
        arrived: Time of arrival, in seconds of the monotonic clock.
    """

    def __init__(self, size: int, record: Callable[[Any], Any]) -> None:
        self.size = size
        self.record = record
        self.actor = current_actor()
        self.arrived = time.monotonic()
        self.is_recorded = False
        self.received: Future[Any] = Future()
        self.applied: Future[int | None] = Future()
        # A future that is marked as running cannot be cancelled by a client that disconnects.
        for future in (self.received, self.applied):
            future.set_running_or_notify_cancel()

    def fail(self, error: Exception) -> None:
        """Set an error as the result of each future that has no result yet."""
        for future in (self.received, self.applied):
            with suppress(InvalidStateError):
                future.set_exception(error)

    def finish(self, generation: int | None) -> None:
        """Set the generation as the result of `applied`, unless it has a result already."""
        with suppress(InvalidStateError):
            self.applied.set_result(generation)


def apply_job() -> IngestJob:
    """Return a job without documents. It only makes the ledger's changes searchable."""

    def record_nothing(index: Any) -> Receipt:
        return Receipt(received=0, unchanged=0, rejected=(), events=())

    return IngestJob(0, record_nothing)


class IngestQueue:
    """Jobs in the order of their arrival, and the threads that record and apply them.

    Changes that are in the ledger and could not be applied are tried again after `RETRY_SECONDS`.
    This time doubles with each failure, up to `MAX_RETRY_SECONDS`. A new job starts from
    `RETRY_SECONDS` again.

    Args:
        open_index: Returns the `LiveIndex` of the default retriever. It is called for each job, and
            returns the same object until the default retriever changes.
        publish: Makes the searchers open the new generation. Returns the default retriever, and
            the number of the generation that is searched, or None if the new generation cannot be
            opened.
        observe_batch: Is called with the seconds that a batch took and, for each of its jobs, the
            seconds from arrival until the change was searchable.
        maintain: Does one piece of maintenance, and returns whether there is more. It is called
            after a batch, while no job waits.
        open_applier: Returns the object that encodes documents and applies changes to the default
            retriever, in place of the result of `open_index`. None: always that result.

    Attributes:
        failure: The reason why recorded documents are not searchable; None if they are.
        is_closed: Whether new jobs are refused.
    """

    def __init__(
        self,
        open_index: Callable[[], Any],
        publish: Callable[[], tuple[str, int | None]],
        observe_batch: Callable[[float, Sequence[float]], None],
        maintain: Callable[[], bool] = lambda: False,
        open_applier: Callable[[], Applier] | None = None,
    ) -> None:
        self.open_index = open_index
        self.open_applier = open_applier or open_index
        self.publish = publish
        self.observe_batch = observe_batch
        self.maintain = maintain
        self.failure: str | None = None
        self.is_closed = False
        self._refusal: str | None = None

        # Recorded jobs come before jobs that are not recorded yet.
        self._jobs: deque[IngestJob] = deque()
        self._changed = threading.Condition()
        self._applying: Sequence[IngestJob] = ()
        self._apply_at_start = False
        self._has_maintenance = False
        self._retry_seconds = RETRY_SECONDS
        self._encode_queue = EncodeQueue(self._encode_ahead)
        # Daemon threads do not delay the end of the process, even if they wait for a lock.
        self._threads = [
            threading.Thread(target=self._record_jobs, name="receiver", daemon=True),
            threading.Thread(target=self._apply_batches, name="applier", daemon=True),
            threading.Thread(target=self._encode_queue.run, name="encoder", daemon=True),
        ]

    @property
    def documents(self) -> int:
        """Number of documents in the queue, recorded or not."""
        with self._changed:
            return sum(job.size for job in self._jobs)

    @property
    def oldest_seconds(self) -> float:
        """Time that the first job has waited; 0 if the queue is empty."""
        with self._changed:
            if not self._jobs:
                return 0.0
            return time.monotonic() - self._jobs[0].arrived

    def put(self, job: IngestJob) -> IngestJob:
        """Append a job.

        Raises:
            Busy: If the queue is full, or the service is stopping.
            Refusal: If the service accepts no changes.
        """
        self.require_changes_accepted()
        with self._changed:
            if self.is_closed:
                raise Busy("the service is stopping and accepts no more documents")
            waiting = sum(job.size for job in self._jobs)
            is_full = waiting + job.size > MAX_QUEUED_DOCUMENTS
            # A job that is larger than the limit is accepted if no other job waits.
            if waiting and is_full:
                raise Busy(
                    f"{waiting:,} documents wait, and {job.size:,} more exceed the limit of "
                    f"{MAX_QUEUED_DOCUMENTS:,}; try again in a second, or send fewer at once"
                )
            self._jobs.append(job)
            self._changed.notify_all()
        return job

    def encode_soon(self, documents: Sequence[Document]) -> None:
        """Let recorded documents be encoded before the batch that makes them searchable.

        A batch makes all changes searchable that are recorded so far. A large request is left to
        it.
        """
        if len(documents) > MAX_ENCODED_AHEAD:
            return
        self._encode_queue.put(documents)

    def refuse_changes(self, reason: str) -> None:
        """Refuse all jobs, and start no thread."""
        self._refusal = reason

    def require_changes_accepted(self) -> None:
        """Raise `Refusal` if the service changes nothing, as a read-only service does."""
        if self._refusal is not None:
            raise Refusal(self._refusal)

    def start(self, apply_at_start: bool) -> None:
        """Start the threads.

        Args:
            apply_at_start: Whether to make changes searchable that an earlier process recorded.
        """
        self._apply_at_start = apply_at_start
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float | None = None) -> bool:
        """Refuse new jobs, finish all others, and stop the threads.

        Args:
            seconds: Time limit; None for no limit.

        Returns:
            Whether everything was finished in time.
        """
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        self._encode_queue.close()

        deadline = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                remaining = None
                if deadline is not None:
                    remaining = max(0.0, deadline - time.monotonic())
                thread.join(remaining)
        return not any(thread.is_alive() for thread in self._threads)

    def answer_all(self) -> None:
        """Answer all requests that still wait, because the service is stopping.

        Recorded changes are safe in the ledger. The others were not received.
        """
        with self._changed:
            waiting = [*self._applying, *self._jobs]
        for job in waiting:
            if job.received.done():
                job.finish(None)
            else:
                job.fail(Busy("the service is stopping, and the documents were not received"))

    def _record_jobs(self) -> None:
        """Record jobs until the queue is closed. This is the first thread."""
        while True:
            job = self._next_unrecorded()
            if job is None:
                return
            recorded = self._record(job)
            with self._changed:
                if recorded:
                    job.is_recorded = True
                else:
                    self._jobs.remove(job)
                self._changed.notify_all()

    def _next_unrecorded(self) -> IngestJob | None:
        """Wait for a job to record; None if the queue is closed and there is none."""
        with self._changed:
            while True:
                for job in self._jobs:
                    if not job.is_recorded:
                        return job
                if self.is_closed:
                    return None
                self._changed.wait()

    def _record(self, job: IngestJob) -> bool:
        """Record a job in the ledger, the log of changes, and return whether it was accepted.

        A job that is refused does not affect other jobs.
        """
        try:
            with acting_as(job.actor):
                receipt = job.record(self.open_index())
        except FreshetError as error:
            job.fail(error)
            return False
        except Exception as error:
            log.exception("a request could not be received")
            job.fail(NotReady(f"not received: {_describe(error)}"))
            return False
        # While the service stops, `answer_all` may have set a result already.
        with suppress(InvalidStateError):
            job.received.set_result(receipt)
        return True

    def _encode_ahead(self, documents: Sequence[Document]) -> None:
        self.open_applier().encode_ahead(documents)

    def _apply_batches(self) -> None:
        """Apply batches until the queue is closed. This is the second thread.

        A batch makes all changes searchable that are recorded so far.
        """
        if self._apply_at_start:
            self._apply_batch([])
        while True:
            jobs = self._take_recorded()
            if jobs is None:
                return
            if jobs or self.failure:
                self._apply_batch(jobs)
            else:
                self._has_maintenance = self._try_maintain()

    def _take_recorded(self) -> list[IngestJob] | None:
        """Wait for recorded jobs, and take them out of the queue.

        Returns:
            All recorded jobs. An empty list if none came within `_wait_timeout` seconds, so that a
            retry or maintenance is due. None if the queue is closed and nothing is left.
        """
        with self._changed:
            self._changed.wait_for(self._is_ready_to_apply, self._wait_timeout())
            if self.is_closed and not self._jobs:
                return None
            recorded = [job for job in self._jobs if job.is_recorded]
            self._jobs = deque(job for job in self._jobs if not job.is_recorded)
            self._applying = recorded
        # The batch encodes all its documents, so none of them is encoded ahead any more.
        self._encode_queue.clear()
        return recorded

    def _is_ready_to_apply(self) -> bool:
        """Return whether the thread that applies changes can go on.

        It can if a job is recorded, or if the queue is closed and empty.
        """
        if not self._jobs:
            return self.is_closed
        # Jobs are recorded in their order, so the first one tells whether any is recorded.
        return self._jobs[0].is_recorded

    def _wait_timeout(self) -> float | None:
        """Return the seconds to wait for jobs before a retry or maintenance; None for no limit."""
        if self.failure:
            return self._retry_seconds
        if self._has_maintenance:
            return IDLE_SECONDS
        return None

    def _try_maintain(self) -> bool:
        """Do one piece of maintenance of the index, and return whether there is more.

        A failure, such as settings that are half edited, ends maintenance until the next changes
        are made searchable.
        """
        try:
            return self.maintain()
        except Exception as error:
            log.error("maintenance is postponed: %s", error, exc_info=_needs_traceback(error))
            return False

    def _apply_batch(self, jobs: Sequence[IngestJob]) -> None:
        """Make all changes in the ledger searchable, and answer the jobs.

        Args:
            jobs: Recorded jobs that wait for this batch; none for a retry.
        """
        started = time.monotonic()
        try:
            generation = self._apply()
        except Exception as error:
            self._handle_failure(jobs, error)
            return

        finished = time.monotonic()
        self.failure = None
        self._has_maintenance = True
        if jobs:
            # No search finds the documents yet if the generation could not be opened.
            delays = []
            if generation is not None:
                delays = [finished - job.arrived for job in jobs]
            self.observe_batch(finished - started, delays)
        for job in jobs:
            job.finish(generation)

    def _apply(self) -> int | None:
        """Make all changes in the ledger searchable by the default retriever.

        If a promotion changes the default retriever meanwhile, the ledger is applied to the new one
        as well.

        Returns:
            The number of the generation that is searched now. None if it cannot be opened.
        """
        while True:
            applier = self.open_applier()
            applier.apply()
            retriever, generation = self.publish()
            if retriever == applier.retriever:
                return generation

    def _handle_failure(self, jobs: Sequence[IngestJob], error: Exception) -> None:
        """Log why a batch failed, answer its jobs, and choose the time until the next attempt.

        The time doubles with each failed retry. A batch with new jobs starts from `RETRY_SECONDS`.
        The same failure is logged only once.
        """
        reason = _describe(error)
        if reason != self.failure:
            log.error(
                "documents could not be made searchable: %s",
                reason,
                exc_info=_needs_traceback(error),
            )

        is_failed_retry = self.failure is not None and not jobs
        if is_failed_retry:
            self._retry_seconds = min(2 * self._retry_seconds, MAX_RETRY_SECONDS)
        else:
            self._retry_seconds = RETRY_SECONDS
        self.failure = reason

        message = (
            f"the documents are in the ledger, but not searchable yet: {self.failure}; "
            f"the service tries again in {self._retry_seconds:g} s, then less often"
        )
        for job in jobs:
            job.fail(NotReady(message))


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__


def _needs_traceback(error: Exception) -> bool:
    """Return whether the log needs a traceback; a `FreshetError` explains itself."""
    return not isinstance(error, FreshetError)
