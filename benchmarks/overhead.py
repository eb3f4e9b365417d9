"""`freshet bench overhead`: measure idle pipelines, loading, and the overhead of a search."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.encoding import BASE, mixed_texts
from benchmarks.live_service import make_project, served
from benchmarks.measurement import seconds, skipped
from model_code.project import Project
from orchestration.pipeline.dvc import command_line, environment

LOAD_DEFINITIONS = (
    "import time; t = time.perf_counter(); import orchestration.definitions; "
    "print(time.perf_counter() - t)"
)
# Goals in seconds: an idle `dvc repro`, loading the definitions, and one search.
MAX_IDLE_SECONDS = 3.0
MAX_LOAD_SECONDS = 2.0
MAX_SEARCH_SECONDS = 0.015
QUERY_WORDS = 8
# First searches of the service, which are not counted.
WARM_UP_QUERIES = 5


def rows(
    repeats: int = 3, passages: int = 10_000, queries: int = 100, base: str | Path = BASE
) -> list[dict[str, Any]]:
    """Measure an idle `dvc repro`, loading the Dagster definitions, and a search by the service.

    Values are medians in seconds. The first row is skipped if stages have to run.

    Args:
        repeats: Runs of the first two measurements.
        passages: Documents of the service.
        queries: Different queries that are searched over HTTP.
        base: Encoder of the service, which is warm.
    """
    project = Project.find()
    load_seconds = []
    for _ in range(repeats):
        output = _run(project, [sys.executable, "-c", LOAD_DEFINITIONS]).stdout
        load_seconds.append(float(output))

    idle_row = _measure_idle(project, repeats)
    search_label = f"service, one query, {passages:,} documents, p50 (s)"
    search_seconds = _measure_search(passages, queries, base)
    return [
        idle_row,
        _row("Dagster definitions load (s)", median(load_seconds), MAX_LOAD_SECONDS),
        _row(search_label, search_seconds, MAX_SEARCH_SECONDS),
    ]


def _row(what: str, measured: float, goal: float) -> dict[str, Any]:
    """Return the row of a number of seconds, with its limit as the peer."""
    return {
        "what": what,
        "ours": measured,
        "peer": goal,
        "ratio": measured / goal,
        "goal": f"<= {goal}",
        "met": measured <= goal,
    }


def _measure_idle(project: Project, repeats: int) -> dict[str, Any]:
    """Return the row of `dvc repro` without work; it is skipped if there is work."""
    label = "dvc repro, nothing to do (s)"
    status = _run(project, command_line("status", "-q"), check=False)
    if status.returncode != 0:
        return skipped(label, "this project has stages to run: `freshet run`, then again")

    command = command_line("repro", "-q")

    def reproduce() -> None:
        _run(project, command)

    return _row(label, median(seconds(reproduce) for _ in range(repeats)), MAX_IDLE_SECONDS)


def _measure_search(passages: int, queries: int, base: str | Path) -> float:
    """Return the median seconds of a search by a service in another process."""
    texts = [
        " ".join(text.split()[:QUERY_WORDS]) for text in mixed_texts(queries + WARM_UP_QUERIES)
    ]
    search_seconds = []
    with (
        tempfile.TemporaryDirectory(prefix="freshet-overhead-") as folder,
        served(make_project(Path(folder), base, passages)) as client,
    ):
        for text in texts:
            search_seconds.append(seconds(partial(client.search, text, 10)))
    return median(search_seconds[WARM_UP_QUERIES:])


def _run(
    project: Project, command: list[str], check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command in the project's folder, with the environment that DVC needs."""
    return subprocess.run(
        command,
        check=check,
        cwd=project.root,
        env=environment(project),
        capture_output=True,
        text=True,
    )
