"""A child process of the service, connected by a pipe.

Python runs one thread of a process at a time. So the service gives work to child processes that
would otherwise slow down its own threads. A child process has no state that must survive. It can be
killed at any moment, and the service does its work until another child process is ready.

If the service ends, the pipe is closed, and the child process ends at once.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

log = logging.getLogger(__name__)

READY = "ready"
"""First message of a child process, when it can answer requests."""

# Seconds between two checks whether a child process is ready.
READY_POLL_SECONDS = 0.02
# Seconds from one start of a child process to the next one, if it ends without being asked to. The
# time doubles with each child process that ends before it is ready, up to `MAX_RESTART_SECONDS`.
RESTART_SECONDS = 60.0
MAX_RESTART_SECONDS = 3600.0


class ProcessEnded(Exception):
    """The child process ended before it answered a request."""


class ChildProcess:
    """Starts a child process, and exchanges messages with it.

    The process runs a module of this project. The module receives the number of a file descriptor,
    which is its end of the pipe, and then `arguments`. It calls `connect_to_service` to open the
    pipe, and sends `READY` when it can answer requests.

    A process that has ended is not started again by itself. `start` does this, at most once in
    `RESTART_SECONDS`. So a process that ends again and again does not use up the machine.

    Methods may be called by several threads. Only one thread at a time may call `receive`.

    Args:
        module: Name of the module.
        arguments: Arguments of the module, after the file descriptor.
        name: Name of the process for messages, such as "the process that applies changes".
        niceness: Is added to the niceness of the service. With a larger value, the process gets
            less processor time if there is not enough for all.
    """

    def __init__(self, module: str, arguments: Sequence[str], name: str, niceness: int = 0) -> None:
        self._module = module
        self._arguments = list(arguments)
        self._name = name
        self._niceness = niceness
        # This lock is held while the process is started or forgotten.
        self._lock = threading.Lock()
        # This lock is held while a message is sent. A send may block if the process is stuck.
        self._send_lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_ready = False
        self._is_closed = False
        # Times are in seconds of the monotonic clock.
        self._start_time = 0.0
        self._earliest_start = 0.0
        self._restart_seconds = RESTART_SECONDS

    @property
    def pid(self) -> int | None:
        """Id of the process. None if it is not running."""
        process = self._process
        return None if process is None else process.pid

    @property
    def is_started(self) -> bool:
        """Whether the process was started, and has not ended as far as is known."""
        return self._connection is not None

    def start(self) -> None:
        """Start the process, without waiting until it is ready.

        Nothing is done if the process is running, if it has ended too short a time ago, or after
        `close`. An error of the operating system, such as too little memory, is logged.
        """
        with self._lock:
            if self._connection is not None or self._is_closed:
                return
            if time.monotonic() < self._earliest_start:
                return
            self._start_time = time.monotonic()
            try:
                self._launch()
            except OSError as error:
                self._forget(is_expected=True)
                log.warning(
                    "%s cannot be started (%s); %s", self._name, error, self._postpone_start()
                )

    def check_ready(self) -> bool:
        """Return whether the process is ready. This does not wait for it."""
        connection = self._connection
        if self._is_ready or connection is None:
            return self._is_ready
        with self._lock:
            # Another thread may have received the message, or forgotten the process.
            if self._is_ready or self._connection is not connection:
                return self._is_ready
            try:
                if connection.poll():
                    self._is_ready = connection.recv() == READY
                    return self._is_ready
            except (EOFError, OSError):
                self._forget()
            return False

    def wait_ready(self, seconds: float) -> bool:
        """Wait until the process is ready or has ended, and return whether it is ready.

        Args:
            seconds: Longest time to wait.
        """
        deadline = time.monotonic() + seconds
        while not self.check_ready():
            if not self.is_started or time.monotonic() > deadline:
                return False
            time.sleep(READY_POLL_SECONDS)
        return True

    def send(self, message: Any) -> None:
        """Send a message to the process.

        Raises:
            ProcessEnded: If the process has ended.
        """
        connection = self._connection
        if connection is None:
            raise ProcessEnded
        try:
            with self._send_lock:
                connection.send(message)
        except OSError:
            self._forget_unless_replaced(connection)
            raise ProcessEnded from None

    def receive(self) -> Any:
        """Wait for a message of the process, and return it.

        Raises:
            ProcessEnded: If the process has ended.
        """
        connection = self._connection
        if connection is None:
            raise ProcessEnded
        try:
            return connection.recv()
        except (EOFError, OSError):
            self._forget_unless_replaced(connection)
            raise ProcessEnded from None

    def stop(self) -> None:
        """Kill the process. `start` can start another one at once.

        A thread that waits in `receive` or `send` gets `ProcessEnded`.
        """
        with self._lock:
            self._forget(is_expected=True)

    def close(self) -> None:
        """Kill the process, and let `start` start no other one."""
        with self._lock:
            self._is_closed = True
            self._forget(is_expected=True)

    def _launch(self) -> None:
        """Start the process. `_lock` is held."""
        environment = dict(os.environ)
        # The process finds the same modules as this one. An empty entry is the working directory.
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        connection, remote_end = Pipe()
        with remote_end:
            command = [sys.executable, "-P", "-m", self._module, str(remote_end.fileno())]
            command += self._arguments
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[remote_end.fileno()],
                # Ctrl-C in a terminal ends the service only, which then ends this process. It could
                # arrive here before the process can ignore it.
                start_new_session=True,
            )
        self._connection = connection
        # The process has only one thread yet. Its later threads inherit the niceness.
        own_niceness = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, self._process.pid, own_niceness + self._niceness)

    def _forget_unless_replaced(self, connection: Connection) -> None:
        """Forget the process at the other end of a connection.

        Nothing is done if another thread has forgotten it already.
        """
        with self._lock:
            if self._connection is connection:
                self._forget()

    def _forget(self, is_expected: bool = False) -> None:
        """Kill the process if it is running, and forget it. `_lock` is held.

        The connection is not closed here, because another thread may be about to use it. It is
        closed when no thread refers to it any more.

        Args:
            is_expected: Whether the service wants the process to end. Otherwise this is logged, and
                the next start is postponed.
        """
        process = self._process
        if process is None:
            return
        if self._is_ready:
            self._restart_seconds = RESTART_SECONDS
        self._is_ready = False
        self._connection = None
        self._process = None
        process.kill()
        exit_code = process.wait()
        if not is_expected:
            reason = describe_exit(exit_code)
            log.warning("%s ended (%s); %s", self._name, reason, self._postpone_start())

    def _postpone_start(self) -> str:
        """Choose the earliest time of the next start, and describe it for a message."""
        self._earliest_start = self._start_time + self._restart_seconds
        self._restart_seconds = min(2 * self._restart_seconds, MAX_RESTART_SECONDS)
        remaining = max(0.0, self._earliest_start - time.monotonic())
        return (
            "the service does its work itself, and may start another process after "
            f"{remaining:.0f} s"
        )


def connect_to_service(descriptor: int) -> Connection:
    """Open the end of the pipe of a child process, and ignore the signals that end the service.

    A signal may reach all processes of a terminal or a container. The service handles it, and needs
    its child processes until its work is done.

    Args:
        descriptor: Number of the file descriptor of this end of the pipe.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return Connection(descriptor)


def describe_exit(exit_code: int) -> str:
    """Describe how a process ended.

    >>> describe_exit(1)
    'exit code 1'
    >>> describe_exit(-11)
    'killed by SIGSEGV'

    Args:
        exit_code: Exit code of the process. A negative number is a signal.
    """
    if exit_code >= 0:
        return f"exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    if exit_code == -signal.SIGKILL:
        return f"killed by {name}, perhaps because memory was short"
    return f"killed by {name}"
