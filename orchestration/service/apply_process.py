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

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from model_code.collection.index.live_index import LiveIndex
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.documents import Document
from orchestration.service.ingest_queue import Applier

log = logging.getLogger(__name__)
WORKER_MODULE = "orchestration.service.apply_worker"
# Seconds from one start of the process to the next one, if it ends again and again.
RESTART_SECONDS = 60.0


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


READY = "ready"
"""First message of the process, when it can answer requests."""


class ProcessEnded(Exception):
    """The process ended before it answered a request."""


class ApplyProcess:
    """Starts the process, sends requests to it, and starts it again if it was killed.

    As long as the process is not ready, `applier` returns an object that works in this process.

    Args:
        project: The project.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        # This lock is held while a request is sent, or the process is started or stopped.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_ready = False
        self._is_stopped = False
        self._start_time = 0.0

    @property
    def pid(self) -> int | None:
        """Id of the process. None if it is not running."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, without waiting until it is ready."""
        with self._lock:
            self._start()

    def stop(self) -> None:
        """Kill the process.

        Either it has no work left, or the service must end soon. In the second case, the next start
        of the service repeats its work.
        """
        with self._lock:
            self._is_stopped = True
            # `apply` may still wait for an answer in another thread. It ends because the killed
            # process has closed its end of the pipe.
            self._kill()

    def applier(self, index: LiveIndex) -> Applier:
        """Return an object that applies changes in the process, or `index` if it is not ready."""
        return RemoteApplier(self, index) if self._check_ready() else index

    def encode_ahead(self, request: EncodeRequest) -> None:
        """Send documents to encode. They are dropped if the process has ended."""
        # The next batch notices the end of the process, and encodes the documents.
        with self._lock, suppress(ProcessEnded):
            self._send(request)

    def apply(self, request: ApplyRequest) -> None:
        """Apply changes, and wait until they are searchable. Only one thread may call this.

        Raises:
            ProcessEnded: If the process has ended. It will be started again.
            FreshetError: If the changes could not be made searchable.
        """
        try:
            with self._lock:
                connection = self._send(request)
            answer: ApplyAnswer = connection.recv()
        except (ProcessEnded, EOFError, OSError):
            with self._lock:
                self._close()
            raise ProcessEnded from None
        if answer.error is not None:
            raise FreshetError(answer.error)

    def _send(self, request: EncodeRequest | ApplyRequest) -> Connection:
        if self._connection is None:
            raise ProcessEnded
        try:
            self._connection.send(request)
        except OSError:
            raise ProcessEnded from None
        return self._connection

    def _check_ready(self) -> bool:
        """Return whether the process can answer requests. Start it again if it has ended."""
        with self._lock:
            if self._is_ready:
                return True
            if self._is_stopped:
                return False
            if self._connection is None:
                if time.monotonic() - self._start_time >= RESTART_SECONDS:
                    self._start()
                return False
            if self._connection.poll():
                try:
                    self._is_ready = self._connection.recv() == READY
                except (EOFError, OSError):
                    self._close()
            return self._is_ready

    def _start(self) -> None:
        self._start_time = time.monotonic()
        self._connection, remote_end = Pipe()
        environment = dict(os.environ)
        # The process finds the same modules as this one. An empty entry is the working directory.
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        command = [sys.executable, "-P", "-m", WORKER_MODULE]
        command += [str(remote_end.fileno()), str(self._project.root)]
        with remote_end:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[remote_end.fileno()],
            )

    def _close(self) -> None:
        """Forget a process that has ended, so that another one can be started."""
        self._is_ready = False
        exit_code = self._kill()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if not self._is_stopped:
            log.warning(
                "the process that applies changes ended with exit code %s; the service applies "
                "them itself and starts another process within %g s",
                exit_code,
                RESTART_SECONDS,
            )

    def _kill(self) -> int | None:
        """Kill the process if it is running, and return its exit code. None if there is none."""
        if self._process is None:
            return None
        self._process.kill()
        exit_code = self._process.wait()
        self._process = None
        return exit_code


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
