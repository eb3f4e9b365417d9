"""Where the time of one document goes: the steps from its arrival to searchable, in this process, without HTTP."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterable
from pathlib import Path

from benchmarks.freshness.arrival import Row
from orchestration.project import Project

STEPS = {
    "receive": ("collection.py", "receive"),
    "encode": ("encoder.py", "encode_documents"),
    "write": ("draft.py", "add"),  # encoding included, which is taken out
    "force to disk": ("collection.py", "keep"),
    "guard": ("guard.py", "everything_is_found"),
    "switch": ("collection.py", "switch"),
    "open": ("searcher.py", "renewed"),
}
"""Step -> the file and the function whose time it is."""


def step_seconds(project: Project, rows: Iterable[Row]) -> dict[str, float]:
    """Mean seconds of each step, and of "all", over documents that are added one by one; profiling adds a little.

    The first one warms up and does not count.
    """
    from model_code.live.searcher import Searcher
    from orchestration.live.collection import LiveCollection

    collection, searcher = LiveCollection(project), Searcher.open(project.live)

    def add(row: Row) -> None:
        nonlocal searcher
        collection.receive([row], "bench")
        collection.apply()
        searcher = searcher.renewed()

    first, *others = rows
    add(first)
    profile = cProfile.Profile()
    for row in others:
        profile.runcall(add, row)
    return _means(pstats.Stats(profile), len(others))


def _means(stats: pstats.Stats, documents: int) -> dict[str, float]:
    """Cumulative seconds of the steps' functions, per document."""
    spent = {
        (Path(file).name, name): entry[3]
        for (file, _, name), entry in stats.stats.items()  # type: ignore[attr-defined]
        if (Path(file).name, name) in (*STEPS.values(), ("steps.py", "add"))
    }
    found = {step: spent[function] / documents for step, function in STEPS.items()}
    found["write"] -= found["encode"]
    return found | {"all": spent["steps.py", "add"] / documents}
