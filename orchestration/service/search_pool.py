"""Run searches on a few threads; so many may wait, and none for long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from orchestration.service.refusals import Busy

T = TypeVar("T")


class SearchPool:
    """`threads` searches at once and `waiting` in line; who comes then, or waits too long, is sent away."""

    def __init__(self, threads: int, waiting: int, wait_seconds: float) -> None:
        self.threads, self.capacity, self.wait_seconds = threads, threads + waiting, wait_seconds
        self.inside = 0  # searches that run or wait
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="search")

    async def run(self, search: Callable[[], T]) -> T:
        """The result of `search()`; Busy if the line is full, or moved too slowly."""
        self._enter()
        try:
            future = self._pool.submit(self._in_time, search, time.monotonic() + self.wait_seconds)
        except BaseException:
            self._leave()
            raise
        future.add_done_callback(lambda _: self._leave())  # also if the client has gone: its search still runs
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Finish what runs and waits."""
        self._pool.shutdown(wait=True)

    def _enter(self) -> None:
        with self._lock:
            if self.inside >= self.capacity:
                raise Busy(
                    f"{self.threads} searches run and {self.capacity - self.threads} wait, which is all this service "
                    "takes; try again in a second"
                )
            self.inside += 1

    def _leave(self) -> None:
        with self._lock:
            self.inside -= 1

    def _in_time(self, search: Callable[[], T], latest: float) -> T:
        if time.monotonic() > latest:
            raise Busy(f"the search waited more than {self.wait_seconds:g} s for its turn; try again in a second")
        return search()
