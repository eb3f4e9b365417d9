"""End a stage when what started it is gone: after `kill -9` of DVC its stage would go on writing."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil

from orchestration.project import LOCK_HELD


def die_with_ancestors(generations: int = 2, interval: float = 0.1) -> None:
    """Watch the DVC (and shell) above this process and the holder of the project's lock; if one ends, end too.

    A signal on the parent's death would not do: between DVC and the stage there may be a shell that survives DVC.
    """
    watched = [process for process in psutil.Process().parents()[:generations] if _is_dvc(process)]
    if LOCK_HELD in os.environ:
        watched.append(psutil.Process(int(os.environ[LOCK_HELD])))
    if watched:
        threading.Thread(target=_watch, args=(watched, interval), daemon=True, name="parent-watch").start()


def _is_dvc(process: psutil.Process) -> bool:
    """Whether the process is DVC or the shell it runs stages in, not a terminal that may be closed on purpose."""
    try:
        return any("dvc" in part or "orchestration.pipeline.run_stage" in part for part in process.cmdline())
    except psutil.Error:
        return False


def _watch(watched: list[psutil.Process], interval: float) -> None:
    while all(_alive(process) for process in watched):
        time.sleep(interval)
    os.kill(os.getpid(), signal.SIGKILL)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
