"""A separate process that makes recorded changes searchable.

Python runs one thread of a process at a time. If threads of the service encoded and indexed
documents, searches would wait for them again and again. So another process does this work. It reads
the changes from the ledger, builds a generation, a snapshot of the index, and makes it current. The
service then opens the new generation, as it opens those of any other process. The process runs only
while there are changes.

Documents are encoded by PyTorch, and queries usually by NumPy. A service that has not imported
PyTorch leaves it to the process, because PyTorch needs much memory. So a change waits until the
process is ready, which takes about as long as the import. A service that uses PyTorch for its
queries applies changes itself until then.

Both processes are connected by a pipe. It carries requests, answers, and documents that are encoded
before their batch. Changes are only in the ledger, so nothing is lost if one of the processes is
killed. If the service ends, the pipe is closed, and the other process ends at once.
"""

from __future__ import annotations

import sys
import threading
import time
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
# Seconds without a change after which the process is stopped, so that a service that only searches
# does not pay for its memory. The next change then waits some seconds for a new start. So the
# pauses of a person who edits documents must not stop it.
IDLE_SECONDS = 3600.0
# Largest number of seconds to wait until the process is ready. A start takes a few seconds.
MAX_START_SECONDS = 30.0
# Is added to the niceness of the service. Searches go before changes if processor time is short. A
# larger value could delay changes by seconds on a machine with other work.
NICENESS = 5


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
    """Runs the process while there are changes, and sends requests to it.

    The first change starts the process. After `IDLE_SECONDS` without a change, `stop_if_idle` ends
    it, and the next change starts it again. If it ends or cannot start, the service applies changes
    itself.

    Args:
        project: The project.
    """

    def __init__(self, project: Project) -> None:
        arguments = [str(project.root)]
        name = "the process that applies changes"
        self._child = ChildProcess(WORKER_MODULE, arguments, name, NICENESS)
        # This lock protects the two attributes below it.
        self._lock = threading.Lock()
        self._is_applying = False
        # Time of the last change, in seconds of the monotonic clock.
        self._last_use = 0.0

    @property
    def pid(self) -> int | None:
        """Id of the process. None if it is not running."""
        return self._child.pid

    def stop(self) -> None:
        """Kill the process, and start no other one.

        Either it has no work left, or the service must end soon. In the second case, the next start
        of the service repeats its work.
        """
        self._child.close()

    def stop_if_idle(self) -> None:
        """Kill the process if no change came for `IDLE_SECONDS`."""
        with self._lock:
            is_idle = time.monotonic() - self._last_use >= IDLE_SECONDS
            # A request that is sent after this finds no process, and is done by the service.
            if is_idle and not self._is_applying:
                self._child.stop()

    def applier(self, index: LiveIndex) -> Applier:
        """Return an object that applies changes in the process.

        If changes wait, the process is started. The result is `index` if no changes wait, or if the
        process cannot be started.
        """
        if not self._child.is_started and index.has_pending_changes():
            self._note_use()
            self._child.start()
        if uses_pytorch():
            is_ready = self._child.check_ready()
        else:
            # The service could apply the first changes itself, but not sooner: it would have to
            # import PyTorch. That would delay searches, and take memory as long as it runs.
            is_ready = self._child.wait_ready(MAX_START_SECONDS)
        return RemoteApplier(self, index) if is_ready else index

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
        self._note_use(is_applying=True)
        try:
            self._child.send(request)
            answer: ApplyAnswer = self._child.receive()
        finally:
            self._note_use()
        if answer.error is not None:
            raise FreshetError(answer.error)

    def _note_use(self, is_applying: bool = False) -> None:
        """Note that the process is used now.

        Args:
            is_applying: Whether it must not be stopped until the next call.
        """
        with self._lock:
            self._is_applying = is_applying
            self._last_use = time.monotonic()


def uses_pytorch() -> bool:
    """Return whether this process has imported PyTorch, so that it can encode documents at once."""
    return "torch" in sys.modules


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
