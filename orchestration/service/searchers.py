"""The searcher of each live retriever, exchanged for its successor while requests run; and the
threads that search.

A request takes one reference and answers from it to its end, so every answer comes from exactly one
generation; the exchange is the assignment of that reference, which is atomic. An old searcher is
freed with its last request.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from model_code.collection.generations.generation_store import default_retriever, retrievers
from model_code.collection.generations.searcher import Searcher
from model_code.errors import FreshetError
from orchestration.service.errors import Busy, NotFound, NotReady

log = logging.getLogger(__name__)
T = TypeVar("T")
POLL_SECONDS = 0.2  # between two looks at the pointers
# searches at once, how many more may wait, and for how long
THREADS, WAITING, WAIT_SECONDS = 2, 64, 10.0
TOGETHER = 16  # texts that are searched at once


class Searchers:
    """Open searchers by retriever; a retriever's is opened at its first use and kept warm."""

    def __init__(self, live: Path) -> None:
        self.live = live
        self._failures: dict[str, str] = {}  # by retriever
        self.swaps = 0
        self._open: dict[str, Searcher] = {}
        self._default = ""  # the last one that was read
        self._lock = threading.Lock()  # held to open or exchange, never to search

    def current(self, retriever: str | None = None) -> Searcher:
        """The searcher to answer one request from; NotReady if nothing is live, NotFound if
        `retriever` is not.
        """
        name = retriever or self.default()
        return self._open.get(name) or self._first(name)

    def default(self) -> str:
        """The retriever that is searched when none is named; NotReady if nothing is live, nor was."""
        try:
            self._default = default_retriever(self.live)
        except FreshetError as error:
            # what is in memory goes on answering, whatever became of its files
            if self._default not in self._open:
                raise NotReady(str(error)) from None
        return self._default

    @property
    def failure(self) -> str | None:
        """Why the newest generation of a retriever is not the one that is served; None if every
        one's is.
        """
        return (
            "; ".join(f"{name}: {reason}" for name, reason in sorted(self._failures.items()))
            or None
        )

    def refresh(self) -> None:
        """Exchange every searcher whose generation is no longer the current one, now, and let go of
        those whose retriever was deleted. The one that is searched by default is missed, and
        answers on.
        """
        with self._lock:
            names = set(retrievers(self.live))
            with suppress(NotReady):
                names.add(self.default())
            for name in list(self._open):
                if name in names:
                    self._renew(name)
                else:
                    del self._open[name]
                    self._failures.pop(name, None)

    def newest(self) -> tuple[str, int | None]:
        """Look at every pointer now. Returns the retriever that is searched by default and the
        generation that answers for it, None while its current one cannot be opened; NotReady if
        nothing is live.
        """
        self.refresh()
        name = self.default()
        failed = name in self._failures  # looked at first: it is taken back after the exchange
        number = self.current(name).generation.number
        return name, None if failed else number

    def newest_of(self, retriever: str) -> Searcher:
        """The searcher of the generation that is current now, opened if it has to be."""
        self.refresh()
        return self.current(retriever)

    def opened(self) -> dict[str, Searcher]:
        """The searchers that are open, by retriever."""
        return dict(self._open)

    def _first(self, name: str) -> Searcher:
        if name not in retrievers(self.live):
            raise NotFound(
                f"retriever {name!r} is not live (live: {', '.join(retrievers(self.live))})"
            )
        with self._lock:
            if name not in self._open:
                self._open[name] = Searcher.open(self.live, name).ready()
            return self._open[name]

    def _renew(self, name: str) -> None:
        """Exchange if needed. While the new generation cannot be opened, the old one serves, and
        `failure` says so.
        """
        before = self._open[name]
        try:
            renewed = before.renewed().ready()
        # whatever is wrong with the new one, the old one can still answer
        except Exception as error:
            reason = str(error) or type(error).__name__
            if self._failures.get(name) != reason:
                log.error(
                    "the new generation of %s cannot be opened, the old one stays: %s", name, reason
                )
            self._failures[name] = reason
            return
        if renewed is not before:
            self._open[name] = renewed
            self.swaps += 1
        self._failures.pop(name, None)


@dataclass(eq=False)
class _QueuedSearch:
    """Texts in line; kind: texts of equal kinds are searched alike. latest: when their turn must
    have come.
    """

    kind: Hashable
    texts: Sequence[str]
    search: Callable[[list[str]], list[Any]]
    latest: float
    answer: Future[list[Any]] = field(default_factory=Future)

    def begins(self) -> bool:
        """Whether its turn came in time, and somebody still waits for the answer; else it is over."""
        waited = self.answer.set_running_or_notify_cancel()
        if not waited or time.monotonic() <= self.latest:
            return waited
        reason = (
            f"the search waited more than {WAIT_SECONDS:g} s for its turn; try again in a second"
        )
        self.answer.set_exception(Busy(reason))
        return False


class SearchPool:
    """`THREADS` searches at once and `WAITING` in line; who comes then, or waits too long, is sent
    away.

    Whose turn comes takes along what waits and is searched alike, since an encoder reads its
    weights once for all texts that it is given. Nobody waits for company.
    """

    def __init__(self) -> None:
        self.inside = 0  # searches that run or wait
        self._lock = threading.Lock()
        self._line: list[_QueuedSearch] = []
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="search")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work()`, in its turn; Busy if the line is full, or moved too slowly."""
        (result,) = await self.search(object(), [""], lambda texts: [work()])
        return result

    async def search(
        self, kind: Hashable, texts: Sequence[str], search: Callable[[list[str]], list[T]]
    ) -> list[T]:
        """What `search` finds for each of `texts`, perhaps asked together with others of this
        `kind`; Busy as `run`.
        """
        entry = _QueuedSearch(kind, texts, search, time.monotonic() + WAIT_SECONDS)
        with self._lock:
            if self.inside >= THREADS + WAITING:
                raise Busy(
                    f"{THREADS} searches run and {WAITING} wait, which is all this service takes; try again in a second"
                )
            self.inside += 1
            self._line.append(entry)
        # also if the client has gone: its search still runs
        entry.answer.add_done_callback(lambda _: self._leave())
        try:
            self._pool.submit(self._answer_next)
        except BaseException:
            entry.answer.cancel()
            raise
        return await asyncio.wrap_future(entry.answer)

    def close(self, seconds: float | None = None) -> bool:
        """Finish what runs and waits; whether that was done within `seconds`."""
        latest = None if seconds is None else time.monotonic() + seconds
        self._pool.shutdown(wait=seconds is None)
        while self.inside and latest is not None and time.monotonic() < latest:
            time.sleep(0.02)
        return not self.inside

    def _leave(self) -> None:
        with self._lock:
            self.inside -= 1

    def _answer_next(self) -> None:
        """Answer the first in line and its like; nobody, where others took along all that had come."""
        if group := [entry for entry in self._next_group() if entry.begins()]:
            self._answer(group)

    def _next_group(self) -> list[_QueuedSearch]:
        """The first in line and those of its kind behind it, up to `TOGETHER` texts; they leave the
        line.
        """
        group: list[_QueuedSearch] = []
        room = TOGETHER
        with self._lock:
            for entry in self._line:
                if not group or (entry.kind == group[0].kind and len(entry.texts) <= room):
                    group.append(entry)
                    room -= len(entry.texts)
            self._line = [entry for entry in self._line if entry not in group]
        return group

    def _answer(self, group: Sequence[_QueuedSearch]) -> None:
        """Search all texts at once; each by itself if that fails, as nobody is to suffer from
        another's.
        """
        try:
            results = iter(group[0].search([text for entry in group for text in entry.texts]))
        except BaseException as error:
            if len(group) == 1:
                group[0].answer.set_exception(error)
            else:
                for entry in group:
                    self._answer([entry])
            return
        for entry in group:
            entry.answer.set_result(list(islice(results, len(entry.texts))))
