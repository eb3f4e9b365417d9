"""The line of jobs before the one writer: bounded, and handed over in groups."""

from __future__ import annotations

import threading
import time
from collections import deque

from orchestration.service.jobs import Job
from orchestration.service.refusals import Busy


class JobQueue:
    """Jobs in the order of their arrival, of at most `capacity` documents together."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
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
            if waiting and waiting + job.size > self.capacity:  # a job larger than the line may still come alone
                raise Busy(
                    f"{waiting:,} documents wait for the writer, and {job.size:,} more exceed the {self.capacity:,} "
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
