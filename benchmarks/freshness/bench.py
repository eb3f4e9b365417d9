"""Arrival to searchable through the service, ledger and switch included, and readers under writes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.freshness.arrival import arrival_seconds, batch_seconds, documents
from benchmarks.freshness.collection import make_project
from benchmarks.freshness.readers import read_while_writing
from benchmarks.freshness.served import served
from benchmarks.freshness.steps import step_seconds
from orchestration.project import Project
from orchestration.service.client import ServiceClient

BASE = "sentence-transformers/all-MiniLM-L6-v2"
SINGLE_SECONDS, BATCH_RATIO = 0.100, 1.5


def rows(
    passages: int = 100_000,
    singles: int = 100,
    batch: int = 1000,
    seconds: float = 30.0,
    readers: int = 4,
    base: str | Path = BASE,
) -> list[dict[str, Any]]:
    """Start a service over `passages` random vectors of the encoder `base`, send it documents, and read meanwhile.

    singles: documents sent one at a time; batch: documents sent at once, whose encoding alone, in this process with as
    many threads as the service has, is the peer; seconds, readers: how long and by how many it is read under writes.
    """
    with tempfile.TemporaryDirectory(prefix="freshet-freshness-") as folder:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the service does, before torch comes
        project = make_project(Path(folder), base, passages)
        with served(project) as client:
            arrived = _arrival(client, project.live, singles, batch)
            return [*arrived, *_steps(project, singles), *_reading(client, seconds, readers)]


def _arrival(client: ServiceClient, live: Path, singles: int, batch: int) -> list[dict[str, Any]]:
    arrival_seconds(client, documents("warm", 3))
    alone = arrival_seconds(client, documents("single", singles))
    sent, encoded = batch_seconds(client, live, documents("batch", batch))
    found = []
    for name, quantile in (("p50", 0.5), ("p95", 0.95)):
        seconds = float(np.quantile(alone, quantile))
        goal = f"<= {SINGLE_SECONDS}" if name == "p50" else "-"
        found.append(row(f"one document until searchable, {name} (s)", seconds, SINGLE_SECONDS, goal))
    what = f"{batch:,} documents until searchable, against encoding them (s)"
    return [*found, row(what, sent, encoded, f"<= {BATCH_RATIO}", sent <= BATCH_RATIO * encoded)]


def _steps(project: Project, singles: int) -> list[dict[str, Any]]:
    """Each step of one document, beside all of them; by another process than the service, whose writer waits."""
    found = step_seconds(project, documents("step", singles + 1))
    whole = found.pop("all")
    return [row(f"of one document, without HTTP: {step} (s)", own, whole, "-") for step, own in found.items()]


def _reading(client: ServiceClient, seconds: float, readers: int) -> list[dict[str, Any]]:
    alone = read_while_writing(client, seconds / 3, readers, 0, write=False)
    found = read_while_writing(client, seconds, readers, 1)
    under = f"{readers} readers, 1 writer, {seconds:g} s, {found.generations} generations"
    searches = float(len(found.seconds))
    table = [
        row(f"{under}: failed searches or writes, of all", float(len(found.errors)), searches, "== 0"),
        row(f"{under}: answers that mix generations, of all", float(found.mixed), searches, "== 0"),
    ]
    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        ours, peer = (float(np.quantile(each.seconds, quantile)) for each in (found, alone))
        table.append(row(f"{under}: search {name}, against no writer (s)", ours, peer, "-"))
    return table


def row(what: str, ours: float, peer: float, goal: str, met: bool | None = None) -> dict[str, Any]:
    """One result where less is better; a goal such as "<= 0.1" is compared with `ours`, "-" is none.

    >>> row("seconds", 0.05, 0.1, "<= 0.1")["met"], row("errors", 1.0, 10.0, "== 0")["met"]
    (True, False)
    """
    if met is None and goal != "-":
        sign, bound = goal.split()
        met = ours == float(bound) if sign == "==" else ours <= float(bound)
    return {"what": what, "ours": ours, "peer": peer, "ratio": ours / peer, "goal": goal, "met": met}
