"""Compare fused with dense search over HTTP, idle and while documents arrive.

`python -m experiments.fused_live.run` writes `result.json` and the table of `README.md`.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoding import mixed_texts
from benchmarks.live_service import make_project, served
from experiments.tables import write_tables
from freshet.client import Client
from model_code.encoding.encoder import Encoder
from model_code.files import write_json
from model_code.project import Project

HERE = Path(__file__).parent
BASE, DOCUMENTS, FEEDBACK = "sentence-transformers/all-MiniLM-L6-v2", 10_000, 0.3
# Number of rounds, and seconds of each kind in a round.
ROUNDS, WARM, IDLE, ARRIVING = 8, 2.0, 5.0, 15.0
# Documents of a request, seconds between requests, words of a document.
TOGETHER, EVERY, WORDS = 5, 0.25, 40
KINDS = {"dense": None, "fused": FEEDBACK}
COLUMNS, QUANTILES = ("idle", "arriving", "added"), {"p50": 0.5, "p99": 0.99}


def read(client: Client, texts: Sequence[str], seconds: float) -> list[float]:
    """Search one query after the other for some seconds; return the milliseconds of each search."""
    took, end = [], time.monotonic() + seconds
    for text in cycle(texts):
        started = time.perf_counter()
        client.search(text, 10)
        took.append(1000 * (time.perf_counter() - started))
        if time.monotonic() > end:
            return took
    raise ValueError("there is nothing to search for")


class Arrivals(threading.Thread):
    """Thread that adds documents at a steady pace until `stop`.

    took: Milliseconds of each request, after which all its documents are found.
    """

    def __init__(self, client: Client, texts: Sequence[str]) -> None:
        super().__init__()
        self.client, self.texts, self.next, self.took = client, texts, 0, list[float]()
        self.stop = threading.Event()

    def run(self) -> None:
        """Run the thread."""
        due = time.monotonic()
        while not self.stop.wait(max(0.0, due - time.monotonic())):
            numbers = range(self.next, self.next + TOGETHER)
            started = time.perf_counter()
            self.client.add([self._document(number) for number in numbers])
            self.took.append(1000 * (time.perf_counter() - started))
            self.next, due = numbers.stop, due + EVERY

    def _document(self, number: int) -> dict[str, str]:
        text = " ".join(self.texts[number % len(self.texts)].split()[:WORDS])
        return {"_id": f"new.{number}", "title": f"new {number}", "text": text}


def one_round(client: Client, texts: Sequence[str]) -> dict[str, list[float]]:
    """Search alone, then beside arrivals.

    The first addition of a process loads libraries and is excluded.
    """
    asked = [" ".join(text.split()[:8]) for text in texts[:400]]
    read(client, asked, WARM)
    idle = read(client, asked, IDLE)
    client.add([{"_id": "first", "title": "first", "text": texts[0]}])
    arrivals = Arrivals(client, texts)
    arrivals.start()
    try:
        arriving = read(client, asked, ARRIVING)
    finally:
        arrivals.stop.set()
        arrivals.join()
    return {"idle": idle, "arriving": arriving, "added": arrivals.took}


def measure() -> dict[str, Any]:
    """Run rounds of both kinds in turn; return p50 and p99 in milliseconds.

    Each round has its own service and its own copy of the project.
    """
    texts = mixed_texts(DOCUMENTS)
    encoded = Encoder.load(BASE, for_search=True).encode_passages_with_tokens(texts)
    rounds: dict[str, list[dict[str, list[float]]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        projects = {
            kind: make_project(Path(folder) / kind, BASE, DOCUMENTS, texts, encoded, feedback)
            for kind, feedback in KINDS.items()
        }
        for _ in range(ROUNDS):
            for kind, project in projects.items():
                with served(_copied(project, Path(folder) / "round")) as client:
                    rounds[kind].append(one_round(client, texts))
    return {
        kind: {column: _stated(own, column) for column in COLUMNS} for kind, own in rounds.items()
    }


def _copied(project: Project, folder: Path) -> Project:
    """Copy the project as it was built, so that every round starts with equally many documents."""
    shutil.rmtree(folder, ignore_errors=True)
    return Project(shutil.copytree(project.root, folder))


def _stated(rounds: Sequence[Mapping[str, list[float]]], column: str) -> dict[str, Any]:
    """Return the quantiles of all rounds together, and of each round."""
    together = [milliseconds for own in rounds for milliseconds in own[column]]
    each = {
        f"{name} of each round": [_quantile(own[column], q) for own in rounds]
        for name, q in QUANTILES.items()
    }
    return (
        {"n": len(together)}
        | {name: _quantile(together, q) for name, q in QUANTILES.items()}
        | each
    )


def _quantile(milliseconds: Sequence[float], quantile: float) -> float:
    return round(float(np.quantile(milliseconds, quantile)), 1)


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's table: all rounds together, and the ratio of the two kinds.

    The ratio has the smallest and the largest round's.
    """
    rows = []
    for column, quantile in [(column, quantile) for column in COLUMNS for quantile in QUANTILES]:
        dense, fused = (result[kind][column] for kind in KINDS)
        pairs = zip(
            fused[f"{quantile} of each round"], dense[f"{quantile} of each round"], strict=True
        )
        ratios = [above / below for above, below in pairs]
        rows.append(
            f"| {column} | {quantile} | {dense[quantile]} ms | {fused[quantile]} ms | "
            f"{fused[quantile] / dense[quantile]:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    head = "| | | dense | fused | ratio (of rounds) |\n|---|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    found = measure()
    write_json(HERE / "result.json", found)
    write_tables(HERE, tables(found))
    print(tables(found))
