"""Processes that search for the service.

Python runs one thread of a process at a time, so the threads of one process search hardly more
queries per second than a single thread. With the setting `live.search_processes`, the service hands
searches to other processes, and itself keeps HTTP, changes and metrics.

Each search process opens the same generations, snapshots of the index. They are mapped into memory,
so the processes share most of it. A request names the generation that the service would search. A
process that has another one open first opens the current one. So no answer is older than one of the
service itself.

A search process has no state that must survive. If it is killed, the service answers its request
itself. If the service ends, its pipe is closed, and the process ends as well.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, TypeVar

from model_code.collection.generations.generation import Generation
from model_code.project import Project
from orchestration.service.child_process import ChildProcess, ProcessEnded
from orchestration.service.errors import Busy
from orchestration.service.search_tasks import SearchTask
from orchestration.service.searchers import Searchers

T = TypeVar("T")
WORKER_MODULE = "orchestration.service.search_worker"


@dataclass(frozen=True)
class TaskRequest:
    """Asks a search process to run a task.

    Attributes:
        task: The task.
        retriever: Name of the retriever.
        manifest_hash: Hash of the manifest of the generation that the service would search.
    """

    task: SearchTask[Any]
    retriever: str
    manifest_hash: str


@dataclass(frozen=True)
class TaskAnswer:
    """Answer of a search process.

    Attributes:
        result: Result of the task. None if it failed.
        error: Why the task failed. None if it succeeded.
        is_behind: Whether the process could not open the generation of the service, or a newer one.
            Then it has not searched.
        manifest_hash: Hash of the manifest of the generation that was searched.
    """

    result: Any = None
    error: Exception | None = None
    is_behind: bool = False
    manifest_hash: str = ""


class SearchProcesses:
    """Hands searches to processes, and starts those again that were killed.

    Args:
        project: The project.
        count: Number of processes.
        searchers: Open generations of the service.
    """

    def __init__(self, project: Project, count: int, searchers: Searchers) -> None:
        self._searchers = searchers
        arguments = [str(project.root)]
        self._children = [
            ChildProcess(WORKER_MODULE, arguments, "a process that searches") for _ in range(count)
        ]
        # This lock is held while a process is taken or given back.
        self._lock = threading.Lock()
        self._idle = list(self._children)
        self._is_stopped = False

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [child.pid for child in self._children if child.pid is not None]

    @property
    def ready_count(self) -> int:
        """Number of processes that can search."""
        return sum(child.check_ready() for child in self._children)

    def start(self) -> None:
        """Start the processes that do not run, without waiting until they are ready."""
        if self._is_stopped:
            return
        for child in self._children:
            child.start()

    def stop(self) -> None:
        """Kill the processes. Searches that they have not answered fail with `Busy`."""
        self._is_stopped = True
        for child in self._children:
            child.stop()

    def run(self, task: SearchTask[T], retriever: str | None) -> T:
        """Run a task in an idle process, or in this one if none is ready.

        Args:
            task: The task.
            retriever: Name of a live retriever. None: the default retriever.

        Raises:
            NotReady: If there is no live retriever.
            NotFound: If `retriever` is not live.
            Busy: If the service is stopping.
        """
        generation = self._searchers.current(retriever).generation
        child = self._take_idle()
        if child is not None:
            try:
                answer = self._ask(child, task, generation)
            finally:
                with self._lock:
                    self._idle.append(child)
            if answer is not None:
                return answer
        if self._is_stopped:
            raise Busy("the service is stopping; send the search again when it has started")
        return task.run(self._searchers.current(retriever))

    def _take_idle(self) -> ChildProcess | None:
        """Return a process that is ready and answers no request; None if there is none."""
        with self._lock:
            # The process that has searched last has most of its data in the caches.
            for child in reversed(self._idle):
                if child.check_ready():
                    self._idle.remove(child)
                    return child
        return None

    def _ask(self, child: ChildProcess, task: SearchTask[T], generation: Generation) -> T | None:
        """Let a process run a task.

        Returns:
            The result. None if the process was killed, or cannot open the generation.
        """
        request = TaskRequest(task, generation.retriever, generation.manifest_hash)
        try:
            child.send(request)
            answer: TaskAnswer = child.receive()
        except ProcessEnded:
            return None
        if answer.is_behind:
            return None
        if answer.error is not None:
            raise answer.error
        if answer.manifest_hash != generation.manifest_hash:
            # The process has opened a newer generation. The service opens it too, before anybody
            # sees the answer, so that no later answer is older.
            self._searchers.refresh()
        return answer.result
