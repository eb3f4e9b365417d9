"""A separate process that makes recorded changes searchable.

Python runs one thread of a process at a time. If threads of the service encoded and indexed
documents, searches would wait for them again and again. So another process does this work. It reads
the changes from the ledger, builds a generation, a snapshot of the index, and makes it current. The
service then opens the new generation, as it opens those of any other process.

Both processes are connected by a pipe. It carries requests, answers, and documents that are encoded
before their batch. Changes are only in the ledger, so nothing is lost if one of the processes is
killed. If the service ends, the pipe is closed, and the other process ends at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from model_code.collection.index.live_index import LiveIndex
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.documents import Document
from orchestration.service.child_process import ChildProcess, ProcessEnded
from orchestration.service.ingest_queue import Applier

WORKER_MODULE = "orchestration.service.apply_worker"


@dataclass(frozen=True)
class EncodeRequest:
    """Asks the process to encode documents before their batch. It has no answer."""

    retriever: str
    documents: Sequence[Document]


@dataclass(frozen=True)
class ApplyRequest:
    """Asks the process to make all recorded changes searchable by a retriever."""

    retriever: str


@dataclass(frozen=True)
class ApplyAnswer:
    """Tells the service how a batch ended.

    Attributes:
        error: Why the batch failed. None if it succeeded.
    """

    error: str | None = None


class ApplyProcess:
    """Starts the process at the first change, and sends requests to it.

    As long as the process is not ready, `applier` returns an object that works in this process.

    Args:
        project: The project.
    """

    def __init__(self, project: Project) -> None:
        arguments = [str(project.root)]
        self._child = ChildProcess(WORKER_MODULE, arguments, "the process that applies changes")
        self._is_stopped = False

    @property
    def pid(self) -> int | None:
        """Id of the process. None if it is not running."""
        return self._child.pid

    def start(self) -> None:
        """Start the process, without waiting until it is ready."""
        self._child.start()

    def stop(self) -> None:
        """Kill the process, and start no other one.

        Either it has no work left, or the service must end soon. In the second case, the next start
        of the service repeats its work.
        """
        self._is_stopped = True
        self._child.stop()

    def applier(self, index: LiveIndex) -> Applier:
        """Return an object that applies changes in the process, or `index` if it is not ready."""
        if self._child.check_ready():
            return RemoteApplier(self, index)
        if not self._is_stopped:
            self._child.start()
        return index

    def encode_ahead(self, request: EncodeRequest) -> None:
        """Send documents to encode. They are dropped if the process has ended."""
        # The next batch encodes the documents again.
        with suppress(ProcessEnded):
            self._child.send(request)

    def apply(self, request: ApplyRequest) -> None:
        """Apply changes, and wait until they are searchable. Only one thread may call this.

        Raises:
            ProcessEnded: If the process has ended.
            FreshetError: If the changes could not be made searchable.
        """
        self._child.send(request)
        answer: ApplyAnswer = self._child.receive()
        if answer.error is not None:
            raise FreshetError(answer.error)


class RemoteApplier:
    """Applies changes to one retriever in the process.

    Args:
        process: The process, which is ready.
        index: Live index that applies the changes here if the process ends.
    """

    def __init__(self, process: ApplyProcess, index: LiveIndex) -> None:
        self._process = process
        self._index = index
        self.retriever = index.retriever

    def encode_ahead(self, documents: Sequence[Document]) -> None:
        """Let the process encode documents, so that the next `apply` is faster."""
        self._process.encode_ahead(EncodeRequest(self.retriever, documents))

    def apply(self) -> None:
        """Make all recorded changes searchable.

        Raises:
            FreshetError: If this failed. The changes stay in the ledger.
        """
        # Folders that the index has open could not be deleted when they are out of date.
        self._index.release()
        try:
            self._process.apply(ApplyRequest(self.retriever))
        except ProcessEnded:
            self._index.apply()
