"""`freshet bench overhead`: what the machinery costs when there is nothing to do."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median
from typing import Any

from orchestration.project import Project
from orchestration.repro import dvc_command, environment

LOAD = "import time; t = time.perf_counter(); import orchestration.definitions; print(time.perf_counter() - t)"


def rows(repeats: int = 3) -> list[dict[str, Any]]:
    """Seconds of an idle `dvc repro` and of loading the Dagster definitions, each the median of `repeats`."""
    project = Project.find()
    idle = median(_seconds(project, dvc_command("repro", "-q")) for _ in range(repeats))
    load = median(float(_output(project, [sys.executable, "-c", LOAD])) for _ in range(repeats))
    return [_row("dvc repro, nothing to do (s)", idle, 3.0), _row("Dagster definitions load (s)", load, 2.0)]


def _row(what: str, seconds: float, goal: float) -> dict[str, Any]:
    return {
        "what": what,
        "ours": seconds,
        "peer": goal,
        "ratio": seconds / goal,
        "goal": f"<= {goal}",
        "met": seconds <= goal,
    }


def _seconds(project: Project, command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=project.root, env=environment(project), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _output(project: Project, command: list[str]) -> str:
    return subprocess.run(
        command, cwd=project.root, env=environment(project), check=True, capture_output=True, text=True
    ).stdout
