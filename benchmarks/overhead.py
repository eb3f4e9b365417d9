"""`freshet bench overhead`: measure idle pipelines, loading, and the overhead of a search."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.encoding import BASE, mixed_texts
from benchmarks.live_service import make_project, served
from benchmarks.measurement import seconds, skipped
from model_code.project import Project
from orchestration.pipeline.dvc import command_line, environment

LOAD = (
    "import time; t = time.perf_counter(); import orchestration.definitions; "
    "print(time.perf_counter() - t)"
)
# Goals in seconds.
IDLE, LOADED, ANSWERED = 3.0, 2.0, 0.015
QUERY_WORDS = 8


def rows(
    repeats: int = 3, passages: int = 10_000, queries: int = 100, base: str | Path = BASE
) -> list[dict[str, Any]]:
    """Measure an idle `dvc repro`, loading the Dagster definitions, and a search by the service.

    Values are medians in seconds: of `repeats` for the first two, of `queries` different queries
    for the third. The search goes over HTTP to a service over `passages` documents whose encoder
    `base` is warm. The first row is skipped if stages have to run.
    """
    project = Project.find()
    load = median(float(_output(project, [sys.executable, "-c", LOAD])) for _ in range(repeats))
    return [
        _idle(project, repeats),
        _row("Dagster definitions load (s)", load, LOADED),
        _row(
            f"service, one query, {passages:,} documents, p50 (s)",
            _query(passages, queries, base),
            ANSWERED,
        ),
    ]


def _row(what: str, spent: float, goal: float) -> dict[str, Any]:
    ratio = spent / goal
    return {
        "what": what,
        "ours": spent,
        "peer": goal,
        "ratio": ratio,
        "goal": f"<= {goal}",
        "met": spent <= goal,
    }


def _idle(project: Project, repeats: int) -> dict[str, Any]:
    what = "dvc repro, nothing to do (s)"
    if _run(project, command_line("status", "-q"), check=False).returncode:
        return skipped(what, "this project has stages to run: `freshet run`, then again")
    command = command_line("repro", "-q")
    return _row(what, median(seconds(lambda: _run(project, command)) for _ in range(repeats)), IDLE)


def _query(passages: int, queries: int, base: str | Path) -> float:
    """Return the median seconds of a search by a service in another process."""
    texts = [" ".join(text.split()[:QUERY_WORDS]) for text in mixed_texts(queries + 5)]
    with (
        tempfile.TemporaryDirectory(prefix="freshet-overhead-") as folder,
        served(make_project(Path(folder), base, passages)) as client,
    ):
        spent = [seconds(lambda text=text: client.search(text, 10)) for text in texts]
    return median(spent[5:])


def _run(
    project: Project, command: list[str], check: bool = True
) -> subprocess.CompletedProcess[str]:
    options = {
        "cwd": project.root,
        "env": environment(project),
        "capture_output": True,
        "text": True,
    }
    return subprocess.run(command, check=check, **options)


def _output(project: Project, command: list[str]) -> str:
    return _run(project, command).stdout
