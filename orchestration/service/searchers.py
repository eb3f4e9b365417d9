"""The open searchers of the service, and the threads that search.

A searcher answers queries from one generation, an immutable snapshot of the index. A request uses
the same searcher until it ends, so its answer comes from one generation. When a newer generation is
opened, later requests get its searcher. The old searcher is freed when its last request has ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from model_code.collection.generations.generation_store import default_retriever, retrievers
from model_code.collection.generations.searcher import Searcher
from model_code.errors import FreshetError
from model_code.retrieval.reranker import Reranker
from orchestration.service.errors import Busy, NotFound, NotReady

log = logging.getLogger(__name__)
T = TypeVar("T")
# Seconds between two checks for generations that other processes have made.
POLL_SECONDS = 0.2
# Number of searches that run at the same time.
SEARCH_THREADS = 2
# Largest number of searches that wait for a thread. Further ones are refused.
MAX_WAITING_SEARCHES = 64
# Seconds that a search may wait for a thread. After that it is refused.
MAX_WAIT_SECONDS = 10.0
# Largest number of queries that one thread searches together.
MAX_GROUP_QUERIES = 16
# Seconds between two checks whether all searches have ended, while the service stops.
CLOSE_CHECK_SECONDS = 0.02


class Searchers:
    """Open searchers by retriever. A searcher is opened by its first use.

    Args:
        live: Folder of the live index.
        load_reranker: Returns the project's reranker, or None if it has none.

    Attributes:
        swaps: Number of generations that were replaced since the start.
    """

    def __init__(
        self, live: Path, load_reranker: Callable[[], Reranker | None] = lambda: None
    ) -> None:
        self.live = live
        self._load_reranker = load_reranker
        self.swaps = 0
        self._searchers: dict[str, Searcher] = {}
        # The reason why the newest generation of a retriever cannot be opened, by retriever.
        self._failures: dict[str, str] = {}
        self._last_default = ""
        # This lock is held while a searcher is opened or replaced. A search does not need it.
        self._lock = threading.Lock()

    def current(self, retriever: str | None = None) -> Searcher:
        """Return the searcher for one request.

        Args:
            retriever: Name of a live retriever. None: the default retriever.

        Raises:
            NotReady: If there is no live retriever.
            NotFound: If `retriever` is not live.
        """
        name = retriever or self.default()
        searcher = self._searchers.get(name)
        if searcher is None:
            searcher = self._open(name)
        return searcher

    def default(self) -> str:
        """Return the name of the default retriever.

        If its files are damaged or deleted, an open searcher continues to answer from memory.

        Raises:
            NotReady: If there is no live retriever.
        """
        try:
            self._last_default = default_retriever(self.live)
        except FreshetError as error:
            if self._last_default not in self._searchers:
                raise NotReady(str(error)) from None
        return self._last_default

    @property
    def failure(self) -> str | None:
        """The reasons why newest generations cannot be opened; None if all are open."""
        if not self._failures:
            return None
        return "; ".join(f"{name}: {reason}" for name, reason in sorted(self._failures.items()))

    def refresh(self) -> None:
        """Replace each searcher whose generation is not current, and close deleted retrievers.

        If the default retriever was deleted, its searcher keeps answering from memory, and
        `failure` reports the error.
        """
        with self._lock:
            names = set(retrievers(self.live))
            with suppress(NotReady):
                names.add(self.default())
            for name in list(self._searchers):
                if name in names:
                    self._renew(name)
                else:
                    del self._searchers[name]
                    self._failures.pop(name, None)

    def newest(self) -> tuple[str, int | None]:
        """Open new generations of all retrievers, and return the one that is searched by default.

        Returns:
            The name of the default retriever, and the number of its current generation. The number
            is None if the current generation cannot be opened.

        Raises:
            NotReady: If there is no live retriever.
        """
        self.refresh()
        name = self.default()
        # Read the failure before the generation. Another thread first replaces the generation and
        # then resets the failure, so the other order could pair no failure with an old generation.
        is_failing = name in self._failures
        generation = self.current(name).generation.number
        return name, None if is_failing else generation

    def newest_of(self, retriever: str) -> Searcher:
        """Open new generations of all retrievers, and return the searcher of one retriever."""
        self.refresh()
        return self.current(retriever)

    def opened(self) -> dict[str, Searcher]:
        """Return the searchers that are open now, by name of the retriever."""
        return dict(self._searchers)

    def _open(self, name: str) -> Searcher:
        """Open the searcher of a live retriever, unless another thread has opened it meanwhile."""
        live_names = retrievers(self.live)
        if name not in live_names:
            raise NotFound(f"retriever {name!r} is not live (live: {', '.join(live_names)})")
        with self._lock:
            if name not in self._searchers:
                searcher = Searcher.open(self.live, name)
                searcher.reranker = self._load_reranker()
                self._searchers[name] = searcher.ready()
            return self._searchers[name]

    def _renew(self, name: str) -> None:
        """Replace a searcher if its generation is not current.

        If the new generation cannot be opened, the old one continues to answer.
        """
        searcher = self._searchers[name]
        try:
            renewed = searcher.renewed().ready()
        # Every error is caught, because the old searcher can still answer.
        except Exception as error:
            reason = str(error) or type(error).__name__
            if self._failures.get(name) != reason:
                log.error(
                    "the new generation of %s cannot be opened, the old one stays: %s",
                    name,
                    reason,
                )
            self._failures[name] = reason
            return

        if renewed is not searcher:
            self._searchers[name] = renewed
            self.swaps += 1
        self._failures.pop(name, None)


@dataclass(eq=False)
class _QueuedSearch:
    """Queries that wait for a thread.

    Attributes:
        kind: Searches of equal kinds can be answered together.
        texts: The queries.
        search: Function that returns one answer per query, in the order of the queries.
        deadline: Latest time for the search to start, in seconds of the monotonic clock.
        answer: Future of the answers.
    """

    kind: Hashable
    texts: Sequence[str]
    search: Callable[[list[str]], list[Any]]
    deadline: float
    answer: Future[list[Any]] = field(default_factory=Future)

    def start(self) -> bool:
        """Return whether to search: the client still waits, and the deadline has not passed."""
        if not self.answer.set_running_or_notify_cancel():
            return False
        if time.monotonic() > self.deadline:
            self.answer.set_exception(
                Busy(
                    f"the search waited more than {MAX_WAIT_SECONDS:g} s for its turn; "
                    "try again in a second"
                )
            )
            return False
        return True


class SearchPool:
    """Threads that search, and a bounded queue in front of them.

    A thread that takes the first search of the queue also takes waiting searches of the same kind.
    It answers them together, because an encoder reads its weights only once per batch of queries.
    It leaves their share to idle threads. A search is never delayed in order to wait for others.

    Args:
        threads: Number of threads. None: `SEARCH_THREADS`.

    Attributes:
        inside: Number of searches that run or wait.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.inside = 0
        self._lock = threading.Lock()
        self._queue: list[_QueuedSearch] = []
        self._thread_count = SEARCH_THREADS if threads is None else threads
        # Number of threads that answer searches now.
        self._busy_threads = 0
        self._threads = ThreadPoolExecutor(self._thread_count, thread_name_prefix="search")

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in one of the threads, in its turn.

        Raises:
            Busy: If the queue is full, or moves too slowly.
        """
        # No other kind equals a new object, so the function is not grouped with other searches.
        kind = object()
        (result,) = await self.search(kind, [""], lambda texts: [work()])
        return result

    async def search(
        self, kind: Hashable, texts: Sequence[str], search: Callable[[list[str]], list[T]]
    ) -> list[T]:
        """Answer queries, perhaps together with waiting queries of the same kind.

        Args:
            kind: All options that affect the answers, in a value that can be compared. Only
                searches with equal kinds are answered together.
            texts: The queries.
            search: Function that returns one answer per query, in the order of the queries.

        Raises:
            Busy: If the queue is full, or moves too slowly.
        """
        deadline = time.monotonic() + MAX_WAIT_SECONDS
        entry = _QueuedSearch(kind, texts, search, deadline)
        with self._lock:
            if self.inside >= self._thread_count + MAX_WAITING_SEARCHES:
                raise Busy(
                    f"{self._thread_count} searches run and {MAX_WAITING_SEARCHES} wait, which is "
                    "the limit of this service; try again in a second"
                )
            self.inside += 1
            self._queue.append(entry)

        # The search is counted until it has ended, even if its client has disconnected.
        entry.answer.add_done_callback(self._leave)
        try:
            self._threads.submit(self._answer_next)
        except BaseException:
            entry.answer.cancel()
            raise
        return await asyncio.wrap_future(entry.answer)

    def close(self, seconds: float | None = None) -> bool:
        """Finish all searches, and return whether they ended within `seconds` (None: no limit)."""
        if seconds is None:
            self._threads.shutdown(wait=True)
            return not self.inside

        deadline = time.monotonic() + seconds
        self._threads.shutdown(wait=False)
        while self.inside and time.monotonic() < deadline:
            time.sleep(CLOSE_CHECK_SECONDS)
        return not self.inside

    def _leave(self, answer: Future[list[Any]]) -> None:
        with self._lock:
            self.inside -= 1

    def _answer_next(self) -> None:
        """Answer the first search of the queue together with others of the same kind.

        This runs once for each search that was queued. The queue may be empty, because another
        thread has taken several searches at once.
        """
        group = self._take_group()
        if not group:
            return
        try:
            # A search does not start if its client has disconnected or its deadline has passed.
            started = [entry for entry in group if entry.start()]
            if started:
                self._answer(started)
        finally:
            with self._lock:
                self._busy_threads -= 1

    def _take_group(self) -> list[_QueuedSearch]:
        """Take the first search of the queue and others of the same kind.

        The searches have at most `MAX_GROUP_QUERIES` queries together, and no more than the share
        of this thread among the idle ones, unless the first one alone has more.

        The thread counts as busy if there was a search.
        """
        with self._lock:
            if not self._queue:
                return []
            # This thread is one of the idle ones.
            idle_threads = self._thread_count - self._busy_threads
            waiting_queries = sum(len(entry.texts) for entry in self._queue)
            share = math.ceil(waiting_queries / idle_threads)
            self._busy_threads += 1

            first, *others = self._queue
            group = [first]
            remaining: list[_QueuedSearch] = []
            # Number of queries that the group can still take.
            room = min(share, MAX_GROUP_QUERIES) - len(first.texts)
            for entry in others:
                if entry.kind == first.kind and len(entry.texts) <= room:
                    group.append(entry)
                    room -= len(entry.texts)
                else:
                    remaining.append(entry)
            self._queue = remaining
            return group

    def _answer(self, group: Sequence[_QueuedSearch]) -> None:
        """Search all queries of a group together.

        If this fails, the searches are run one by one, so that an error of one search does not
        affect the others.
        """
        texts: list[str] = []
        for entry in group:
            texts.extend(entry.texts)
        # Searches of one kind differ only in their texts. The function of any of them can answer
        # all texts.
        search = group[0].search
        try:
            results = search(texts)
        except BaseException as error:
            if len(group) == 1:
                group[0].answer.set_exception(error)
                return
            for entry in group:
                self._answer([entry])
            return

        # Give each search the answers of its own texts.
        start = 0
        for entry in group:
            end = start + len(entry.texts)
            entry.answer.set_result(results[start:end])
            start = end
