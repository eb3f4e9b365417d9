"""Handle the signals that stop a command: Ctrl-C, SIGTERM and SIGHUP (a closed terminal)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

from model_code.errors import FreshetError
from model_code.project import Project

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Exit code that Typer uses after Ctrl-C.
INTERRUPTED_EXIT_CODE = 130
SignalHandler = Callable[[int, FrameType | None], None]
T = TypeVar("T")


@contextmanager
def handle_stop_signals(handler: SignalHandler) -> Iterator[None]:
    """Call `handler` for every signal that stops this process; restore the old handlers on exit."""
    previous = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


def interrupted_message() -> str:
    """Return the message shown after an interrupt: what is kept and what will resume."""
    message = "stopped; finished stages are kept"
    # Outside of a project there are no checkpoints to resume from.
    with suppress(FreshetError):
        checkpoints = Project.find().state / "checkpoints"
        if any(checkpoints.glob("*/*")):
            message += ", training resumes from its last checkpoint"
    return message


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """End this process and all its child processes at once when a stop signal arrives.

    Nothing is lost by this, because every stage survives `kill -9`.
    """
    import psutil

    # Dagster redirects standard error into the log of a step. The copy still leads to the terminal.
    terminal = os.dup(sys.stderr.fileno())

    def kill_all(number: int, frame: FrameType | None) -> None:
        """Kill all child processes, say what is kept, and end this process."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        os.write(terminal, f"{interrupted_message()}\n".encode())
        os._exit(INTERRUPTED_EXIT_CODE)

    try:
        with handle_stop_signals(kill_all):
            yield
    finally:
        os.close(terminal)


def run_without_signals(function: Callable[[], T]) -> T:
    """Run a function in a thread, so that only this process's main thread handles signals.

    In the main thread, Dagster replaces the signal handlers. It would then treat a signal as a
    failed step, and retry the step. In another thread, Dagster leaves the handlers alone.

    The thread blocks SIGINT, and the processes that it starts inherit this. At Ctrl-C, a terminal
    sends SIGINT to all processes of a command. Dagster's log helpers would print a traceback.
    """
    with ThreadPoolExecutor(max_workers=1, initializer=_block_sigint) as pool:
        return pool.submit(function).result()


def _block_sigint() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
